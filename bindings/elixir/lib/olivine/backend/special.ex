if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Special do
    @moduledoc false
    # Functions that graphs have no operation for, as expressions of those that they have.

    import Olivine.Backend.Ops
    alias Olivine.Array

    @doc "The cube root: a power, made exact by a step of Newton's method."
    def cbrt(x) do
      in_float(x, fn x ->
        y = mul(op("sign", [x]), op("pow", [op("abs", [x]), 1 / 3]))
        square = mul(y, y)
        better = sub(y, divide(sub(mul(square, y), x), mul(square, 3)))
        # 0 and the infinities would be 0 / 0 and ∞ / ∞.
        fixed = op("or", [eq(x, 0), op("isinf", [x])])
        where(fixed, x, better)
      end)
    end

    # Chebyshev coefficients of ln(erfc(z)·e^(z²)/t) in y = 2t − 1 for t = 2/(2 + z), z ≥ 0; all are below 1e-16
    # relative, the first 12 below 1.1e-8.
    @erfc [
      -1.3026537197817094,
      0.64196979235649026,
      0.019476473204185836,
      -0.0095615147868086316,
      -0.00094659534448203687,
      0.00036683949785276145,
      4.2523324806907772e-5,
      -2.0278578112534243e-5,
      -1.6242900046470255e-6,
      1.3036558355805232e-6,
      1.5626441722066143e-8,
      -8.5238095914926543e-8,
      6.5290544390988515e-9,
      5.0593434955514689e-9,
      -9.9136415649303309e-10,
      -2.2736512229318359e-10,
      9.6467911020155268e-11,
      2.3940380830391147e-12,
      -6.8860275264975534e-12,
      8.9448792730907257e-13,
      3.1309213993429581e-13,
      -1.1270822361367252e-13,
      3.8109052551892321e-16,
      7.106097613609237e-15,
      -1.5230282014571043e-15,
      -9.457494571291234e-17,
      1.210237189224279e-16,
      -2.816663087747177e-17
    ]

    @doc "1 − erf(x), without the cancellation."
    def erfc(x) do
      in_float(x, fn %Array{dtype: dtype} = x ->
        {terms, bits, mask} = if dtype == :f64, do: {28, :i64, -0x8000000}, else: {12, :i32, -0x1000}
        # Beyond 30 the result is 0 in every dtype.
        z = op("min", [op("abs", [x]), 30])
        t = divide(2, add(z, 2))
        series = @erfc |> Enum.take(terms) |> chebyshev(sub(mul(t, 2), 1))
        # z² in two parts, of which the first is exact: its rounding error would be multiplied by the exponential.
        high = z |> bitcast(bits) |> band(mask) |> bitcast(dtype)
        low = mul(sub(z, high), add(z, high))
        upper = mul(t, mul(op("exp", [neg(mul(high, high))]), op("exp", [sub(series, low)])))
        where(lt(x, 0), sub(2, upper), upper)
      end)
    end

    # Clenshaw's recurrence.
    defp chebyshev([first | rest], y) do
      double = mul(y, 2)

      {b1, b2} =
        rest
        |> Enum.reverse()
        |> Enum.reduce({nil, nil}, fn
          c, {nil, nil} -> {Array.literal(c, y.dtype), nil}
          c, {b1, nil} -> {add(mul(double, b1), c), b1}
          c, {b1, b2} -> {add(sub(mul(double, b1), b2), c), b1}
        end)

      add(sub(mul(y, b1), b2), first / 2)
    end

    # M. Giles, Approximating the erfinv function (2010), single precision.
    @central [
      2.81022636e-08,
      3.43273939e-07,
      -3.5233877e-06,
      -4.39150654e-06,
      0.00021858087,
      -0.00125372503,
      -0.00417768164,
      0.246640727,
      1.50140941
    ]
    @tail [
      -0.000200214257,
      0.000100950558,
      0.00134934322,
      -0.00367342844,
      0.00573950773,
      -0.0076224613,
      0.00943887047,
      1.00167406,
      2.83297682
    ]

    @doc "The inverse of erf."
    def erf_inv(x) do
      in_float(x, fn %Array{dtype: dtype} = x ->
        w = neg(op("log", [mul(sub(1, x), add(x, 1))]))
        central = polynomial(@central, sub(w, 2.5))
        tail = polynomial(@tail, sub(op("sqrt", [w]), 3))
        y = mul(where(lt(w, 5), central, tail), x)
        y = if dtype == :f64, do: y |> erf_inv_step(x) |> erf_inv_step(x), else: y
        y = where(eq(x, 1), :infinity, y)
        where(eq(x, -1), :neg_infinity, y)
      end)
    end

    # Newton's method on erf(y) = x.
    defp erf_inv_step(y, x) do
      slope = mul(op("exp", [neg(mul(y, y))]), 2 / :math.sqrt(:math.pi()))
      sub(y, divide(sub(op("erf", [y]), x), slope))
    end

    # f16 and bf16 are computed in f32.
    defp in_float(%Array{dtype: dtype} = x, fun) when dtype in [:f16, :bf16],
      do: x |> cast(:f32) |> fun.() |> cast(dtype)

    defp in_float(x, fun), do: fun.(x)
  end
end
