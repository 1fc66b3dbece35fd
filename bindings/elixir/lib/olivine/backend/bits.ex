if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Bits do
    @moduledoc false
    # Counting bits of integers, by additions of fields.

    import Olivine.Backend.Ops
    alias Olivine.Array

    @doc "Bits that are 1, as u32."
    def population_count(array, {_, 64}) do
      {high, low} = words(array)
      add(count(high), count(low))
    end

    def population_count(array, {_, size}), do: array |> word(size) |> count()

    @doc "Zeros above the highest 1, as u32."
    def count_leading_zeros(array, {_, 64}) do
      {high, low} = words(array)
      where(eq(high, 0), add(zeros(low), 32), zeros(high))
    end

    def count_leading_zeros(array, {_, size}), do: array |> word(size) |> zeros() |> sub(32 - size)

    # The bits of an integer in the low end of u32.
    defp word(array, 32), do: bitcast(array, :u32)
    defp word(array, size), do: array |> cast(:u32) |> band(2 ** size - 1)

    defp words(%Array{dtype: :i64} = array), do: {array |> shr(32) |> cast(:u32), cast(array, :u32)}

    defp count(x) do
      x = sub(x, band(shr(x, 1), 0x55555555))
      x = add(band(x, 0x33333333), band(shr(x, 2), 0x33333333))
      x = band(add(x, shr(x, 4)), 0x0F0F0F0F)
      shr(mul(x, 0x01010101), 24)
    end

    # Every bit below the highest 1 becomes 1.
    defp zeros(x) do
      filled = Enum.reduce([1, 2, 4, 8, 16], x, fn by, x -> bor(x, shr(x, by)) end)
      sub(32, count(filled))
    end
  end
end
