// A tiny GGUF file written by hand: a llama of one layer with seeded weights, and a tokenizer of single letters. In another
// `architecture` its metadata are the same and nothing can run it.

const [HIDDEN, FEED_FORWARD] = [32, 48];
const LETTERS = Array.from({ length: 24 }, (_, i) => String.fromCharCode(97 + i));

function number(bytes, write, value) {
  const buffer = Buffer.alloc(bytes);
  buffer[write](value);
  return buffer;
}
const u32 = (value) => number(4, "writeUInt32LE", value);
const u64 = (value) => number(8, "writeBigUInt64LE", BigInt(value));
const text = (words) => Buffer.concat([u64(Buffer.byteLength(words)), Buffer.from(words)]);

export function llama({ architecture = "llama", split = "gpt-2", pieces = LETTERS, merges = [] } = {}) {
  const vocabulary = pieces.length;
  const metadata = [[text("general.architecture"), u32(8), text(architecture)]];
  const sizes = { block_count: 1, embedding_length: HIDDEN, feed_forward_length: FEED_FORWARD, "attention.head_count": 2 };
  for (const [key, size] of Object.entries(sizes)) metadata.push([text(`${architecture}.${key}`), u32(4), u32(size)]);

  const strings = (key, words) => metadata.push([text(key), u32(9), u32(8), u64(words.length), ...words.map(text)]);
  metadata.push([text("tokenizer.ggml.model"), u32(8), text("gpt2")], [text("tokenizer.ggml.pre"), u32(8), text(split)]);
  strings("tokenizer.ggml.tokens", pieces);
  strings("tokenizer.ggml.merges", merges);

  const tensors = {
    "token_embd.weight": [vocabulary, HIDDEN],
    "output_norm.weight": [HIDDEN],
    "blk.0.attn_norm.weight": [HIDDEN],
    "blk.0.ffn_norm.weight": [HIDDEN],
    "blk.0.ffn_gate.weight": [FEED_FORWARD, HIDDEN],
    "blk.0.ffn_up.weight": [FEED_FORWARD, HIDDEN],
    "blk.0.ffn_down.weight": [HIDDEN, FEED_FORWARD],
  };
  for (const part of ["q", "k", "v", "output"]) tensors[`blk.0.attn_${part}.weight`] = [HIDDEN, HIDDEN];

  let seed = 7;
  const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32 - 0.5;
  const [entries, data] = [[], []];
  let offset = 0;
  for (const [name, dims] of Object.entries(tensors)) {
    // All sizes are multiples of the file's alignment, 32 bytes. The format lists the innermost dimension first.
    entries.push(text(name), u32(dims.length), ...[...dims].reverse().map(u64), u32(0), u64(offset));
    const elements = Float32Array.from({ length: dims.reduce((a, b) => a * b) }, random);
    data.push(Buffer.from(elements.buffer));
    offset += elements.byteLength;
  }
  const head = Buffer.concat([
    Buffer.from("GGUF"), u32(3), u64(Object.keys(tensors).length), u64(metadata.length), ...metadata.flat(), ...entries,
  ]);
  return Buffer.concat([head, Buffer.alloc(-head.length & 31), ...data]);
}
