if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Types do
    @moduledoc false
    # How Nx's types are held in Olivine's dtypes.
    #
    # A tensor is *stored* in one dtype and computed in another, its *work* dtype; they differ for f8 alone. u16 is held
    # in i32, u64 in the bits of i64, u2 and u4 in u8, s2 and s4 in i8, and complex numbers as pairs in a last axis.

    import Olivine.Backend.Ops
    alias Olivine.Array

    @two_to_63 9_223_372_036_854_775_808.0
    @two_to_64 18_446_744_073_709_551_616.0

    @stored %{
      {:u, 2} => :u8,
      {:u, 4} => :u8,
      {:u, 8} => :u8,
      {:u, 16} => :i32,
      {:u, 32} => :u32,
      {:u, 64} => :i64,
      {:s, 2} => :i8,
      {:s, 4} => :i8,
      {:s, 8} => :i8,
      {:s, 16} => :i16,
      {:s, 32} => :i32,
      {:s, 64} => :i64,
      {:f, 8} => :u8,
      {:f, 16} => :f16,
      {:bf, 16} => :bf16,
      {:f, 32} => :f32,
      {:f, 64} => :f64,
      {:c, 64} => :f32,
      {:c, 128} => :f64
    }

    @doc "The dtype a type is stored in."
    def stored(type) do
      case @stored do
        %{^type => dtype} -> dtype
        _ -> raise ArgumentError, "Olivine.Backend has no tensors of type #{inspect(type)}"
      end
    end

    @doc "The dtype a type is computed in."
    def work({:f, 8}), do: :f16
    def work(type), do: stored(type)

    @doc "The sizes of the array that holds a tensor."
    def shape({:c, _}, shape), do: Tuple.to_list(shape) ++ [2]
    def shape(_type, shape), do: Tuple.to_list(shape)

    def complex?({kind, _}), do: kind == :c
    def float?({kind, _}), do: kind in [:f, :bf]
    def integer?({kind, _}), do: kind in [:s, :u]

    @doc "Work elements of a stored array."
    def unpack(array, {:f, 8}), do: array |> cast(:i16) |> shl(8) |> bitcast(:f16)
    def unpack(array, _type), do: array

    @doc "The stored array of work elements that may not fit the type: integers drop bits, f8 drops precision, as in Nx."
    def pack(array, {:f, 8}), do: array |> bitcast(:i16) |> shr(8) |> cast(:u8)
    def pack(array, {:u, 16}), do: band(array, 0xFFFF)
    def pack(array, {:u, 4}), do: band(array, 0xF)
    def pack(array, {:u, 2}), do: band(array, 0x3)
    def pack(array, {:s, 4}), do: array |> shl(4) |> shr(4)
    def pack(array, {:s, 2}), do: array |> shl(6) |> shr(6)
    def pack(array, _type), do: array

    @doc "The same numbers as another type: work elements of `from` to work elements of `to`."
    def convert(array, type, type), do: array
    def convert(array, {:c, _}, {:c, _} = to), do: cast(array, work(to))
    def convert(array, {:c, _} = from, to), do: array |> part(0) |> convert(real(from), to)

    def convert(array, from, {:c, _} = to) do
      re = convert(array, from, real(to))
      column = re.shape ++ [1]
      zero = expand(Array.literal(0, re.dtype), column)
      concat([reshape(re, column), zero], length(re.shape))
    end

    def convert(array, {:u, 64}, {kind, _} = to) when kind in [:f, :bf] do
      # The numbers from 2^63 on have the sign bit. f16 cannot hold 2^64, f32 can.
      wide = if to == {:f, 64}, do: :f64, else: :f32
      x = cast(array, wide)
      where(lt(array, 0), add(x, @two_to_64), x) |> cast(work(to))
    end

    def convert(array, {kind, _}, {:u, 64}) when kind in [:f, :bf] do
      wide = if array.dtype == :f64, do: array, else: cast(array, :f32)
      large = cast(sub(wide, @two_to_64), :i64)
      large = where(ge(wide, @two_to_64), -1, large)
      small = where(eq(wide, :neg_infinity), 0, cast(wide, :i64))
      where(ge(wide, @two_to_63), large, small)
    end

    def convert(array, _from, to), do: array |> cast(work(to)) |> wrap(to)

    # Work elements that the type can hold.
    defp wrap(array, {:f, 8} = type), do: array |> pack(type) |> unpack(type)
    defp wrap(array, type), do: pack(array, type)

    @doc "The real (0) or imaginary (1) part of an array of complex numbers."
    def part(%Array{shape: shape} = array, index) do
      axis = length(shape) - 1
      array |> slice_axis(axis, index, 1) |> reshape(Enum.drop(shape, -1))
    end

    @doc "An array of complex numbers from its parts."
    def pair(re, im) do
      rank = length(re.shape)
      column = re.shape ++ [1]
      concat([reshape(re, column), reshape(expand(im, re.shape), column)], rank)
    end

    @doc "The type of the parts of a complex type."
    def real({:c, size}), do: {:f, div(size, 2)}
    def real(type), do: type

    @doc """
    i64 elements whose signed order is the unsigned order of u64; other types are as they are. It is its own inverse.
    """
    def ordered(array, {:u, 64}), do: op("xor", [array, -@two_to_63])
    def ordered(array, _type), do: array
  end
end
