// Models of the zoo in the page: inputs that are the same everywhere, runs by Olivine and by ONNX Runtime Web.

/** Numbers in [-1, 1) that are the same in every run. */
function numbers(count, seed = 42) {
  return Float32Array.from({ length: count }, () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 31 - 1;
  });
}

const image = (height, width) => ({ x: { dims: [1, 3, height, width], data: numbers(3 * height * width) } });

const frame = () => ({
  input: { dims: [1, 576], data: numbers(576).map((x) => x * 0.1) },
  state: { dims: [2, 1, 128], data: new Float32Array(256) },
  sr: { dims: [], data: BigInt64Array.of(16000n) },
});

/** What is compared: a file of the zoo and its inputs. */
export const MODELS = [
  { name: "digits", file: "/demo/digits.onnx", feeds: () => ({ pixels: { dims: [1, 64], data: numbers(64).map((x) => 8 + 8 * x) } }) },
  {
    name: "magika",
    file: "/zoo/magika/model.onnx",
    feeds: () => ({ bytes: { dims: [1, 2048], data: Int32Array.from(numbers(2048), (x) => 128 + 127 * x) } }),
  },
  { name: "ppocr cls", file: "/zoo/ppocr/cls.onnx", feeds: () => image(48, 192) },
  { name: "ppocr det", file: "/zoo/ppocr/det.onnx", feeds: () => image(224, 224) },
  { name: "ppocr rec", file: "/zoo/ppocr/rec.onnx", feeds: () => image(48, 160) },
  { name: "silero", file: "/zoo/silero/silero_vad.onnx", feeds: frame },
  { name: "silero without If", file: "/zoo/silero/silero_vad_ifless.onnx", feeds: frame },
];

export const find = (name) => MODELS.find((model) => model.name === name);

/** A function that runs a model, by Olivine. */
export async function olivine(model, device) {
  const loaded = await window.olivine.load(model.file, { device, cache: false });
  return { run: (feeds) => loaded.run(feeds), free: () => loaded.free() };
}

/** A function that runs a model, by ONNX Runtime Web on `webgpu` or `wasm` (the CPU, one thread). */
export async function onnxRuntime(model, provider) {
  const build = provider === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
  const ort = await import(`./node_modules/onnxruntime-web/dist/${build}`);
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const session = await ort.InferenceSession.create(model.file, { executionProviders: [provider] });
  const type = (data) => ({ Float32Array: "float32", Int32Array: "int32", BigInt64Array: "int64" })[data.constructor.name];
  const tensor = ({ data, dims }) => new ort.Tensor(type(data), data, dims);
  return {
    run: (feeds) => session.run(Object.fromEntries(Object.entries(feeds).map(([name, feed]) => [name, tensor(feed)]))),
    free: () => session.release(),
  };
}

/** The L2 norm of the difference of all outputs over that of the second's. */
export function difference(outputs, expected) {
  let [apart, size] = [0, 0];
  for (const [name, { data }] of Object.entries(expected)) {
    const other = outputs[name].data;
    if (other.length !== data.length) return Infinity;
    for (let i = 0; i < data.length; i++) {
      apart += (Number(other[i]) - Number(data[i])) ** 2;
      size += Number(data[i]) ** 2;
    }
  }
  return Math.sqrt(apart / (size || 1));
}

/** The time of a run, in ms: the least of several samples, each of as many runs as the page's coarse clock needs. What is slow
 * has fewer samples. */
export async function time(run, feeds, { samples = 9, fewest = 3, least = 30, most = 6000 } = {}) {
  await run(feeds);
  await run(feeds);
  const times = [];
  const begun = performance.now();
  while (times.length < fewest || (times.length < samples && performance.now() - begun < most)) {
    const start = performance.now();
    let runs = 0;
    let spent = 0;
    while (spent < least) {
      await run(feeds);
      runs += 1;
      spent = performance.now() - start;
    }
    times.push(spent / runs);
  }
  return Math.min(...times);
}
