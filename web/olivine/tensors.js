// Typed arrays on one side, `{name, type, dims, bytes}` of the WebAssembly module on the other.

const ARRAYS = {
  f32: Float32Array,
  f64: Float64Array,
  i8: Int8Array,
  i16: Int16Array,
  i32: Int32Array,
  i64: BigInt64Array,
  u8: Uint8Array,
  u16: Uint16Array,
  u32: Uint32Array,
  u64: BigUint64Array,
  bool: Uint8Array,
  // The bits, where the browser has no array of its own.
  f16: globalThis.Float16Array ?? Uint16Array,
  bf16: Uint16Array,
};

/** The inputs of a run as the module takes them. */
export function toModule(feeds, ports) {
  return Object.entries(feeds).map(([name, feed]) => {
    const port = ports.find((port) => port.name === name);
    const data = ArrayBuffer.isView(feed) ? feed : feed?.data;
    if (!ArrayBuffer.isView(data)) {
      throw new TypeError(`input \`${name}\`: expected a typed array, or an object with data and dims`);
    }
    const type = feed.type ?? typeOf(data, port);
    const dims = feed.dims ? [...feed.dims].map(Number) : dimsOf(name, data.length, port);
    return { name, type, dims, bytes: new Uint8Array(data.buffer, data.byteOffset, data.byteLength) };
  });
}

/** The outputs of a run: typed arrays by name. */
export function fromModule(results) {
  const outputs = {};
  for (const { name, type, dims, bytes } of results) {
    const Elements = ARRAYS[type];
    outputs[name] = { type, dims, data: new Elements(bytes.buffer, 0, bytes.byteLength / Elements.BYTES_PER_ELEMENT) };
  }
  return outputs;
}

// Types that share an array, such as u8 and bool, are told apart by what the model declares.
function typeOf(data, port) {
  if (port && ARRAYS[port.type] === data.constructor) return port.type;
  const found = Object.entries(ARRAYS).find(([, Elements]) => Elements === data.constructor);
  if (!found) throw new TypeError(`${data.constructor.name} holds no elements of a tensor`);
  return found[0];
}

// Without dims the declared ones are taken; one open size follows from the number of elements.
function dimsOf(name, length, port) {
  const declared = port?.dims;
  const open = declared?.filter((dim) => typeof dim !== "number").length;
  const known = declared?.reduce((product, dim) => (typeof dim === "number" ? product * dim : product), 1);
  if (!declared || open > 1 || (open === 1 && length % known !== 0)) {
    throw new TypeError(`input \`${name}\`: its dims do not follow from ${length} elements; give {data, dims}`);
  }
  return declared.map((dim) => (typeof dim === "number" ? dim : length / known));
}
