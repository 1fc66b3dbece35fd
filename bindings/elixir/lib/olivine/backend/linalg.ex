if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.LinAlg do
    @moduledoc false
    # Factorisations, one step of all matrices of a batch at a time. The number of the step is an input of its graph, so
    # that every step is the same executable.

    import Olivine.Backend.Ops
    alias Olivine.Array
    alias Olivine.Backend.{Data, Host, Types}

    @doc "A = P·L·U with partial pivoting."
    def lu({%{type: type} = p, l, u}, tensor, options) do
      if Types.complex?(l.type), do: Host.compute()
      n = elem(tensor.shape, tuple_size(tensor.shape) - 1)
      a = tensor |> Data.load(l.type) |> reshape([:erlang.div(Nx.size(tensor), n * n), n, n])
      batch = hd(a.shape)
      order = expand(range(:i64, n), [batch, n])

      {a, order} =
        Enum.reduce(0..(n - 2)//1, {a, order}, fn step, {a, order} ->
          {a, order} = lu_step(a, order, number(step), n)
          {Array.eval(a), Array.eval(order)}
        end)

      lower = add(op("trilu", [a], part: :lower, diagonal: -1), identity(a.dtype, n))
      upper = op("trilu", [a], part: :upper, diagonal: 0)
      # Row i of the permuted matrix is row order[i]: P has a one there, in column i.
      rows = eq(reshape(order, [batch, n, 1]), range(:i64, n))
      permutation = rows |> transpose([0, 2, 1]) |> cast(:u8) |> Types.convert({:u, 8}, type)

      {Data.store(p, permutation), Data.store(l, no_small(lower, options[:eps])),
       Data.store(u, no_small(upper, options[:eps]))}
    end

    defp lu_step(a, order, step, n) do
      {row, column} = {reshape(range(:i64, n), [n, 1]), range(:i64, n)}
      below = op("gt", [row, step])
      # The largest at or below the diagonal, by magnitude.
      candidates = a |> column(step) |> then(&op("abs", [&1]))
      candidates = where(lt(row, step), -1, candidates)
      pivot = op("argmax", [candidates], axis: 1, keepdims: true, last: false)
      swapped = where(eq(row, step), pivot, where(eq(row, pivot), step, row))
      order = op("gather_elements", [order, reshape(swapped, order.shape)], axis: 1)
      a = op("gather_elements", [a, expand(swapped, a.shape)], axis: 1)
      pivot_row = op("gather", [a, reshape(step, [1])], axis: 1)
      factor = divide(column(a, step), op("gather", [pivot_row, reshape(step, [1])], axis: 2))
      reduced = sub(a, mul(factor, pivot_row))
      inside = where(eq(column, step), expand(factor, a.shape), where(op("gt", [column, step]), reduced, a))
      {where(below, inside, a), order}
    end

    defp column(a, step), do: op("gather", [a, reshape(step, [1])], axis: 2)

    defp number(step), do: Array.from_binary(<<step::64-native>>, :i64, [])

    defp identity(dtype, n), do: eq(reshape(range(:i32, n), [n, 1]), range(:i32, n)) |> cast(dtype)

    defp no_small(x, eps), do: where(lt(op("abs", [x]), eps), 0, x)

    @doc "X of A·X = B, or X·A = B, for triangular A."
    def triangular_solve(%{type: type} = out, a, b, options) do
      if Types.complex?(type), do: Host.compute()
      n = elem(a.shape, tuple_size(a.shape) - 1)
      batch = div(Nx.size(a), n * n)
      left = !!options[:left_side]
      vector = tuple_size(b.shape) == tuple_size(a.shape) - 1
      turned = options[:transform_a] == :transpose
      # X·A = B is Aᵀ·Xᵀ = Bᵀ, and the transpose of a lower triangle is an upper one.
      x = a |> Data.load(type) |> reshape([batch, n, n])
      x = if turned == left, do: transpose(x, [0, 2, 1]), else: x
      lower = !!options[:lower] == (turned != left)
      refuse_singular(x, n)
      columns = div(Nx.size(b), batch * n)
      y = Data.load(b, type)
      across = not left and not vector

      y =
        if across, do: y |> reshape([batch, columns, n]) |> transpose([0, 2, 1]), else: reshape(y, [batch, n, columns])

      solved = substitute(x, y, n, lower)
      solved = if across, do: transpose(solved, [0, 2, 1]), else: solved
      Data.store(out, solved)
    end

    # One unknown after another: from the first of a lower triangle, from the last of an upper one.
    defp substitute(a, b, n, lower) do
      zeros = expand(Array.literal(0, b.dtype), b.shape)
      steps = if lower, do: 0..(n - 1)//1, else: (n - 1)..0//-1

      Enum.reduce(steps, zeros, fn step, x ->
        at = reshape(number(step), [1])
        row = op("gather", [a, at], axis: 1)
        known = op("matmul", [row, x], epilogue: nil)
        value = divide(sub(op("gather", [b, at], axis: 1), known), op("gather", [row, at], axis: 2))
        Array.eval(where(eq(reshape(range(:i64, n), [n, 1]), at), value, x))
      end)
    end

    defp refuse_singular(a, n) do
      diagonal = where(ne(identity(:i32, n), 0), a, 1)
      singular = op("reduce_any", [eq(diagonal, 0)], axes: [0, 1, 2], keepdims: false)
      if Array.to_binary(cast(singular, :u8)) == <<1>>, do: raise(ArgumentError, "can't solve for singular matrix")
    end
  end
end
