if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Layout do
    @moduledoc false
    # Creation, and the same elements at other positions.

    import Olivine.Backend.Ops, except: [reshape: 2, transpose: 2]
    alias Olivine.Array
    alias Olivine.Backend.{Data, Ops, Types}

    def constant(%{type: type, shape: shape} = out, number, _options) do
      scalar = Nx.BinaryBackend.constant(%{out | shape: {}, names: []}, number, [])
      scalar = Data.from_host(scalar, scalar.data.state)
      if shape == {}, do: %{out | data: scalar.data}, else: fill(out, Data.stored(scalar), type)
    end

    defp fill(out, array, type), do: Data.wrap(out, expand(array, Types.shape(type, out.shape)))

    def eye(%{type: type, shape: shape} = out, _options) do
      rank = tuple_size(shape)
      [m, n] = shape |> Tuple.to_list() |> Enum.take(-2)
      same = eq(Ops.reshape(range(:i32, m), [m, 1]), range(:i32, n))
      ones = Types.convert(cast(same, :u8), {:u, 8}, type)
      # The last axis of complex numbers holds their parts.
      extra = if Types.complex?(type), do: [2], else: []
      ones = Ops.reshape(ones, List.duplicate(1, rank - 2) ++ [m, n] ++ extra)
      Data.store(out, expand(ones, Types.shape(type, shape)))
    end

    def iota(%{type: type, shape: shape} = out, nil, _options) do
      Data.store(out, counting(type, Nx.size(shape)))
    end

    def iota(%{type: type, shape: shape} = out, axis, _options) do
      count = elem(shape, axis)
      extra = if Types.complex?(type), do: [2], else: []
      sizes = List.duplicate(1, tuple_size(shape)) |> List.replace_at(axis, count)
      Data.store(out, type |> counting(count) |> Ops.reshape(sizes ++ extra) |> expand(Types.shape(type, shape)))
    end

    # Counted in integers: an f16 cannot count far, and is rounded once.
    defp counting(type, count), do: range(:i64, count) |> Types.convert({:s, 64}, type)

    def reshape(out, tensor), do: Data.wrap(out, Data.stored(tensor))
    def squeeze(out, tensor, _axes), do: Data.wrap(out, Data.stored(tensor))

    def broadcast(%{type: type} = out, tensor, shape, axes) do
      sizes = List.duplicate(1, tuple_size(shape))

      sizes =
        axes
        |> Enum.with_index()
        |> Enum.reduce(sizes, fn {axis, i}, s -> List.replace_at(s, axis, elem(tensor.shape, i)) end)

      x = tensor |> Data.stored() |> Ops.reshape(Types.shape(type, List.to_tuple(sizes)))
      fill(out, x, type)
    end

    def transpose(out, tensor, axes) do
      Data.wrap(out, tensor |> Data.stored() |> Ops.transpose(whole(tensor, axes)))
    end

    # A permutation of a tensor's axes, and of the parts of complex numbers after them.
    defp whole(%{type: type, shape: shape}, axes) do
      if Types.complex?(type), do: axes ++ [tuple_size(shape)], else: axes
    end

    def reverse(out, tensor, axes), do: Data.wrap(out, op("reverse", [Data.stored(tensor)], axes: axes))

    def concatenate(%{type: type} = out, tensors, axis) do
      Data.store(out, tensors |> Enum.map(&Data.load(&1, type)) |> concat(axis))
    end

    def stack(%{type: type} = out, tensors, axis) do
      Data.store(out, op("stack", Enum.map(tensors, &Data.load(&1, type)), axis: axis))
    end

    def pad(%{type: type} = out, tensor, value, config) do
      Data.store(out, padded(tensor, value, config, type))
    end

    @doc "Work elements of a padded tensor as a type: before and after each axis, and between its elements."
    def padded(tensor, value, config, type) do
      x = Data.load(tensor, type)
      extra = if Types.complex?(type), do: [{0, 0, 0}], else: []
      config = config ++ extra

      cond do
        Enum.all?(config, &(&1 == {0, 0, 0})) ->
          x

        number = literal(value, type) ->
          pad_all(x, config, number)

        true ->
          # Where the padding of a mask is, the value is.
          mask = Array.literal(1, :u8) |> expand(x.shape) |> pad_all(config, 0)
          value = Data.load(value, type)
          where(ne(mask, 0), pad_all(x, config, 0), value)
      end
    end

    # The number of a scalar that came from the host, if an attribute can hold it: attributes are f64.
    defp literal(%{type: value_type} = value, type) do
      known = if match?(%Olivine.Backend{}, value.data), do: value.data.known, else: Nx.to_binary(value)

      cond do
        known == nil or Types.complex?(type) or Types.complex?(value_type) -> nil
        match?({:f, 8}, type) -> nil
        true -> value |> Map.put(:data, %Nx.BinaryBackend{state: known}) |> Nx.to_number() |> attribute(type)
      end
    end

    defp attribute(number, {kind, _}) when kind in [:f, :bf], do: number
    defp attribute(number, _type) when is_integer(number) and abs(number) <= 0x20000000000000, do: number
    defp attribute(_number, _type), do: nil

    defp pad_all(x, config, number) do
      x =
        config
        |> Enum.with_index()
        |> Enum.reduce(x, fn
          {{_, _, 0}, _axis}, x -> x
          {{_, _, interior}, axis}, x -> spread(x, axis, interior, number)
        end)

      pads = for {low, high, _} <- config, do: {low, high}
      if Enum.all?(pads, &(&1 == {0, 0})), do: x, else: op("pad", [x], pads: pads, mode: :constant, value: number)
    end

    # Padding after every element of an axis but the last.
    defp spread(%Array{shape: shape} = x, axis, interior, number) do
      size = Enum.at(shape, axis)
      {before, [_ | behind]} = Enum.split(shape, axis)
      outer = Enum.product(before)
      inner = Enum.product(behind)
      pads = [{0, 0}, {0, 0}, {0, interior}, {0, 0}]

      x
      |> Ops.reshape([outer, size, 1, inner])
      |> then(&op("pad", [&1], pads: pads, mode: :constant, value: number))
      |> Ops.reshape(before ++ [size * (interior + 1)] ++ behind)
      |> slice_axis(axis, 0, size * (interior + 1) - interior)
    end

    @doc "Parts of the first axis, one after another; the last is filled up from the start unless it is dropped."
    def to_batched(out, tensor, options) do
      batch = elem(out.shape, 0)
      size = elem(tensor.shape, 0)
      full = div(size, batch)
      rest = rem(size, batch)
      x = Data.stored(tensor)
      last = if rest != 0 and options[:leftover] == :repeat, do: full, else: full - 1

      Stream.map(0..last//1, fn
        ^full ->
          Data.wrap(out, concat([slice_axis(x, 0, full * batch, rest), slice_axis(x, 0, 0, batch - rest)], 0))

        i ->
          Data.wrap(out, slice_axis(x, 0, i * batch, batch))
      end)
    end
  end
end
