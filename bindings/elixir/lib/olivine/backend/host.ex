if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Host do
    @moduledoc false
    # What graph operations cannot express is computed by `Nx.BinaryBackend`, and counted.

    alias Nx.Tensor, as: T
    alias Olivine.Backend
    alias Olivine.Backend.Data

    @doc "Leaves a callback for the host."
    def compute, do: throw({__MODULE__, :compute})

    @doc "Runs a callback natively, or on the host where it cannot be expressed."
    def native(name, args, fun) do
      fun.()
    catch
      {__MODULE__, :compute} -> call(name, args)
    end

    defp call(name, args) do
      if strict?() do
        raise Olivine.Error,
          kind: :unsupported,
          message: "Nx.#{name} with these operands needs the host, which strict mode refuses"
      end

      count(name)
      apply(Nx.BinaryBackend, name, Enum.map(args, &to_host/1)) |> from_host()
    end

    @doc "How often each callback went to the host since the start."
    def calls do
      table() |> :ets.tab2list() |> Map.new()
    end

    defp count(name), do: :ets.update_counter(table(), name, 1, {name, 0})

    defp strict? do
      case Nx.default_backend() do
        {Backend, options} -> Keyword.get_lazy(options, :strict, &configured_strict/0)
        _ -> configured_strict()
      end
    end

    defp configured_strict, do: Application.get_env(:olivine, :strict, false)

    # The table belongs to a process of its own, so that it outlives whoever counts first.
    defp table do
      case :ets.whereis(__MODULE__) do
        :undefined ->
          caller = self()
          owner = spawn(fn -> own(caller) end)
          monitor = Process.monitor(owner)

          receive do
            {^owner, :ready} -> Process.demonitor(monitor, [:flush])
            {:DOWN, ^monitor, :process, ^owner, _} -> :ok
          end

          __MODULE__

        _ ->
          __MODULE__
      end
    end

    defp own(caller) do
      :ets.new(__MODULE__, [:named_table, :public, write_concurrency: true])
      send(caller, {self(), :ready})
      Process.sleep(:infinity)
    rescue
      # Another process was first.
      ArgumentError -> :ok
    end

    defp to_host(%T{data: %Backend{}} = tensor) do
      %{tensor | data: %Nx.BinaryBackend{state: Data.to_host(tensor)}}
    end

    defp to_host(%T{} = tensor), do: tensor
    defp to_host(args) when is_list(args), do: Enum.map(args, &to_host/1)
    defp to_host({name, value}) when is_atom(name), do: {name, to_host(value)}
    defp to_host(args) when is_tuple(args), do: args |> Tuple.to_list() |> Enum.map(&to_host/1) |> List.to_tuple()
    defp to_host(other), do: other

    defp from_host(%T{data: %Nx.BinaryBackend{}} = tensor), do: Data.from_host(tensor, Nx.to_binary(tensor))
    defp from_host(%T{} = tensor), do: tensor

    defp from_host(results) when is_tuple(results),
      do: results |> Tuple.to_list() |> Enum.map(&from_host/1) |> List.to_tuple()

    defp from_host(results) when is_list(results), do: Enum.map(results, &from_host/1)
  end
end
