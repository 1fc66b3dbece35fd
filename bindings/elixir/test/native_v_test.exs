defmodule Olivine.NativeVTest do
  # The table of the contract, row by row, with every error.
  use ExUnit.Case, async: true

  import Olivine.Test.Numbers
  alias Olivine.NativeV, as: V

  defp up(binary) do
    {:ok, buffer} = V.buf_upload(binary)
    buffer
  end

  defp zeros(bytes) do
    {:ok, buffer} = V.buf_alloc(bytes)
    buffer
  end

  defp down(buffer) do
    {:ok, binary} = V.buf_download(buffer)
    binary
  end

  defp close(got, expected) do
    assert length(got) == length(expected)

    for {a, b} <- Enum.zip(got, expected) do
      assert abs(a - b) <= 1.0e-5 * max(1.0, abs(b)), "#{inspect(got)} is not #{inspect(expected)}"
    end
  end

  describe "buffers" do
    test "are zeros when they are allocated" do
      for bytes <- [0, 1, 3, 4, 255, 256, 257, 70_000], do: assert(down(zeros(bytes)) == :binary.copy(<<0>>, bytes))
    end

    test "hold what was uploaded" do
      for bytes <- [0, 1, 3, 4, 1000, 1_000_000] do
        data = :crypto.strong_rand_bytes(bytes)
        buffer = up(data)
        assert V.buf_byte_size(buffer) == {:ok, bytes}
        assert down(buffer) == data
      end
    end

    test "are overwritten as a whole" do
      buffer = up("abcdefgh")
      assert V.buf_upload_into(buffer, "12345678") == :ok
      assert down(buffer) == "12345678"
      assert V.buf_upload_into(up(""), "") == :ok
    end

    test "are not overwritten by a binary of another size" do
      buffer = up("abcd")
      for data <- ["", "abc", "abcde"], do: assert(V.buf_upload_into(buffer, data) == {:error, :size_mismatch})
      assert down(buffer) == "abcd"
    end

    test "have a size that memory has" do
      assert {:error, :bad_input, message} = V.buf_alloc(-1)
      assert message =~ "-1"
      assert {:error, :bad_input, _} = V.buf_alloc(2 ** 64)
      assert {:error, :bad_input, _} = V.buf_alloc(2 ** 10_000)
      assert {:error, :out_of_memory, _} = V.buf_alloc(2 ** 62)
      assert {:error, :out_of_memory, _} = V.buf_alloc(2 ** 47)
    end
  end

  describe "arguments of the wrong type raise" do
    test "for sizes" do
      for bad <- [1.0, :four, "4", nil, [4], {4}] do
        assert_raise ArgumentError, fn -> V.buf_alloc(bad) end
        b = zeros(16)
        assert_raise ArgumentError, fn -> V.apply_binary(b, b, b, bad, 0, :builtin) end
        assert_raise ArgumentError, fn -> V.apply_binary(b, b, b, 4, bad, :builtin) end
        assert_raise ArgumentError, fn -> V.apply_unary(b, b, bad, 0, :builtin) end
        assert_raise ArgumentError, fn -> V.matmul(b, b, b, 1, bad, 1, :builtin) end
        assert_raise ArgumentError, fn -> V.reduce_axis(b, b, 1, bad, 1, 0, :builtin) end
        assert_raise ArgumentError, fn -> V.transpose_2d(b, b, bad, 1, :builtin) end
      end
    end

    test "for data" do
      b = zeros(1)

      for bad <- [1, :data, nil, 'text', <<1::3>>, [1 | 2]] do
        assert_raise ArgumentError, fn -> V.buf_upload(bad) end
        assert_raise ArgumentError, fn -> V.buf_upload_into(b, bad) end
      end
    end

    test "for buffers and modules" do
      b = zeros(4)

      for bad <- [1, :buffer, nil, "buffer", self(), [b | b]] do
        assert_raise ArgumentError, fn -> V.buf_download(bad) end
        assert_raise ArgumentError, fn -> V.buf_byte_size(bad) end
        assert_raise ArgumentError, fn -> V.apply_unary(bad, b, 1, 0, :builtin) end
      end

      for bad <- [1, 1.5, [], ["a" | "b"], {:builtin}, {:f32, :builtin}, nil, :other] do
        assert_raise ArgumentError, fn -> V.apply_unary(b, b, 1, 0, bad) end
      end
    end
  end

  test "a reference of another kind is bad input" do
    b = zeros(4)
    array = Olivine.Array.from_binary(f32([1.0]), :f32, [1])

    for other <- [make_ref(), array.ref] do
      assert {:error, :bad_input, message} = V.buf_download(other)
      assert message =~ "reference"
      assert {:error, :bad_input, _} = V.buf_byte_size(other)
      assert {:error, :bad_input, _} = V.buf_upload_into(other, "")
      assert {:error, :bad_input, _} = V.apply_binary(other, b, b, 1, 0, :builtin)
      assert {:error, :bad_input, _} = V.apply_binary(b, other, b, 1, 0, :builtin)
      assert {:error, :bad_input, _} = V.matmul(b, b, other, 1, 1, 1, :builtin)
    end
  end

  describe "apply_binary" do
    @a [3.0, -2.0, 0.5, 8.0]
    @b [2.0, 2.0, 4.0, 0.5]

    test "has the seven codes of the contract" do
      expected = [
        {0, fn x, y -> x + y end},
        {1, fn x, y -> x * y end},
        {2, fn x, y -> x - y end},
        {3, fn x, y -> x / y end},
        {5, &max/2},
        {6, &min/2}
      ]

      for {op, fun} <- expected do
        out = zeros(16)
        assert V.apply_binary(out, up(f32(@a)), up(f32(@b)), 4, op, :builtin) == :ok
        assert from_f32(down(out)) == Enum.zip_with(@a, @b, fun)
      end

      out = zeros(12)
      assert V.apply_binary(out, up(f32([3.0, -2.0, 8.0])), up(f32([2.0, 2.0, 0.5])), 3, 4, :builtin) == :ok
      close(from_f32(down(out)), [9.0, 4.0, :math.sqrt(8)])
    end

    test "means the same in every dtype" do
      out = zeros(32)
      assert V.apply_binary(out, up(f64(@a)), up(f64(@b)), 4, 1, {:builtin, :f64}) == :ok
      assert from_f64(down(out)) == Enum.zip_with(@a, @b, &(&1 * &2))

      out = zeros(12)
      assert V.apply_binary(out, up(s32([7, -7, 7])), up(s32([2, 2, -2])), 3, 3, {:builtin, :s32}) == :ok
      assert from_s32(down(out)) == [3, -3, -3]
      assert V.apply_binary(out, up(s32([1, 2, 3])), up(s32([4, 5, 6])), 3, 0, {:builtin, :f32}) == :ok
    end

    test "leaves what is behind n, and an output may be an operand" do
      a = up(f32(@a))
      assert V.apply_binary(a, a, a, 2, 0, :builtin) == :ok
      assert from_f32(down(a)) == [6.0, -4.0, 0.5, 8.0]
      assert V.apply_binary(a, a, a, 0, 0, :builtin) == :ok
      assert from_f32(down(a)) == [6.0, -4.0, 0.5, 8.0]
    end

    test "refuses buffers that are too small" do
      {small, large} = {zeros(12), zeros(16)}
      assert V.apply_binary(small, large, large, 4, 0, :builtin) == {:error, :size_mismatch}
      assert V.apply_binary(large, small, large, 4, 0, :builtin) == {:error, :size_mismatch}
      assert V.apply_binary(large, large, small, 4, 0, :builtin) == {:error, :size_mismatch}
      assert V.apply_binary(large, large, large, 3, 0, {:builtin, :f64}) == {:error, :size_mismatch}
      assert V.apply_binary(large, large, large, 2 ** 63, 0, :builtin) == {:error, :size_mismatch}
      empty = zeros(0)
      assert V.apply_binary(empty, empty, empty, 1, 0, :builtin) == {:error, :size_mismatch}
      assert V.apply_binary(empty, empty, empty, 0, 0, :builtin) == :ok
    end

    test "refuses numbers that are no sizes and no codes" do
      b = zeros(16)
      assert {:error, :bad_input, _} = V.apply_binary(b, b, b, -1, 0, :builtin)
      assert {:error, :bad_input, _} = V.apply_binary(b, b, b, 2 ** 64, 0, :builtin)

      for op <- [15, 255, 2 ** 31, 2 ** 32, -1] do
        assert {:error, :bad_input, message} = V.apply_binary(b, b, b, 4, op, :builtin)
        assert message =~ "#{op}"
      end

      assert {:error, :bad_input, _} = V.apply_binary(b, b, b, 4, 10, :builtin)
      assert {:error, :bad_input, _} = V.apply_binary(b, b, b, 1, 0, {:builtin, :f16})
    end
  end

  describe "apply_unary" do
    test "has the thirteen codes of the contract" do
      sigmoid = fn x -> 1 / (1 + :math.exp(-x)) end

      expected = [
        {0, &:math.exp/1},
        {1, &:math.log/1},
        {2, &:math.sqrt/1},
        {3, &abs/1},
        {4, &(-&1)},
        {5, sigmoid},
        {6, &:math.tanh/1},
        {7, &max(&1, 0.0)},
        {8, &:math.ceil/1},
        {9, &:math.floor/1},
        {10, fn x -> if x > 0, do: 1.0, else: -1.0 end},
        {11, &(1 / &1)},
        {12, &(&1 * &1)}
      ]

      for {op, fun} <- expected do
        numbers = if op in [1, 2], do: [0.25, 1.0, 7.5], else: [-2.5, -0.25, 1.0, 3.75]
        bytes = 4 * length(numbers)
        out = zeros(bytes)
        assert V.apply_unary(out, up(f32(numbers)), length(numbers), op, :builtin) == :ok
        close(from_f32(down(out)), Enum.map(numbers, fun))
        out = zeros(2 * bytes)
        assert V.apply_unary(out, up(f64(numbers)), length(numbers), op, {:builtin, :f64}) == :ok
        close(from_f64(down(out)), Enum.map(numbers, fun))
      end
    end

    test "refuses what integers do not have" do
      b = up(s32([4, -9]))
      assert V.apply_unary(b, b, 2, 3, {:builtin, :s32}) == :ok
      assert from_s32(down(b)) == [4, 9]

      for op <- [0, 1, 2, 5, 6, 11] do
        assert {:error, :bad_input, message} = V.apply_unary(b, b, 2, op, {:builtin, :s32})
        assert message =~ "i32"
      end
    end

    test "refuses buffers that are too small, and codes that are none" do
      {small, large} = {zeros(4), zeros(8)}
      assert V.apply_unary(small, large, 2, 0, :builtin) == {:error, :size_mismatch}
      assert V.apply_unary(large, small, 2, 0, :builtin) == {:error, :size_mismatch}
      assert {:error, :bad_input, _} = V.apply_unary(large, large, 2, 99, :builtin)
      assert {:error, :bad_input, _} = V.apply_unary(large, large, -2, 0, :builtin)
    end
  end

  describe "matmul" do
    test "multiplies row-major matrices" do
      a = up(f32([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
      b = up(f32([7.0, 8.0, 9.0, 10.0, 11.0, 12.0]))
      out = zeros(16)
      assert V.matmul(out, a, b, 2, 2, 3, :builtin) == :ok
      assert from_f32(down(out)) == [58.0, 64.0, 139.0, 154.0]
    end

    test "of other dtypes and of nothing" do
      out = zeros(8)
      assert V.matmul(out, up(f64([1.5, 2.0])), up(f64([4.0, 8.0])), 1, 1, 2, {:builtin, :f64}) == :ok
      assert from_f64(down(out)) == [22.0]
      out = zeros(4)
      assert V.matmul(out, up(s32([3, 4])), up(s32([5, 6])), 1, 1, 2, {:builtin, :s32}) == :ok
      assert from_s32(down(out)) == [39]
      # An empty sum is 0.
      out = up(f32([5.0]))
      assert V.matmul(out, zeros(0), zeros(0), 1, 1, 0, :builtin) == :ok
      assert from_f32(down(out)) == [0.0]
    end

    test "refuses sizes that do not fit or overflow" do
      b = zeros(64)
      assert V.matmul(b, b, b, 5, 5, 1, :builtin) == {:error, :size_mismatch}
      assert V.matmul(b, b, b, 1, 5, 5, :builtin) == {:error, :size_mismatch}
      assert V.matmul(b, b, b, 5, 1, 5, :builtin) == {:error, :size_mismatch}
      assert V.matmul(b, b, b, 2 ** 40, 2 ** 40, 2 ** 40, :builtin) == {:error, :size_mismatch}
      assert {:error, :bad_input, _} = V.matmul(b, b, b, -1, 1, 1, :builtin)
    end
  end

  describe "reduce_axis" do
    test "reduces the middle axis" do
      a = up(f32(Enum.map(0..11, &(&1 * 1.0))))
      sums = for outer <- 0..1, inner <- 0..1, do: Enum.sum(for r <- 0..2, do: outer * 6.0 + r * 2 + inner)

      for {op, expected} <- [{0, sums}, {1, [4.0, 5.0, 10.0, 11.0]}, {2, [0.0, 1.0, 6.0, 7.0]}] do
        out = zeros(16)
        assert V.reduce_axis(out, a, 2, 3, 2, op, :builtin) == :ok
        assert from_f32(down(out)) == expected
      end

      out = zeros(4)
      assert V.reduce_axis(out, up(s32([5, -3, 9])), 1, 3, 1, 2, {:builtin, :s32}) == :ok
      assert from_s32(down(out)) == [-3]
    end

    test "refuses sizes and codes" do
      b = zeros(48)
      assert V.reduce_axis(b, b, 2, 7, 1, 0, :builtin) == {:error, :size_mismatch}
      assert V.reduce_axis(zeros(4), b, 2, 3, 2, 0, :builtin) == {:error, :size_mismatch}
      assert V.reduce_axis(b, b, 2 ** 32, 2 ** 32, 2, 0, :builtin) == {:error, :size_mismatch}
      assert {:error, :bad_input, _} = V.reduce_axis(b, b, 2, 3, 2, 77, :builtin)
      assert {:error, :bad_input, _} = V.reduce_axis(b, b, 2, -3, 2, 0, :builtin)
    end
  end

  describe "transpose_2d" do
    test "swaps the axes" do
      out = zeros(24)
      assert V.transpose_2d(out, up(f32([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])), 2, 3, :builtin) == :ok
      assert from_f32(down(out)) == [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
      out = zeros(16)
      assert V.transpose_2d(out, up(f64([1.0, 2.0])), 1, 2, {:builtin, :f64}) == :ok
      assert from_f64(down(out)) == [1.0, 2.0]
    end

    test "refuses sizes" do
      b = zeros(24)
      assert V.transpose_2d(b, b, 2, 4, :builtin) == {:error, :size_mismatch}
      assert V.transpose_2d(zeros(20), b, 2, 3, :builtin) == {:error, :size_mismatch}
      assert {:error, :bad_input, _} = V.transpose_2d(b, b, 2, -3, :builtin)
    end
  end

  describe "modules" do
    test "that cannot be read" do
      b = zeros(4)
      folder = System.tmp_dir!()

      for path <- ["/no/such/file.spv", "", folder, "a\0b", <<255, 254>>] do
        assert {:error, :spv_read_failed, message} = V.apply_unary(b, b, 1, 0, path)
        assert is_binary(message)
      end
    end

    @tag :not_vulkan
    test "are refused where there is no Vulkan" do
      b = zeros(4)
      assert {:error, :bad_input, message} = V.apply_binary(b, b, b, 1, 0, Olivine.Test.Spirv.elementwise())
      assert message =~ "SPIR-V"
    end
  end
end
