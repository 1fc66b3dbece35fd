if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Index do
    @moduledoc false
    # Elements at positions. A position out of range raises where it came from the host; one that the device computed is
    # clamped when it reads, and dropped when it writes.

    import Olivine.Backend.Ops
    alias Olivine.Backend.{Data, Types}

    def slice(out, tensor, starts, lengths, strides) do
      x = Data.stored(tensor)

      x =
        [starts, lengths, strides]
        |> Enum.zip()
        |> Enum.with_index()
        |> Enum.reduce(x, fn {{start, length, stride}, axis}, x ->
          most = Enum.at(x.shape, axis) - length
          count = div(length - 1, stride) + 1

          case Data.known_integers(start) do
            [start] -> slice_axis(x, axis, start |> max(0) |> min(most), count, stride)
            nil -> op("gather", [x, positions(start, most, count, stride)], axis: axis)
          end
        end)

      Data.wrap(out, x)
    end

    # Where a slice begins that the device computes, and every stride after it.
    defp positions(start, most, count, stride) do
      add(clamped(start, most), mul(range(:i64, count), stride))
    end

    defp clamped(start, most) do
      start |> Data.load({:s, 64}) |> reshape([]) |> then(&op("min", [op("max", [&1, 0]), most]))
    end

    @doc "A tensor with a part of it replaced."
    def put_slice(%{type: type} = out, tensor, starts, slice) do
      x = Data.load(tensor, type)
      part = Data.load(slice, type)
      rank = tuple_size(out.shape)

      {part, mask} =
        starts
        |> Enum.with_index()
        |> Enum.reduce({part, nil}, fn {start, axis}, {part, mask} ->
          {size, length} = {Enum.at(x.shape, axis), Enum.at(part.shape, axis)}

          if size == length do
            {part, mask}
          else
            {part, inside} = place(part, axis, rank, start, size, length)
            {part, if(mask, do: op("and", [mask, inside]), else: inside)}
          end
        end)

      cond do
        mask == nil -> Data.store(out, part)
        Types.complex?(type) -> Data.store(out, where(reshape(mask, mask.shape ++ [1]), part, x))
        true -> Data.store(out, where(mask, part, x))
      end
    end

    # The part as long as the tensor along one axis, and where it is inside.
    defp place(part, axis, rank, start, size, length) do
      at = range_along(:i64, axis, rank, size)

      {offset, part} =
        case Data.known_integers(start) do
          [start] ->
            start = start |> max(0) |> min(size - length)
            pads = List.duplicate({0, 0}, length(part.shape)) |> List.replace_at(axis, {start, size - length - start})
            {start, op("pad", [part], pads: pads, mode: :constant, value: 0)}

          nil ->
            start = clamped(start, size - length)
            from = op("min", [op("max", [sub(range(:i64, size), start), 0]), length - 1])
            {start, op("gather", [part, from], axis: axis)}
        end

      distance = sub(at, offset)
      {part, op("and", [ge(distance, 0), lt(distance, length)])}
    end

    def gather(out, tensor, indices, options) do
      {x, axes, _} = axes_first(Data.stored(tensor), options[:axes])
      check(indices, tensor.shape, axes, tuple_size(tensor.shape))
      Data.wrap(out, op("gather_nd", [x, positions(indices)], batch_dims: 0))
    end

    def take(out, tensor, indices, options) do
      axis = options[:axis]
      check(indices, {elem(tensor.shape, axis)}, [0], 1)
      Data.wrap(out, op("gather", [Data.stored(tensor), positions(indices)], axis: axis))
    end

    def take_along_axis(out, %{type: type} = tensor, indices, options) do
      axis = options[:axis]
      check(indices, {elem(tensor.shape, axis)}, [0], 1)
      index = positions(indices)
      x = Data.stored(tensor)

      index =
        if Types.complex?(type), do: index |> reshape(index.shape ++ [1]) |> expand(index.shape ++ [2]), else: index

      Data.wrap(out, op("gather_elements", [x, index], axis: axis))
    end

    def indexed_add(out, target, indices, updates, options), do: scatter(:add, out, target, indices, updates, options)

    def indexed_put(out, target, indices, updates, options),
      do: scatter(:replace, out, target, indices, updates, options)

    defp scatter(mode, %{type: type} = out, target, indices, updates, options) do
      {x, axes, back} = axes_first(Data.load(target, type), options[:axes])
      check(indices, target.shape, axes, tuple_size(target.shape))
      index = positions(indices)
      tail = Enum.drop(x.shape, length(axes))
      values = updates |> Data.load(type) |> reshape(Enum.drop(index.shape, -1) ++ tail)
      Data.store(out, op("scatter_nd", [x, index, values], mode: mode) |> transpose(back))
    end

    # The indexed axes in front, and the permutation back.
    defp axes_first(x, axes) do
      all = Enum.to_list(0..(length(x.shape) - 1)//1)
      axes = axes || all
      perm = axes ++ (all -- axes)
      back = perm |> Enum.with_index() |> Enum.sort() |> Enum.map(&elem(&1, 1))
      {transpose(x, perm), axes, back}
    end

    defp positions(indices), do: Data.load(indices, {:s, 64})

    # Raises as Nx.BinaryBackend does, for indices that came from the host.
    defp check(indices, shape, axes, rank) do
      sizes = Enum.map(axes, &elem(shape, &1))
      shown = (axes ++ (Enum.to_list(0..(rank - 1)//1) -- axes)) |> Enum.map(&elem(shape, &1)) |> List.to_tuple()

      for numbers <- List.wrap(Data.known_integers(indices)) |> Enum.chunk_every(length(sizes)),
          {{index, size}, axis} <- numbers |> Enum.zip(sizes) |> Enum.with_index(),
          index < 0 or index >= size do
        raise ArgumentError, "index #{index} is out of bounds for axis #{axis} in shape #{inspect(shown)}"
      end
    end
  end
end
