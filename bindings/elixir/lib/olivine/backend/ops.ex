if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Ops do
    @moduledoc false
    # Graph operations as functions of arrays. A number among the operands is a literal of the other operands' dtype.

    alias Olivine.Array

    @doc "The one result of an operation."
    def op(name, operands, attributes \\ []) do
      [result] = Array.ops(name, arrays(operands), attributes)
      result
    end

    @doc "The results of an operation."
    def ops(name, operands, attributes \\ []), do: Array.ops(name, arrays(operands), attributes)

    defp arrays(operands) do
      # The last array decides: the first operand of `where` is a bool.
      case operands |> Enum.reverse() |> Enum.find(&is_struct(&1, Array)) do
        nil -> operands
        %Array{dtype: dtype} -> Enum.map(operands, &array(&1, dtype))
      end
    end

    defp array(%Array{} = array, _dtype), do: array
    defp array(number, dtype), do: Array.literal(number, dtype)

    def cast(%Array{dtype: dtype} = x, dtype), do: x
    def cast(x, dtype), do: op("cast", [x], to: dtype)

    def bitcast(%Array{dtype: dtype} = x, dtype), do: x
    def bitcast(x, dtype), do: op("bitcast", [x], to: dtype)

    def reshape(%Array{shape: shape} = x, shape), do: x
    def reshape(x, shape), do: op("reshape", [x], dims: shape)

    def expand(%Array{shape: shape} = x, shape), do: x
    def expand(x, shape), do: op("expand", [x], shape: shape)

    def transpose(x, perm) do
      if perm == Enum.to_list(0..(length(perm) - 1)//1), do: x, else: op("transpose", [x], perm: perm)
    end

    def concat([x], _axis), do: x
    def concat(arrays, axis), do: op("concat", arrays, axis: axis)

    @doc "The part of one axis from `start` on, `count` elements `step` apart."
    def slice_axis(%Array{shape: shape} = x, axis, start, count, step \\ 1) do
      if start == 0 and step == 1 and count == Enum.at(shape, axis) do
        x
      else
        stop = start + (count - 1) * step + 1
        op("slice", [x], axes: [axis], starts: [start], ends: [stop], steps: [step])
      end
    end

    def add(a, b), do: op("add", [a, b])
    def sub(a, b), do: op("sub", [a, b])
    def mul(a, b), do: op("mul", [a, b])
    def divide(a, b), do: op("div", [a, b])
    def neg(a), do: op("neg", [a])
    def band(a, b), do: op("and", [a, b])
    def bor(a, b), do: op("or", [a, b])
    def shl(a, b), do: op("shl", [a, b])
    def shr(a, b), do: op("shr", [a, b])
    def eq(a, b), do: op("eq", [a, b])
    def ne(a, b), do: op("ne", [a, b])
    def lt(a, b), do: op("lt", [a, b])
    def ge(a, b), do: op("ge", [a, b])
    def where(condition, a, b), do: op("where", [condition, a, b])

    @doc "`0, 1, …, count - 1`."
    def range(dtype, count), do: op("range", [], dtype: dtype, start: 0, step: 1, count: count)

    @doc "A range along one axis of a rank, of size 1 along the others."
    def range_along(dtype, axis, rank, count) do
      range(dtype, count) |> reshape(List.duplicate(1, rank) |> List.replace_at(axis, count))
    end

    @doc "The polynomial of x whose coefficients come highest first."
    def polynomial([first | rest], %Array{dtype: dtype} = x) do
      Enum.reduce(rest, Array.literal(first, dtype), fn c, sum -> add(mul(sum, x), c) end)
    end
  end
end
