defmodule Olivine.ArrayTest do
  use ExUnit.Case, async: true

  import Olivine.Test.Numbers
  alias Olivine.Array

  doctest Olivine.Array

  test "operations with attributes, several results and none" do
    x = Array.from_binary(f32([3.0, 1.0, 2.0]), :f32, [3])
    [values, at] = Array.ops("top_k", [x], k: 2, axis: 0, largest: true)
    assert from_f32(Array.to_binary(values)) == [3.0, 2.0]
    assert Array.to_binary(at) == <<0::64-native, 2::64-native>>
    assert at.dtype == :i64 and at.shape == [2]

    assert Array.op("range", [], dtype: :i32, start: 5, step: -2, count: 3) |> Array.to_binary() |> from_s32() == [
             5,
             3,
             1
           ]

    assert Array.literal(:neg_infinity, :f32) |> Array.to_binary() == <<0xFF800000::32-native>>
  end

  test "what is refused raises with the operation's name" do
    x = Array.from_binary(f32([1.0, 2.0]), :f32, [2])
    assert_raise Olivine.Error, ~r/unknown operation/, fn -> Array.op("no_such_op", [x]) end
    assert_raise Olivine.Error, ~r/reduce_sum/, fn -> Array.op("reduce_sum", [x], axes: [5], keepdims: false) end
    assert_raise Olivine.Error, ~r/dtypes differ/, fn -> Array.op("add", [x, Array.literal(1, :i32)]) end
    assert %Olivine.Error{kind: :size_mismatch} = catch_error(Array.from_binary("abc", :f32, [2]))
    assert %Olivine.Error{kind: :bad_input} = catch_error(Array.from_binary("abc", :f33, [2]))
    assert %Olivine.Error{kind: :bad_input} = catch_error(Array.from_binary("abc", :u8, [-3]))
  end

  test "a chain of thousands of operations" do
    x = Array.from_binary(f32([0.0, 1.0]), :f32, [2])
    one = Array.from_binary(f32([1.0]), :f32, [1])
    y = Enum.reduce(1..3000, x, fn _, x -> Array.op("add", [x, one]) end)
    assert from_f32(Array.to_binary(y)) == [3000.0, 3001.0]
    # Every operation doubles the paths to the first.
    y = Enum.reduce(1..100, one, fn _, x -> Array.op("max", [x, x]) end)
    assert from_f32(Array.to_binary(y)) == [1.0]
  end

  test "arrays are shared between processes" do
    x = Array.from_binary(f32([2.0]), :f32, [1])
    y = Array.op("square", [x])
    results = 1..50 |> Task.async_stream(fn _ -> Array.to_binary(Array.op("square", [y])) end, max_concurrency: 50)
    assert Enum.all?(results, &(&1 == {:ok, f32([16.0])}))
  end
end
