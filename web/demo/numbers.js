// Inputs of models, and how far apart the outputs of two devices are.

/** A number in words. */
export function count(n) {
  return n < 1e4 ? String(n) : n < 1e6 ? `${(n / 1e3).toFixed(1)} thousand` : `${(n / 1e6).toFixed(1)} million`;
}

/** The name of an open size: the model's, or one made of the input and the axis. */
export function sizeName(input, dim, axis) {
  return typeof dim === "string" ? dim : `${input.name} axis ${axis}`;
}

/** Inputs that are the same in every run of the page: floats in [-1, 1), bytes of any value, other integers 0 and 1. */
export function randomFeeds(inputs, sizes) {
  let seed = 42;
  const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  const float = () => 2 * random() - 1;
  const bit = () => (random() < 0.5 ? 0 : 1);
  const maker = (Elements, element) => (n) => Elements.from({ length: n }, element);
  const makers = {
    f32: maker(Float32Array, float),
    f64: maker(Float64Array, float),
    f16: maker(Uint16Array, () => bitsOfHalf(float())),
    bf16: maker(Uint16Array, () => bitsOf(float()) >>> 16),
    i64: maker(BigInt64Array, () => BigInt(bit())),
    u64: maker(BigUint64Array, () => BigInt(bit())),
    i32: maker(Int32Array, bit),
    u32: maker(Uint32Array, bit),
    i16: maker(Int16Array, bit),
    u16: maker(Uint16Array, bit),
    i8: maker(Int8Array, () => 256 * random() - 128),
    u8: maker(Uint8Array, () => 256 * random()),
    bool: maker(Uint8Array, bit),
  };
  const feeds = {};
  for (const input of inputs) {
    if (!input.dims || !makers[input.type]) throw new Error(`this page has no random ${input.type} for \`${input.name}\``);
    const dims = input.dims.map((dim, axis) =>
      typeof dim === "number" ? dim : Number(sizes.get(sizeName(input, dim, axis))),
    );
    const length = dims.reduce((product, dim) => product * dim, 1);
    if (length > 2 ** 28) throw new Error(`\`${input.name}\` would have ${count(length)} elements`);
    feeds[input.name] = { type: input.type, dims, data: makers[input.type](length) };
  }
  return feeds;
}

const bitsOf = (x) => new Uint32Array(Float32Array.of(x).buffer)[0];

// Of numbers below 2 that are not denormal; the last bits are cut.
function bitsOfHalf(x) {
  const bits = bitsOf(x);
  const exponent = ((bits >>> 23) & 255) - 112;
  return ((bits >>> 16) & 0x8000) | (exponent > 0 ? (exponent << 10) | ((bits >>> 13) & 1023) : 0);
}

function ofHalf(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
}

/** An output's elements as numbers. */
function numbersOf({ type, data }) {
  if (type === "bf16") return Float32Array.from(data, (bits) => new Float32Array(Uint32Array.of(bits << 16).buffer)[0]);
  if (type === "f16" && data instanceof Uint16Array) return Float32Array.from(data, ofHalf);
  return data;
}

/** The L2 norm of the difference over that of the second. */
function difference(output, expected) {
  const [some, others] = [numbersOf(output), numbersOf(expected)];
  let [apart, size] = [0, 0];
  for (let i = 0; i < others.length; i++) {
    const [a, b] = [Number(some[i]), Number(others[i])];
    // Infinities and NaN that are the same in both do not count.
    if (Object.is(a, b) && !Number.isFinite(a)) continue;
    apart += (a - b) ** 2;
    size += b ** 2;
  }
  return Math.sqrt(apart / (size || 1));
}

/** How far the GPU's outputs are from the CPU's: the output that differs most, as a sentence. */
export function agreement({ webgpu, cpu }) {
  if (!webgpu?.outputs || !cpu?.outputs) return "";
  const all = Object.entries(cpu.outputs).map(([name, output]) => difference(webgpu.outputs[name], output));
  const largest = all.some(Number.isNaN) ? NaN : Math.max(0, ...all);
  if (largest === 0) return "Both devices give <strong>the same bits</strong>.";
  const words = largest < 1e-4 ? "<strong>agree</strong>" : "differ";
  return `The devices ${words}: relative difference ${largest.toExponential(1)}.`;
}
