// A tiny ONNX model written by hand: `x[n, 1]` times its transpose, and the largest element of the n² products.

const bytes = (...parts) => Buffer.concat(parts.map((part) => (typeof part === "number" ? Buffer.from([part]) : part)));
const field = (number, value) => bytes((number << 3) | 2, value.length, value);
const text = (number, words) => field(number, Buffer.from(words));
const int = (number, value) => bytes(number << 3, value);

const node = (op, inputs, output) => bytes(...inputs.map((name) => text(1, name)), text(2, output), text(4, op));
const port = (name, dims) => {
  const dim = (size) => field(1, typeof size === "string" ? text(2, size) : int(1, size));
  const tensor = bytes(int(1, 1), field(2, bytes(...dims.map(dim))));
  return bytes(text(1, name), field(2, field(1, tensor)));
};

export function outerProduct() {
  const graph = bytes(
    field(1, node("Transpose", ["x"], "row")),
    field(1, node("MatMul", ["x", "row"], "products")),
    field(1, node("ReduceMax", ["products"], "largest")),
    text(2, "outer"),
    field(11, port("x", ["n", 1])),
    field(12, port("largest", [1, 1])),
  );
  return bytes(int(1, 8), field(8, int(2, 13)), 0x3a, graph.length & 127 | 128, graph.length >> 7, graph);
}
