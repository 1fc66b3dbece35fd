defmodule Olivine.SpirvTest do
  # Modules of the caller's own, good and bad.
  use ExUnit.Case, async: true

  import Olivine.Test.Numbers
  alias Olivine.NativeV, as: V
  alias Olivine.Test.Spirv

  @moduletag :vulkan

  setup do
    numbers = Enum.map(1..100, &(&1 / 4))
    {:ok, a} = V.buf_upload(f32(numbers))
    {:ok, b} = V.buf_upload(f32(Enum.reverse(numbers)))
    {:ok, out} = V.buf_alloc(400)
    %{a: a, b: b, out: out, numbers: numbers}
  end

  defp down(buffer) do
    {:ok, binary} = V.buf_download(buffer)
    from_f32(binary)
  end

  test "run as they are, with the op code as specialisation constant 0", %{a: a, b: b, out: out, numbers: numbers} do
    module = Spirv.elementwise()
    assert V.apply_binary(out, a, b, 100, 0, module) == :ok
    assert down(out) == Enum.zip_with(numbers, Enum.reverse(numbers), &(&1 + &2))
    assert V.apply_binary(out, a, b, 100, 1, module) == :ok
    assert down(out) == Enum.zip_with(numbers, Enum.reverse(numbers), &(&1 * &2))
  end

  test "write the first n elements", %{a: a, b: b, numbers: [first | _]} do
    {:ok, out} = V.buf_upload(f32(List.duplicate(-1.0, 100)))
    assert V.apply_binary(out, a, b, 1, 0, Spirv.elementwise()) == :ok
    assert down(out) == [first + 25.0 | List.duplicate(-1.0, 99)]
    assert V.apply_binary(out, a, b, 0, 0, Spirv.elementwise()) == :ok
  end

  test "are read from files", %{a: a, b: b, out: out, numbers: numbers} do
    path = Path.join(System.tmp_dir!(), "olivine-#{System.unique_integer([:positive])}.spv")
    File.write!(path, Spirv.elementwise())
    assert V.apply_binary(out, a, b, 100, 0, path) == :ok
    assert down(out) == Enum.zip_with(numbers, Enum.reverse(numbers), &(&1 + &2))
    File.write!(path, "not a module")
    assert {:error, :bad_input, _} = V.apply_binary(out, a, b, 100, 0, path)
    File.rm!(path)
    assert {:error, :spv_read_failed, _} = V.apply_binary(out, a, b, 100, 0, path)
  end

  test "that fit neither the sizes nor the call are refused", %{a: a, b: b, out: out} do
    module = Spirv.elementwise()
    assert V.apply_binary(out, a, b, 101, 0, module) == {:error, :size_mismatch}
    # The module has three buffers.
    assert {:error, :bad_input, _} = V.apply_unary(out, a, 100, 0, module)
    # Its push constants are four bytes.
    assert {:error, :bad_input, _} = V.matmul(out, a, b, 2, 2, 2, module)
  end

  test "with a missing or an extra binding, another set or an entry point of another kind are refused", %{
    a: a,
    b: b,
    out: out
  } do
    bad = [
      Spirv.elementwise(bindings: [0, 2, 3]),
      Spirv.elementwise(bindings: [0, 1, 7]),
      Spirv.elementwise(set: 1),
      Spirv.elementwise(model: 4)
    ]

    for module <- bad do
      assert {:error, :bad_input, message} = V.apply_binary(out, a, b, 100, 0, module)
      assert message != ""
    end
  end

  test "that are corrupt are refused, and the device goes on", %{a: a, b: b, out: out, numbers: numbers} do
    module = Spirv.elementwise()
    :rand.seed(:exsss, {1, 2, 3})

    for words <- [0, 1, 4, 5, 6, 20, 60, div(byte_size(module), 4) - 1], extra <- [0, 1, 3] do
      cut = binary_part(module, 0, min(words * 4 + extra, byte_size(module)))
      assert {:error, kind, _} = V.apply_binary(out, a, b, 100, 0, cut)
      assert kind in [:bad_input, :spv_read_failed]
    end

    header = binary_part(module, 0, 20)

    for _ <- 1..50 do
      noise = :rand.bytes(4 * :rand.uniform(200))
      assert {:error, :bad_input, _} = V.apply_binary(out, a, b, 100, 0, <<0x07230203::32-little, noise::binary>>)
      assert {:error, :bad_input, _} = V.apply_binary(out, a, b, 100, 0, header <> noise)
    end

    assert V.apply_binary(out, a, b, 100, 0, module) == :ok
    assert down(out) == Enum.zip_with(numbers, Enum.reverse(numbers), &(&1 + &2))
  end
end
