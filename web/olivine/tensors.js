// Typed arrays on one side, `{name, type, dims, bytes}` of the WebAssembly module on the other.

const FLOAT16 = globalThis.Float16Array ? ["Float16Array", "Uint16Array"] : ["Uint16Array"];

/** The arrays that hold each type. Outputs are in the first: `f16` in bits where the browser has no array of its own. */
export const ARRAYS = {
  f32: ["Float32Array"],
  f64: ["Float64Array"],
  i8: ["Int8Array"],
  i16: ["Int16Array"],
  i32: ["Int32Array"],
  i64: ["BigInt64Array"],
  u8: ["Uint8Array", "Uint8ClampedArray"],
  u16: ["Uint16Array"],
  u32: ["Uint32Array"],
  u64: ["BigUint64Array"],
  bool: ["Uint8Array"],
  f16: FLOAT16,
  bf16: ["Uint16Array"],
};

/** The inputs of a run as the module takes them. */
export function toModule(feeds, ports) {
  return Object.entries(feeds).map(([name, feed]) => {
    const port = ports.find((port) => port.name === name);
    const data = ArrayBuffer.isView(feed) ? feed : feed?.data;
    if (!ArrayBuffer.isView(data)) {
      throw new TypeError(`input \`${name}\`: expected a typed array, or an object with data and dims`);
    }
    const type = feed.type ?? typeOf(name, data, port);
    if (!ARRAYS[type]?.includes(kindOf(data))) {
      throw new TypeError(`input \`${name}\`: a ${kindOf(data)} holds no elements of type ${type}`);
    }
    const dims = feed.dims ? [...feed.dims].map(Number) : dimsOf(name, data.length, port);
    return { name, dims, ...held(type, data) };
  });
}

/** The outputs of a run: typed arrays by name. */
export function fromModule(results, ports) {
  const outputs = {};
  for (const { name, type, dims, bytes } of results) {
    const declared = ports.find((port) => port.name === name)?.type;
    outputs[name] = { dims, ...shown(type, bytes, declared) };
  }
  return outputs;
}

function kindOf(data) {
  // Also of another frame's arrays and of classes over them.
  return data[Symbol.toStringTag] ?? "DataView";
}

function arrayOf(type, { buffer, byteOffset, byteLength }) {
  const Elements = globalThis[ARRAYS[type][0]];
  return new Elements(buffer, byteOffset, byteLength / Elements.BYTES_PER_ELEMENT);
}

const bytesOf = ({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer, byteOffset, byteLength);

// The module holds u64 bit for bit as i64, and u16 as u32.
function held(type, data) {
  if (type === "u64") return { type: "i64", bytes: bytesOf(data) };
  if (type === "u16") return { type: "u32", bytes: bytesOf(Uint32Array.from(data)) };
  return { type, bytes: bytesOf(data) };
}

function shown(type, bytes, declared) {
  if (type === "i64" && declared === "u64") return { type: "u64", data: arrayOf("u64", bytes) };
  if (type === "u32" && declared === "u16") return { type: "u16", data: Uint16Array.from(arrayOf("u32", bytes)) };
  return { type, data: arrayOf(type, bytes) };
}

// Types that share an array, such as u8 and bool, are told apart by what the model declares.
function typeOf(name, data, port) {
  const kind = kindOf(data);
  if (ARRAYS[port?.type]?.includes(kind)) return port.type;
  const found = Object.entries(ARRAYS).find(([, kinds]) => kinds.includes(kind));
  if (!found) throw new TypeError(`input \`${name}\`: a ${kind} holds no elements of a tensor`);
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
