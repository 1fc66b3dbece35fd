if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Reduce do
    @moduledoc false
    # Reductions over axes.

    import Olivine.Backend.Ops
    alias Olivine.Backend.{Data, Elementwise, Numbers, Types}

    @kinds %{sum: "reduce_sum", product: "reduce_prod", reduce_max: "reduce_max", reduce_min: "reduce_min"}

    def names, do: Map.keys(@kinds)

    def reduce(:product, %{type: {:c, _} = type} = out, tensor, options) do
      axes = axes(tensor, options)
      all = Enum.to_list(0..tuple_size(tensor.shape)//1)
      x = tensor |> Data.load(type) |> transpose(axes ++ (all -- axes))
      {reduced, kept} = Enum.split(x.shape, length(axes))
      Data.store(out, x |> reshape([Enum.product(reduced) | kept]) |> Numbers.product())
    end

    def reduce(name, %{type: type} = out, tensor, options) do
      ordered = name in [:reduce_max, :reduce_min]
      x = Data.load(tensor, type)
      x = if ordered, do: Types.ordered(x, type), else: x
      result = op(Map.fetch!(@kinds, name), [x], axes: axes(tensor, options), keepdims: false)
      Data.store(out, if(ordered, do: Types.ordered(result, type), else: result))
    end

    def all(out, tensor, options), do: truth("reduce_all", out, tensor, options)
    def any(out, tensor, options), do: truth("reduce_any", out, tensor, options)

    defp truth(operation, out, tensor, options) do
      result = op(operation, [Elementwise.true?(tensor)], axes: axes(tensor, options), keepdims: false)
      Data.store(out, Elementwise.truth(result, out.type))
    end

    defp axes(tensor, options), do: options[:axes] || Enum.to_list(0..(tuple_size(tensor.shape) - 1)//1)

    def argmax(out, tensor, options), do: position("argmax", out, tensor, options)
    def argmin(out, tensor, options), do: position("argmin", out, tensor, options)

    defp position(operation, out, %{type: type} = tensor, options) do
      x = tensor |> Data.load() |> Types.ordered(type)
      x = if options[:axis], do: x, else: reshape(x, [Nx.size(tensor)])
      axis = options[:axis] || 0
      at = op(operation, [x], axis: axis, keepdims: false, last: options[:tie_break] == :high)
      at = if Types.float?(type), do: last_nan(x, axis, at), else: at
      Data.store(out, cast(at, Types.work(out.type)))
    end

    # Of several NaN Nx takes the last, graphs take the first.
    defp last_nan(x, axis, at) do
      nan = op("isnan", [x])
      last = op("argmax", [cast(nan, :i32)], axis: axis, keepdims: false, last: true)
      where(op("reduce_any", [nan], axes: [axis], keepdims: false), last, at)
    end

    @doc """
    A reduction by a function of scalars. The function sees vectorized tensors: one element of every result at once.
    """
    def fold(out, tensor, acc, options, fun) do
      axes = axes(tensor, options)
      kept = Enum.to_list(0..(tuple_size(tensor.shape) - 1)//1) -- axes
      count = axes |> Enum.map(&elem(tensor.shape, &1)) |> Enum.product()
      rows = Nx.transpose(tensor, axes: axes ++ kept) |> Nx.reshape({count, :auto}, names: [nil, nil])
      fold_rows(out, rows, count, acc, fun)
    end

    @doc "The same over the first axis of a tensor of two axes."
    def fold_rows(out, rows, count, acc, fun) do
      results = elem(rows.shape, 1)

      acc =
        Enum.reduce(0..(count - 1)//1, acc, fn i, acc ->
          row = rows |> Nx.slice_along_axis(i, 1, axis: 0) |> Nx.reshape({results}, names: [nil])
          fun.(Nx.vectorize(row, :olivine_reduce), acc)
        end)

      acc = Nx.broadcast_vectors([Nx.vectorize(Nx.broadcast(Nx.u8(0), {results}), :olivine_reduce), acc]) |> List.last()

      if acc.shape != {} or acc.type != out.type do
        raise ArgumentError, "expected a scalar tensor of type #{inspect(out.type)}, got: #{inspect(acc)}"
      end

      Data.wrap(out, acc |> Nx.devectorize(keep_names: false) |> Data.stored())
    end
  end
end
