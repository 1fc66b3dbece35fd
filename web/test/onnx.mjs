// Tiny ONNX models written by hand: some need much memory.

const bytes = (...parts) => Buffer.concat(parts.map((part) => (typeof part === "number" ? Buffer.from([part]) : part)));
const field = (number, value) => bytes((number << 3) | 2, value.length, value);
const text = (number, words) => field(number, Buffer.from(words));
const int = (number, value) => bytes(number << 3, value);

const node = (op, inputs, output) => bytes(...inputs.map((name) => text(1, name)), text(2, output), text(4, op));
const port = (name, dims, type = 1) => {
  const dim = (size) => field(1, typeof size === "string" ? text(2, size) : int(1, size));
  const tensor = bytes(int(1, type), field(2, bytes(...dims.map(dim))));
  return bytes(text(1, name), field(2, field(1, tensor)));
};

const file = (...parts) => {
  const graph = bytes(...parts, text(2, "tiny"));
  return bytes(int(1, 8), field(8, int(2, 13)), 0x3a, (graph.length & 127) | 128, graph.length >> 7, graph);
};
const model = (...parts) => file(...parts, field(11, port("x", ["n", 1])));
const products = (output) => bytes(field(1, node("Transpose", ["x"], "row")), field(1, node("MatMul", ["x", "row"], output)));

/** `x[n, 1]` times its transpose, and the largest element of the n² products. */
export function outerProduct() {
  return model(products("products"), field(1, node("ReduceMax", ["products"], "largest")), field(12, port("largest", [1, 1])));
}

/** The n² products, and doubles of them again and again: `count` outputs. */
export function doubledProducts(count) {
  const names = Array.from({ length: count }, (_, i) => `p${i}`);
  const doubles = names.slice(1).map((name, i) => field(1, node("Add", [names[i], names[i]], name)));
  return model(products(names[0]), ...doubles, ...names.map((name) => field(12, port(name, ["n", "n"]))));
}

/** `y[n]` is `x[n]`, in one of ONNX's element types. */
export function identity(type) {
  return file(field(1, node("Identity", ["x"], "y")), field(11, port("x", ["n"], type)), field(12, port("y", ["n"], type)));
}
