defmodule Olivine.ModelTest do
  use ExUnit.Case, async: true

  import Olivine.Test.Numbers
  alias Olivine.{Model, Serving}
  alias Olivine.Test.Onnx

  defp written(bytes) do
    path = Path.join(System.tmp_dir!(), "olivine-#{System.unique_integer([:positive])}.onnx")
    File.write!(path, bytes)
    on_exit(fn -> File.rm(path) end)
    path
  end

  defp expected(rows),
    do: rows |> Enum.map(&Enum.zip_with(&1, [10.0, 20.0, 30.0], fn x, b -> max(x, 0.0) + b end)) |> List.flatten()

  describe "a model" do
    test "is loaded, described and run" do
      assert {:ok, model} = Model.load(written(Onnx.relu_bias()))
      assert model.inputs == [{"x", :f32, ["n", 3]}]
      assert [{"y", :f32, _}] = model.outputs

      for rows <- [[[1.0, -2.0, 3.0]], [[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]]] do
        x = {:f32, {length(rows), 3}, f32(List.flatten(rows))}
        assert {:ok, %{"y" => {:f32, shape, y}}} = Model.run(model, %{"x" => x})
        assert shape == {length(rows), 3}
        assert from_f32(y) == expected(rows)
      end
    end

    test "that cannot be read is an error" do
      assert {:error, %Olivine.Error{}} = Model.load("/no/such/model.onnx")
      assert {:error, %Olivine.Error{}} = Model.load(written("not a model"))
      assert {:error, %Olivine.Error{}} = Model.load(written(binary_part(Onnx.relu_bias(), 0, 60)))
      assert_raise Olivine.Error, fn -> Model.load!("/no/such/model.onnx") end
    end

    test "refuses inputs that it does not have" do
      model = Model.load!(written(Onnx.relu_bias()))

      assert {:error, %Olivine.Error{message: message}} =
               Model.run(model, %{"z" => {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}})

      assert message =~ "x"
      assert {:error, %Olivine.Error{}} = Model.run(model, %{})
      assert {:error, %Olivine.Error{}} = Model.run(model, %{"x" => {:i32, {1, 3}, s32([1, 2, 3])}})
      assert {:error, %Olivine.Error{}} = Model.run(model, %{"x" => {:f32, {1, 4}, f32([1.0, 2.0, 3.0, 4.0])}})
      assert {:error, %Olivine.Error{kind: :size_mismatch}} = Model.run(model, %{"x" => {:f32, {1, 3}, f32([1.0])}})
      assert_raise ArgumentError, fn -> Model.run(model, %{"x" => [1.0, 2.0, 3.0]}) end
    end
  end

  describe "a serving" do
    setup do
      %{path: written(Onnx.relu_bias())}
    end

    test "gives every caller its own rows", %{path: path} do
      serving = start_supervised!({Serving, model: path, batch_size: 16, batch_timeout: 20})

      1..100
      |> Task.async_stream(
        fn i ->
          rows = for r <- 1..(rem(i, 3) + 1), do: [i * 1.0, -i * 1.0, r * 1.0]
          x = {:f32, {length(rows), 3}, f32(List.flatten(rows))}
          assert {:ok, %{"y" => {:f32, shape, y}}} = Serving.run(serving, %{"x" => x})
          assert shape == {length(rows), 3}
          assert from_f32(y) == expected(rows)
        end,
        max_concurrency: 100
      )
      |> Enum.each(fn result -> assert {:ok, _} = result end)
    end

    test "joins requests into one batch", %{path: path} do
      serving = start_supervised!({Serving, model: path, batch_size: 4, batch_timeout: 60_000})
      x = {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}
      # Nothing but a full batch runs within the test's time.
      tasks = for _ <- 1..4, do: Task.async(fn -> Serving.run(serving, %{"x" => x}) end)
      assert Enum.all?(Task.await_many(tasks), &match?({:ok, _}, &1))
    end

    test "runs what waits when its time has come", %{path: path} do
      serving = start_supervised!({Serving, model: path, batch_size: 1000, batch_timeout: 10})
      assert {:ok, _} = Serving.run(serving, %{"x" => {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}})
      assert {:ok, _} = Serving.run(serving, %{"x" => {:f32, {2000, 3}, :binary.copy(f32([1.0]), 6000)}})
    end

    test "tells callers what is wrong, and lives on", %{path: path} do
      serving = start_supervised!({Serving, model: path, batch_size: 2, batch_timeout: 10})
      bad = [%{}, %{"x" => 1}, %{"x" => {:f32, {}, f32([1.0])}}, %{"x" => {:f32, {0, 3}, ""}}, :inputs]
      bad = bad ++ [%{"z" => {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}}, %{"x" => {:f32, {1, 5}, f32([1.0])}}]
      bad = bad ++ [%{"x" => {:f33, {1, 3}, f32([1.0])}}]
      for inputs <- bad, do: assert({:error, %Olivine.Error{}} = Serving.run(serving, inputs))
      assert {:ok, _} = Serving.run(serving, %{"x" => {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}})
    end

    test "does not cut outputs that have no batch axis" do
      serving = start_supervised!({Serving, model: written(Onnx.total()), batch_size: 2, batch_timeout: 60_000})
      x = {:f32, {1, 3}, f32([1.0, 2.0, 3.0])}
      tasks = for _ <- 1..2, do: Task.async(fn -> Serving.run(serving, %{"x" => x}) end)
      for result <- Task.await_many(tasks), do: assert({:error, %Olivine.Error{message: "output total" <> _}} = result)
    end

    test "fills up batches of a fixed size" do
      serving = start_supervised!({Serving, model: written(Onnx.relu_bias(4)), batch_timeout: 10})
      assert {:ok, %{"y" => {:f32, {1, 3}, y}}} = Serving.run(serving, %{"x" => {:f32, {1, 3}, f32([1.0, -2.0, 3.0])}})
      assert from_f32(y) == [11.0, 20.0, 33.0]
    end

    test "does not start without a model" do
      Process.flag(:trap_exit, true)
      assert {:error, %Olivine.Error{}} = Serving.start_link(model: "/no/such/model.onnx")
      assert {:error, {:bad_batch_size, 0}} = Serving.start_link(model: "x", batch_size: 0)
    end
  end
end
