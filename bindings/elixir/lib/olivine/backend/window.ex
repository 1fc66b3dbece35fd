if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Window do
    @moduledoc false
    # Windows that move over all axes. A window along one axis is a view with a new last axis; sums, products and
    # extremes are taken axis by axis.

    import Olivine.Backend.Ops
    alias Olivine.Backend.{Data, Host, Layout, Reduce, Types}

    # Graphs have up to eight axes, and a view needs one more than its operand.
    @most_axes 7

    @kinds %{
      window_sum: {"reduce_sum", 0},
      window_product: {"reduce_prod", 1},
      window_max: {"reduce_max", :least},
      window_min: {"reduce_min", :greatest}
    }

    def names, do: Map.keys(@kinds)

    def window(_name, %{type: {:c, _}}, _tensor, _sizes, _options), do: Host.compute()

    def window(name, %{type: type} = out, tensor, sizes, options) do
      {operation, identity} = Map.fetch!(@kinds, name)
      x = tensor |> Data.load(type) |> Types.ordered(type) |> padded(options[:padding], identity)
      if length(x.shape) > @most_axes, do: Host.compute()
      dilations = options[:window_dilations]

      result =
        [Tuple.to_list(sizes), options[:strides], dilations]
        |> Enum.zip()
        |> Enum.with_index()
        |> Enum.reduce(x, fn {{size, stride, dilation}, axis}, x ->
          windows = unfold(x, axis, size, stride, dilation)
          op(operation, [windows], axes: [length(x.shape)], keepdims: false)
        end)

      Data.store(out, Types.ordered(result, type))
    end

    # A last axis with the elements of each window along one axis.
    defp unfold(x, axis, size, stride, dilation) do
      span = (size - 1) * dilation + 1
      windows = op("unfold", [x], axis: axis, size: span, step: stride)
      slice_axis(windows, length(x.shape), 0, size, dilation)
    end

    defp padded(x, pads, identity) do
      if Enum.all?(pads, &(&1 == {0, 0})) do
        x
      else
        op("pad", [x], pads: pads, mode: :constant, value: identity(identity, x.dtype))
      end
    end

    # Outside i64's range numbers saturate, floats become infinite.
    defp identity(:least, dtype) when dtype in [:u8, :u32], do: 0
    defp identity(:least, dtype) when dtype in [:i8, :i16, :i32, :i64], do: -(2 ** (bits(dtype) - 1)) * 1.0
    defp identity(:least, _dtype), do: :neg_infinity
    defp identity(:greatest, :u8), do: 255
    defp identity(:greatest, :u32), do: 4_294_967_295
    defp identity(:greatest, :i64), do: 9.3e18
    defp identity(:greatest, dtype) when dtype in [:i8, :i16, :i32], do: 2 ** (bits(dtype) - 1) - 1
    defp identity(:greatest, _dtype), do: :infinity
    defp identity(number, _dtype), do: number

    defp bits(dtype), do: dtype |> Atom.to_string() |> String.trim_leading("i") |> String.to_integer()

    @doc "A reduction of windows by a function of scalars."
    def window_reduce(out, tensor, acc, sizes, options, fun) do
      padding = Enum.map(options[:padding], fn {low, high} -> {low, high, 0} end)
      padded = Nx.pad(tensor, acc, padding)
      windows = columns(Data.load(padded), sizes, options[:strides], options[:window_dilations])
      [count, results] = windows.shape
      rows = Data.store(%{padded | shape: {count, results}, names: [nil, nil]}, windows)
      Reduce.fold_rows(out, rows, count, acc, fun)
    end

    # All windows as columns: [elements of a window, windows], both in row-major order.
    defp columns(x, sizes, strides, dilations) do
      rank = tuple_size(sizes)
      if 2 * rank > 8, do: Host.compute()

      windows =
        [Tuple.to_list(sizes), strides, dilations]
        |> Enum.zip()
        |> Enum.with_index()
        |> Enum.reduce(x, fn {{size, stride, dilation}, axis}, x -> unfold(x, axis, size, stride, dilation) end)

      inner = Tuple.product(sizes)
      outer = windows.shape |> Enum.take(rank) |> Enum.product()

      windows
      |> transpose(Enum.to_list(rank..(2 * rank - 1)//1) ++ Enum.to_list(0..(rank - 1)//1))
      |> reshape([inner, outer])
    end

    @doc """
    Adds each element of `source` where its window of the tensor has its extreme; of equal ones the last.

    As in `Nx.BinaryBackend`, positions are those of the padded tensor.
    """
    def window_scatter(operation, %{type: type} = out, tensor, source, init, sizes, options) do
      rank = tuple_size(sizes)
      padding = Enum.map(options[:padding], fn {low, high} -> {low, high, 0} end)
      init_value = %{init | type: tensor.type} |> Data.store(Data.load(init, tensor.type))
      x = Layout.padded(tensor, init_value, padding, tensor.type) |> Types.ordered(tensor.type)
      ones = List.duplicate(1, rank)
      values = columns(x, sizes, options[:strides], ones)
      # The positions of the elements of every window, in the same order.
      shape = x.shape
      positions = range(:i64, Enum.product(shape)) |> reshape(shape) |> columns(sizes, options[:strides], ones)
      at = op(operation, [values], axis: 0, keepdims: true, last: true)
      flat = op("gather_elements", [positions, at], axis: 0) |> reshape([Enum.product(Tuple.to_list(source.shape)), 1])
      base = init |> Data.load(type) |> expand([Enum.product(shape)])
      updates = source |> Data.load(type) |> reshape([hd(flat.shape)])
      sum = op("scatter_nd", [base, flat, updates], mode: :add) |> reshape(shape)
      Data.store(out, unpadded(sum, options[:padding]))
    end

    defp unpadded(x, padding) do
      padding
      |> Enum.with_index()
      |> Enum.reduce(x, fn {{low, high}, axis}, x ->
        slice_axis(x, axis, low, Enum.at(x.shape, axis) - low - high)
      end)
    end
  end
end
