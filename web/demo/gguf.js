// The metadata at the start of a GGUF file: what a page needs of it beside the weights, such as the tokenizer.

const FIRST_BYTES = 8 << 20;
const MOST_BYTES = 256 << 20;

class TooShort extends Error {}

/** Reads values one after another and throws `TooShort` at the end. */
class Reader {
  #view;
  #at = 0;
  #words = new TextDecoder();

  constructor(buffer) {
    this.#view = new DataView(buffer);
  }

  #take(bytes) {
    const at = this.#at;
    if (at + bytes > this.#view.byteLength) throw new TooShort();
    this.#at += bytes;
    return at;
  }

  number(type) {
    const bytes = { Int8: 1, Uint8: 1, Int16: 2, Uint16: 2, Int32: 4, Uint32: 4, Float32: 4, Float64: 8, BigInt64: 8, BigUint64: 8 }[type];
    return Number(this.#view[`get${type}`](this.#take(bytes), true));
  }

  text() {
    const bytes = this.number("BigUint64");
    const at = this.#take(bytes);
    return this.#words.decode(new Uint8Array(this.#view.buffer, at, bytes));
  }

  value(kind) {
    const numbers = ["Uint8", "Int8", "Uint16", "Int16", "Uint32", "Int32", "Float32", "Uint8", , , "BigUint64", "BigInt64", "Float64"];
    if (numbers[kind]) return this.number(numbers[kind]);
    if (kind === 8) return this.text();
    if (kind !== 9) throw new Error(`its metadata have a value of unknown type ${kind}`);
    const [element, count] = [this.number("Uint32"), this.number("BigUint64")];
    const values = [];
    while (values.length < count) values.push(this.value(element));
    return values;
  }
}

function parse(buffer) {
  const reader = new Reader(buffer);
  if (reader.number("Uint32") !== 0x46554747) throw new Error("it is no GGUF file");
  const version = reader.number("Uint32");
  if (version !== 2 && version !== 3) throw new Error(`it is GGUF of version ${version}; known are 2 and 3`);
  reader.number("BigUint64");
  const count = reader.number("BigUint64");
  const metadata = new Map();
  for (let i = 0; i < count; i++) metadata.set(reader.text(), reader.value(reader.number("Uint32")));
  return metadata;
}

/** The metadata of a file, by key. */
export async function readMetadata(file) {
  for (let bytes = FIRST_BYTES; ; bytes *= 4) {
    try {
      return parse(await file.slice(0, bytes).arrayBuffer());
    } catch (error) {
      if (!(error instanceof TooShort)) throw error;
      if (bytes >= file.size) throw new Error("the file ends in the middle of its metadata");
      if (bytes >= MOST_BYTES) throw new Error("its metadata are too long");
    }
  }
}
