if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Data do
    @moduledoc false
    # Tensors of Nx as arrays, and back.

    alias Nx.Tensor, as: T
    alias Olivine.{Array, Backend}
    alias Olivine.Backend.{Ops, Types}

    # Up to so many bytes that came from the host are also kept there: indices and sizes are then known without waiting.
    @known 4096

    @doc "The stored array of a tensor, of whatever backend."
    def stored(%T{data: %Backend{array: array}}), do: array
    def stored(%T{} = tensor), do: stored(from_host(tensor, Nx.to_binary(tensor)))

    @doc "The work elements of a tensor as a type."
    def load(%T{type: from} = tensor, to), do: tensor |> stored() |> Types.unpack(from) |> Types.convert(from, to)
    def load(%T{type: type} = tensor), do: tensor |> stored() |> Types.unpack(type)

    @doc "A tensor of work elements of its type."
    def store(out, array), do: wrap(out, Types.pack(array, out.type))

    @doc "A tensor of a stored array with as many elements."
    def wrap(%T{type: type, shape: shape} = out, %Array{} = array) do
      dtype = Types.stored(type)

      if array.dtype != dtype do
        raise Olivine.Error, kind: :bad_input, message: "#{inspect(type)} is stored as #{dtype}, not as #{array.dtype}"
      end

      %{out | data: %Backend{array: Ops.reshape(array, Types.shape(type, shape))}}
    end

    @doc "A tensor of bytes in Nx's layout."
    def from_host(%T{type: {_, size} = type, shape: shape} = out, binary) do
      bytes = if size < 8, do: widen(binary, type), else: held(binary, type)
      array = Array.from_binary(bytes, Types.stored(type), Types.shape(type, shape))
      known = if bit_size(binary) <= 8 * @known, do: binary
      %{out | data: %Backend{array: array, known: known}}
    end

    @doc "The bytes of a tensor in Nx's layout."
    def to_host(%T{data: %Backend{known: known}}) when known != nil, do: known

    def to_host(%T{type: {_, size} = type} = tensor) do
      bytes = tensor |> stored() |> Array.to_binary()
      if size < 8, do: narrow(bytes, type), else: unheld(bytes, type)
    end

    @doc "The numbers of a tensor of integers if they came from the host, or nil."
    def known_integers(number) when is_integer(number), do: [number]

    def known_integers(%T{data: %Backend{known: known}, type: type}) when known != nil, do: integers(known, type)
    def known_integers(%T{data: %Backend{}}), do: nil
    def known_integers(%T{type: type} = tensor), do: tensor |> Nx.to_binary() |> integers(type)

    defp integers(bits, {:u, size}), do: for(<<x::unsigned-native-size(size) <- bits>>, do: x)
    defp integers(bits, {:s, size}), do: for(<<x::signed-native-size(size) <- bits>>, do: x)
    defp integers(_bits, _type), do: nil

    # u16 is held in i32.
    defp held(binary, {:u, 16}), do: for(<<x::16-unsigned-native <- binary>>, into: <<>>, do: <<x::32-native>>)
    defp held(binary, _type), do: binary
    defp unheld(bytes, {:u, 16}), do: for(<<x::32-native <- bytes>>, into: <<>>, do: <<x::16-native>>)
    defp unheld(bytes, _type), do: bytes

    defp widen(bits, {:u, size}), do: for(<<x::unsigned-size(size) <- bits>>, into: <<>>, do: <<x::8>>)
    defp widen(bits, {:s, size}), do: for(<<x::signed-size(size) <- bits>>, into: <<>>, do: <<x::8>>)
    defp narrow(bytes, {_, size}), do: for(<<x::signed-8 <- bytes>>, into: <<>>, do: <<x::size(size)>>)
  end
end
