if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Elementwise do
    @moduledoc false
    # One number from the numbers at the same position.

    import Olivine.Backend.Ops, except: [bitcast: 2]
    alias Olivine.Backend.{Bits, Data, Host, Numbers, Special, Types}

    # Nx's name → the graph's operation, for operands of the result's type.
    @arithmetic %{
      add: "add",
      subtract: "sub",
      multiply: "mul",
      divide: "div",
      quotient: "div",
      remainder: "rem",
      pow: "pow",
      atan2: "atan2",
      min: "min",
      max: "max",
      bitwise_and: "and",
      bitwise_or: "or",
      bitwise_xor: "xor",
      left_shift: "shl",
      right_shift: "shr"
    }

    # For operands of their common type; the result is 0 or 1.
    @compare %{
      equal: "eq",
      not_equal: "ne",
      greater: "gt",
      less: "lt",
      greater_equal: "ge",
      less_equal: "le"
    }

    # For operands as booleans.
    @logical %{logical_and: "and", logical_or: "or", logical_xor: "xor"}

    # For an operand of the result's type.
    @unary %{
      exp: "exp",
      expm1: "expm1",
      log: "log",
      log1p: "log1p",
      sigmoid: "sigmoid",
      cos: "cos",
      sin: "sin",
      tan: "tan",
      cosh: "cosh",
      sinh: "sinh",
      tanh: "tanh",
      acos: "acos",
      asin: "asin",
      atan: "atan",
      acosh: "acosh",
      asinh: "asinh",
      atanh: "atanh",
      sqrt: "sqrt",
      rsqrt: "rsqrt",
      erf: "erf",
      abs: "abs",
      negate: "neg",
      bitwise_not: "not",
      sign: "sign",
      ceil: "ceil",
      floor: "floor"
    }

    def binary_names, do: Map.keys(@arithmetic) ++ Map.keys(@compare) ++ Map.keys(@logical)

    def unary_names do
      Map.keys(@unary) ++
        [:round, :cbrt, :erfc, :erf_inv, :count_leading_zeros, :population_count] ++
        [:is_nan, :is_infinity, :conjugate, :real, :imag]
    end

    @doc "A function of two tensors, by Nx's name."
    def binary(name, out, left, right) do
      case {@arithmetic, @compare, @logical} do
        {%{^name => operation}, _, _} -> arithmetic(name, operation, out, left, right)
        {_, %{^name => operation}, _} -> compare(name, operation, out, left, right)
        {_, _, %{^name => operation}} -> Data.store(out, truth(op(operation, [true?(left), true?(right)]), out.type))
      end
    end

    defp arithmetic(name, operation, %{type: type} = out, left, right) do
      {a, b} = {Data.load(left, type), Data.load(right, type)}

      cond do
        Types.complex?(type) -> Data.store(out, Numbers.binary(name, a, b))
        type == {:u, 64} -> Data.store(out, unsigned(name, operation, a, b))
        true -> Data.store(out, op(operation, [a, b]))
      end
    end

    # u64 is held in the bits of i64: what depends on the order or the sign is not the operation of i64.
    defp unsigned(name, operation, a, b) when name in [:min, :max] do
      u64 = {:u, 64}
      op(operation, [Types.ordered(a, u64), Types.ordered(b, u64)]) |> Types.ordered(u64)
    end

    defp unsigned(:right_shift, _, a, b), do: band(shr(a, b), op("not", [shl(-1, sub(64, b))]))
    defp unsigned(:quotient, _, a, b), do: elem(unsigned_divide(a, b), 0)
    defp unsigned(:remainder, _, a, b), do: elem(unsigned_divide(a, b), 1)
    defp unsigned(_name, operation, a, b), do: op(operation, [a, b])

    # Half of a is not negative; the quotient of it, doubled, is one too small at most. A divisor of 2^63 or more
    # goes in once or not at all.
    defp unsigned_divide(a, b) do
      half = band(shr(a, 1), 0x7FFFFFFFFFFFFFFF)
      guess = shl(divide(half, b), 1)
      rest = sub(a, mul(guess, b))
      more = cast(below?(b, rest), :i64)
      quotient = where(lt(b, 0), cast(below?(b, a), :i64), add(guess, more))
      quotient = where(eq(b, 0), 0, quotient)
      {quotient, sub(a, mul(quotient, b))}
    end

    # b ≤ a without signs.
    defp below?(b, a), do: op("le", [Types.ordered(b, {:u, 64}), Types.ordered(a, {:u, 64})])

    defp compare(name, operation, out, left, right) do
      type = Nx.Type.merge(left.type, right.type)
      {a, b} = {Data.load(left, type), Data.load(right, type)}

      result =
        if Types.complex?(type),
          do: Numbers.compare(name, a, b),
          else: op(operation, [Types.ordered(a, type), Types.ordered(b, type)])

      Data.store(out, truth(result, out.type))
    end

    @doc "A function of one tensor, by Nx's name."
    def unary(name, out, tensor)

    def unary(name, out, %{type: {:c, _}} = tensor) when name in [:real, :imag, :abs, :is_nan, :is_infinity] do
      result = Numbers.measure(name, Data.load(tensor))
      Data.store(out, if(result.dtype == :bool, do: truth(result, out.type), else: result))
    end

    def unary(name, %{type: {:c, _} = type} = out, tensor) do
      Data.store(out, Numbers.unary(name, Data.load(tensor, type)))
    end

    def unary(name, out, tensor) when name in [:count_leading_zeros, :population_count] do
      counted = apply(Bits, name, [Data.load(tensor), tensor.type])
      Data.store(out, cast(counted, Types.work(out.type)))
    end

    def unary(name, out, %{type: type} = tensor) when name in [:is_nan, :is_infinity] do
      if Types.float?(type) do
        operation = if name == :is_nan, do: "isnan", else: "isinf"
        Data.store(out, truth(op(operation, [Data.load(tensor)]), out.type))
      else
        Data.store(out, expand(Olivine.Array.literal(0, Types.work(out.type)), Tuple.to_list(out.shape)))
      end
    end

    def unary(name, _out, _tensor) when name in [:conjugate, :real, :imag], do: Host.compute()

    def unary(name, %{type: type} = out, tensor) do
      x = Data.load(tensor, type)

      result =
        cond do
          name in [:cbrt, :erfc, :erf_inv] -> apply(Special, name, [x])
          name in [:ceil, :floor, :round] and Types.integer?(type) -> x
          name == :round -> round_half_away(x)
          # The bits of i64 would have a sign.
          name == :sign and type == {:u, 64} -> cast(ne(x, 0), :i64)
          true -> op(Map.fetch!(@unary, name), [x])
        end

      Data.store(out, result)
    end

    # Graphs round half to even.
    defp round_half_away(x) do
      whole = op("trunc", [x])
      away = ge(op("abs", [sub(x, whole)]), 0.5)
      rounded = where(away, add(whole, op("sign", [x])), whole)
      # Nx rounds to an integer first, which has no −0.
      where(eq(rounded, 0), 0, rounded)
    end

    @doc "Whether elements are not 0."
    def true?(%{type: {:c, _}} = tensor) do
      op("reduce_any", [ne(Data.load(tensor), 0)], axes: [tuple_size(tensor.shape)], keepdims: false)
    end

    def true?(tensor), do: ne(Data.load(tensor), 0)

    @doc "Booleans as the numbers 0 and 1."
    def truth(array, type), do: cast(array, Types.work(type))

    def select(%{type: type} = out, predicate, on_true, on_false) do
      shape = Tuple.to_list(out.shape)
      condition = predicate |> true?() |> expand(shape)
      {a, b} = {Data.load(on_true, type), Data.load(on_false, type)}
      condition = if Types.complex?(type), do: reshape(condition, shape ++ [1]), else: condition
      Data.store(out, where(condition, a, b))
    end

    # A NaN is neither above the minimum nor below the maximum.
    def clip(%{type: type} = out, tensor, min, max) do
      [x, min, max] = for t <- [tensor, min, max], do: t |> Data.load(type) |> Types.ordered(type)
      x = where(op("gt", [x, min]), x, min)
      Data.store(out, where(lt(x, max), x, max) |> Types.ordered(type))
    end

    def as_type(%{type: type} = out, tensor), do: Data.store(out, Data.load(tensor, type))

    def bitcast(_out, %{type: {:c, _}}), do: Host.compute()
    def bitcast(%{type: {:c, _}}, _tensor), do: Host.compute()
    def bitcast(%{type: {_, size}}, _tensor) when size < 8, do: Host.compute()

    def bitcast(%{type: to} = out, %{type: from} = tensor) do
      bits = tensor |> Data.stored() |> to_bits(from)
      Data.wrap(out, from_bits(bits, to))
    end

    # 16 bits are i16 on the way: u16 is held in i32.
    defp to_bits(array, {:u, 16}), do: cast(array, :i16)
    defp to_bits(array, _type), do: array
    defp from_bits(array, {:u, 16}), do: array |> bitcast_16() |> cast(:i32) |> band(0xFFFF)
    defp from_bits(array, type), do: Olivine.Backend.Ops.bitcast(array, Types.stored(type))
    defp bitcast_16(array), do: Olivine.Backend.Ops.bitcast(array, :i16)
  end
end
