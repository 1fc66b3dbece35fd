defmodule Olivine.Test.Onnx do
  @moduledoc false
  # Writes small ONNX files: the few messages of the format that they need.

  import Bitwise

  @f32 1

  @doc "y = relu(x) + bias for x of f32[rows, 3]; `rows` is a name or a number."
  def relu_bias(rows \\ "n") do
    nodes = [node("Relu", ["x"], ["r"]), node("Add", ["r", "bias"], ["y"])]
    bias = tensor("bias", [3], for(v <- [10.0, 20.0, 30.0], into: <<>>, do: <<v::32-little-float>>))
    model(nodes, [bias], [value("x", [rows, 3])], [value("y", [rows, 3])])
  end

  @doc "total = the sum over all rows of x: an output without a batch axis."
  def total do
    attribute = bytes(1, "keepdims") <> integer(3, 0) <> integer(20, 2)
    model([node("ReduceSum", ["x"], ["total"], [attribute])], [], [value("x", ["n", 3])], [value("total", [])])
  end

  defp model(nodes, initializers, inputs, outputs) do
    graph =
      [
        for(n <- nodes, do: bytes(1, n)),
        bytes(2, "test"),
        for(t <- initializers, do: bytes(5, t)),
        for(v <- inputs, do: bytes(11, v)),
        for(v <- outputs, do: bytes(12, v))
      ]
      |> IO.iodata_to_binary()

    integer(1, 8) <> bytes(7, graph) <> bytes(8, bytes(1, "") <> integer(2, 17))
  end

  defp node(op, inputs, outputs, attributes \\ []) do
    [
      for(name <- inputs, do: bytes(1, name)),
      for(name <- outputs, do: bytes(2, name)),
      bytes(4, op),
      for(a <- attributes, do: bytes(5, a))
    ]
    |> IO.iodata_to_binary()
  end

  defp tensor(name, dims, raw) do
    sizes = for(d <- dims, into: <<>>, do: integer(1, d))
    sizes <> integer(2, @f32) <> bytes(8, name) <> bytes(9, raw)
  end

  defp value(name, dims) do
    dims =
      for d <- dims, into: <<>> do
        bytes(1, if(is_integer(d), do: integer(1, d), else: bytes(2, d)))
      end

    bytes(1, name) <> bytes(2, bytes(1, integer(1, @f32) <> bytes(2, dims)))
  end

  # Fields of protocol buffers.
  defp integer(field, value), do: varint(field <<< 3) <> varint(value)
  defp bytes(field, data), do: varint(field <<< 3 ||| 2) <> varint(byte_size(data)) <> data

  defp varint(value) when value < 128, do: <<value>>
  defp varint(value), do: <<1::1, value::7, varint(value >>> 7)::binary>>
end
