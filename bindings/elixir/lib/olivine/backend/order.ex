if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Order do
    @moduledoc false
    # Sorting and running reductions along an axis.

    import Olivine.Backend.Ops
    alias Olivine.Backend.{Data, Types}

    def sort(%{type: type} = out, tensor, options) do
      x = Data.load(tensor, type)

      sorted =
        if x.shape == [], do: x, else: op("sort", [Types.ordered(x, type)], order(options)) |> Types.ordered(type)

      Data.store(out, sorted)
    end

    def argsort(out, %{type: type} = tensor, options) do
      x = tensor |> Data.load() |> Types.ordered(type)
      x = if x.shape == [], do: reshape(x, [1]), else: x
      Data.store(out, cast(op("argsort", [x], order(options)), Types.work(out.type)))
    end

    defp order(options), do: [axis: options[:axis] || 0, descending: options[:direction] == :desc]

    def top_k({values, indices}, %{type: type} = tensor, options) do
      x = tensor |> Data.load() |> Types.ordered(type)
      attributes = [k: options[:k], axis: tuple_size(tensor.shape) - 1, largest: true]
      [best, at] = ops("top_k", [x], attributes)
      {Data.store(values, Types.ordered(best, type)), Data.store(indices, cast(at, Types.work(indices.type)))}
    end

    @cumulative %{
      cumulative_sum: "cumsum",
      cumulative_product: "cumprod",
      cumulative_max: "cummax",
      cumulative_min: "cummax"
    }

    def cumulative_names, do: Map.keys(@cumulative)

    def cumulative(:cumulative_product, %{type: {:c, _}}, _tensor, _options), do: Olivine.Backend.Host.compute()

    def cumulative(name, %{type: type} = out, tensor, options) do
      x = Data.load(tensor, type)
      attributes = [axis: options[:axis], exclusive: false, reverse: options[:reverse]]
      run = fn x -> op(Map.fetch!(@cumulative, name), [x], attributes) end

      result =
        case name do
          :cumulative_max ->
            x |> Types.ordered(type) |> run.() |> Types.ordered(type)

          # The smallest is the largest of the opposites; ~x is the opposite that every integer has.
          :cumulative_min ->
            x |> Types.ordered(type) |> opposite(type) |> run.() |> opposite(type) |> Types.ordered(type)

          _ ->
            run.(x)
        end

      Data.store(out, result)
    end

    defp opposite(x, type), do: if(Types.integer?(type), do: op("not", [x]), else: neg(x))
  end
end
