if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend do
    @moduledoc """
    Nx tensors on Olivine's devices.

        Nx.default_backend(Olivine.Backend)

    Operations wait until elements are asked for (`Nx.to_binary/1`, printing a tensor, a condition of a `while`); then all
    that is needed runs as one graph, in which elementwise operations are fused. Graphs that were compiled are kept.

    ## The host

    What graphs cannot express is computed by `Nx.BinaryBackend` and counted: `host_calls/0`. In strict mode it raises
    `Olivine.Error` instead. Strict mode is on with

        config :olivine, strict: true

    or `Nx.default_backend({Olivine.Backend, strict: true})`.

    ## Differences from `Nx.BinaryBackend`

      * Functions of f32 are computed in f32, to within 4 units in the last place; `Nx.BinaryBackend` computes in f64.
      * A position out of range raises if it came from the host. One that the device computed is clamped when it reads,
        and dropped when it writes.
      * An integer divided by 0 is 0.

    ## Printing

    Tensors print with the backend's name unless `config :olivine, add_backend_on_inspect: false`.
    """

    @behaviour Nx.Backend

    alias Nx.Tensor, as: T

    alias Olivine.Backend.{
      Contraction,
      Data,
      Elementwise,
      Fourier,
      Host,
      Index,
      Layout,
      LinAlg,
      Order,
      Reduce,
      Window
    }

    # `known` are the bytes of a small tensor that came from the host.
    @enforce_keys [:array]
    defstruct [:array, :known]

    @doc "How often each callback was computed on the host since the start."
    @spec host_calls :: %{atom => pos_integer}
    def host_calls, do: Host.calls()

    @impl true
    def init(options), do: Keyword.validate!(options, [:strict])

    # Callbacks by the module that has them, with their arity.
    @modules [
      {Layout, constant: 3, eye: 2, iota: 3, reshape: 2, squeeze: 3, broadcast: 4, transpose: 3, pad: 4, reverse: 3},
      {Layout, concatenate: 3, stack: 3, to_batched: 3},
      {Elementwise, as_type: 2, bitcast: 2, select: 4, clip: 4},
      {Reduce, all: 3, any: 3, argmax: 3, argmin: 3},
      {Window, window_reduce: 6},
      {Index, slice: 5, put_slice: 4, gather: 4, take: 4, take_along_axis: 4, indexed_add: 5, indexed_put: 5},
      {Order, sort: 3, argsort: 3, top_k: 3},
      {Contraction, dot: 7, conv: 4},
      {Fourier, fft: 3, ifft: 3},
      {LinAlg, lu: 3, triangular_solve: 4}
    ]

    # Some are callbacks of some versions of Nx alone.
    callback = Nx.Backend.behaviour_info(:callbacks)

    for {module, callbacks} <- @modules, {name, arity} <- callbacks do
      args = Macro.generate_arguments(arity, __MODULE__)

      if {name, arity} in callback, do: @impl(true)

      def unquote(name)(unquote_splicing(args)) do
        Host.native(unquote(name), [unquote_splicing(args)], fn ->
          unquote(module).unquote(name)(unquote_splicing(args))
        end)
      end
    end

    # Families whose operation is found by name.
    @families [
      {Elementwise, :binary, Elementwise.binary_names(), 3},
      {Elementwise, :unary, Elementwise.unary_names(), 2},
      {Reduce, :reduce, Reduce.names(), 3},
      {Window, :window, Window.names(), 4},
      {Order, :cumulative, Order.cumulative_names(), 3}
    ]

    for {module, function, names, arity} <- @families, name <- names do
      args = Macro.generate_arguments(arity, __MODULE__)

      if {name, arity} in callback, do: @impl(true)

      def unquote(name)(unquote_splicing(args)) do
        Host.native(unquote(name), [unquote_splicing(args)], fn ->
          unquote(module).unquote(function)(unquote(name), unquote_splicing(args))
        end)
      end
    end

    @impl true
    def reduce(out, tensor, acc, options, fun), do: Reduce.fold(out, tensor, acc, options, fun)

    for {name, operation} <- [window_scatter_max: "argmax", window_scatter_min: "argmin"] do
      @impl true
      def unquote(name)(out, tensor, source, init, sizes, options) do
        Host.native(unquote(name), [out, tensor, source, init, sizes, options], fn ->
          Window.window_scatter(unquote(operation), out, tensor, source, init, sizes, options)
        end)
      end
    end

    # Later versions of Nx call what has a default implementation by a struct with its options.
    @blocks %{
      Nx.Block.Take => :take,
      Nx.Block.TakeAlongAxis => :take_along_axis,
      Nx.Block.TopK => :top_k,
      Nx.Block.CumulativeSum => :cumulative_sum,
      Nx.Block.CumulativeProduct => :cumulative_product,
      Nx.Block.CumulativeMin => :cumulative_min,
      Nx.Block.CumulativeMax => :cumulative_max,
      Nx.Block.LinAlg.LU => :lu
    }

    if {:block, 4} in callback, do: @impl(true)

    def block(%module{} = block, out, args, default) do
      case @blocks do
        %{^module => name} -> apply(__MODULE__, name, [out | args] ++ [block |> Map.from_struct() |> Map.to_list()])
        _ -> apply(default, [block | args])
      end
    end

    ## Data

    @impl true
    def from_binary(out, binary, _options), do: Data.from_host(out, binary)

    @impl true
    def to_binary(%T{type: {_, size}} = tensor, limit) do
      bits = limit * size
      <<part::bitstring-size(bits), _::bitstring>> = Data.to_host(tensor)
      part
    end

    @impl true
    def backend_copy(tensor, backend, options), do: backend_transfer(tensor, backend, options)

    @impl true
    def backend_transfer(tensor, backend, _options) when backend in [__MODULE__, Nx.Tensor], do: tensor
    def backend_transfer(tensor, backend, options), do: backend.from_binary(tensor, Data.to_host(tensor), options)

    @impl true
    def backend_deallocate(_tensor), do: :ok

    @impl true
    def from_pointer(_pointer, _type, _shape, _backend_options, _options), do: no_pointers()

    @impl true
    def to_pointer(_tensor, _options), do: no_pointers()

    defp no_pointers, do: raise(ArgumentError, "#{Kernel.inspect(__MODULE__)} does not support pointers")

    @impl true
    def inspect(tensor, options) do
      limit = if options.limit == :infinity, do: :infinity, else: options.limit + 1
      count = if limit == :infinity, do: Nx.size(tensor), else: min(limit, Nx.size(tensor))
      shown = Nx.Backend.inspect(tensor, to_binary(tensor, count), options)

      if Application.get_env(:olivine, :add_backend_on_inspect, true) do
        Inspect.Algebra.concat(["Olivine.Backend(", Olivine.device(), ")", Inspect.Algebra.line(), shown])
      else
        shown
      end
    end
  end
end
