if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Numbers do
    @moduledoc false
    # Arithmetic of complex numbers: arrays whose last axis is (re, im).

    import Olivine.Backend.Ops, except: [divide: 2]
    import Olivine.Backend.Types, only: [part: 2, pair: 2]
    alias Olivine.Array
    alias Olivine.Backend.Host

    @doc "A function of two arrays of complex numbers, by Nx's name."
    def binary(:add, a, b), do: add(a, b)
    def binary(:subtract, a, b), do: sub(a, b)
    def binary(:multiply, a, b), do: multiply(a, b)
    def binary(:divide, a, b), do: divide(a, b)
    def binary(:pow, a, b), do: power(a, b)
    def binary(_name, _a, _b), do: Host.compute()

    # aᵇ = e^(b·ln a), but 0⁰ is 1 and any other power of 0 is 0.
    defp power(a, b) do
      zero = op("reduce_all", [eq(a, 0)], axes: [length(a.shape) - 1], keepdims: true)
      none = op("reduce_all", [eq(b, 0)], axes: [length(b.shape) - 1], keepdims: true)
      general = unary(:exp, multiply(b, unary(:log, a)))
      where(none, constant(1, a), where(zero, constant(0, a), general))
    end

    # A real number as one complex number that broadcasts.
    defp constant(number, like), do: Array.literal(number, like.dtype) |> then(&pair(&1, Array.literal(0, like.dtype)))

    def multiply(a, b) do
      {{ar, ai}, {br, bi}} = {parts(a), parts(b)}
      pair(sub(mul(ar, br), mul(ai, bi)), add(mul(ar, bi), mul(ai, br)))
    end

    def divide(a, b) do
      {{ar, ai}, {br, bi}} = {parts(a), parts(b)}
      size = add(mul(br, br), mul(bi, bi))
      re = Olivine.Backend.Ops.divide(add(mul(ar, br), mul(ai, bi)), size)
      im = Olivine.Backend.Ops.divide(sub(mul(ai, br), mul(ar, bi)), size)
      pair(re, im)
    end

    @doc "A comparison that complex numbers have, as bool."
    def compare(:equal, a, b), do: op("reduce_all", [eq(a, b)], last_axis(a, b))
    def compare(:not_equal, a, b), do: op("reduce_any", [ne(a, b)], last_axis(a, b))
    def compare(_name, _a, _b), do: Host.compute()

    @doc "A complex function of one array, by Nx's name."
    def unary(:negate, a), do: neg(a)
    def unary(:conjugate, a), do: pair(part(a, 0), neg(part(a, 1)))

    def unary(:exp, a) do
      {re, im} = parts(a)
      size = op("exp", [re])
      pair(mul(size, op("cos", [im])), mul(size, op("sin", [im])))
    end

    def unary(:log, a) do
      {re, im} = parts(a)
      pair(op("log", [size(re, im)]), op("atan2", [im, re]))
    end

    def unary(:sin, a) do
      {re, im} = parts(a)
      pair(mul(op("sin", [re]), op("cosh", [im])), mul(op("cos", [re]), op("sinh", [im])))
    end

    def unary(:cos, a) do
      {re, im} = parts(a)
      pair(mul(op("cos", [re]), op("cosh", [im])), neg(mul(op("sin", [re]), op("sinh", [im]))))
    end

    def unary(:sinh, a) do
      {re, im} = parts(a)
      pair(mul(op("sinh", [re]), op("cos", [im])), mul(op("cosh", [re]), op("sin", [im])))
    end

    def unary(:cosh, a) do
      {re, im} = parts(a)
      pair(mul(op("cosh", [re]), op("cos", [im])), mul(op("sinh", [re]), op("sin", [im])))
    end

    # The root whose real part is not negative. 0 has no larger part to divide by.
    def unary(:sqrt, a) do
      {re, im} = parts(a)
      large = op("sqrt", [mul(add(op("abs", [re]), size(re, im)), 0.5)])
      small = where(eq(large, 0), 0, Olivine.Backend.Ops.divide(op("abs", [im]), mul(large, 2)))
      positive = ge(re, 0)
      signed = where(lt(im, 0), neg(where(positive, small, large)), where(positive, small, large))
      pair(where(positive, large, small), signed)
    end

    def unary(:tan, a), do: divide(unary(:sin, a), unary(:cos, a))
    def unary(:tanh, a), do: divide(unary(:sinh, a), unary(:cosh, a))
    def unary(:rsqrt, a), do: divide(constant(1, a), unary(:sqrt, a))
    def unary(:expm1, a), do: sub(unary(:exp, a), constant(1, a))
    def unary(:log1p, a), do: unary(:log, add(a, constant(1, a)))
    def unary(:sigmoid, a), do: divide(constant(1, a), add(unary(:exp, neg(a)), constant(1, a)))
    def unary(_name, _a), do: Host.compute()

    @doc "The product over the first axis, by halves."
    def product(%Array{shape: [1 | rest]} = a), do: reshape(a, rest)

    def product(%Array{shape: [count | _]} = a) do
      half = div(count, 2)
      both = multiply(slice_axis(a, 0, 0, half), slice_axis(a, 0, half, half))
      odd = if rem(count, 2) == 1, do: [slice_axis(a, 0, count - 1, 1)], else: []
      product(concat([both | odd], 0))
    end

    @doc "A real number or a truth of each complex number, by Nx's name."
    def measure(:real, a), do: part(a, 0)
    def measure(:imag, a), do: part(a, 1)
    def measure(:abs, a), do: size(part(a, 0), part(a, 1))
    def measure(:is_nan, a), do: op("reduce_any", [op("isnan", [a])], last_axis(a, a))
    def measure(:is_infinity, a), do: op("reduce_any", [op("isinf", [a])], last_axis(a, a))

    # The larger part is taken out, so that no square overflows; 0 has no larger part.
    defp size(re, im) do
      {re, im} = {op("abs", [re]), op("abs", [im])}
      {high, low} = {op("max", [re, im]), op("min", [re, im])}
      ratio = where(eq(high, 0), 0, Olivine.Backend.Ops.divide(low, high))
      mul(high, op("sqrt", [add(mul(ratio, ratio), 1)]))
    end

    defp parts(a), do: {part(a, 0), part(a, 1)}

    defp last_axis(a, b), do: [axes: [max(length(a.shape), length(b.shape)) - 1], keepdims: false]
  end
end
