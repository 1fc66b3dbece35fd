// Models through the package, on WebGPU and on the CPU, beside the native CPU.

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { newPage } from "./browser.mjs";
import { ROOT, SHOTS, ZOO } from "./folders.mjs";
import { llama } from "./gguf.mjs";
import { PROGRAM, difference, must, test } from "./harness.mjs";
import { embeddings, native, typed } from "./native.mjs";

async function equalsNative(page, name) {
  const { file, feeds, outputs } = await page.evaluate(async (name) => {
    const zoo = await import("/test/zoo.js");
    const model = zoo.find(name);
    const feeds = model.feeds();
    const plain = (tensors) =>
      Object.entries(tensors).map(([name, { data, dims }]) => [name, data.constructor.name, [...data].map(String), dims]);
    const outputs = {};
    for (const device of ["cpu", "webgpu"]) {
      const { run, free } = await zoo.olivine(model, device);
      outputs[device] = plain(await run(feeds));
      free();
    }
    return { file: model.file, feeds: plain(feeds), outputs };
  }, name);
  const path = file.startsWith("/zoo/") ? join(ZOO, file.slice(5)) : join(ROOT, "web", file);
  const expected = await native(PROGRAM, path, Object.fromEntries(typed(feeds)));
  const words = [];
  for (const [device, tensors] of Object.entries(outputs)) {
    const relative = difference(typed(tensors), expected);
    must(relative <= 1e-4, `${device} differs by ${relative.toExponential(1)}`);
    words.push(`${device} ${relative.toExponential(1)}`);
  }
  return words.join(", ");
}

/** Texts that a tokenizer may get wrong: ideographs, symbols, accents, control characters, a word that is too long. */
const TEXTS = ["That is a happy person", "日本語 text\u0000 costs $5 — naïve café\u200d \u{1F600}", `${"x".repeat(101)} [SEP] unaffable`];

async function minilmEqualsNative(page) {
  const found = await page.evaluate(async (texts) => {
    const { WordPiece, load } = window.olivine;
    const file = async (name) => (await fetch(`/zoo/minilm/${name}`)).text();
    const tokenizer = await WordPiece.load(await file("vocab.txt"));
    const ids = texts.map((text) => tokenizer.encode(text));
    const long = tokenizer.encode("word ".repeat(600));
    const devices = {};
    for (const device of ["cpu", "webgpu"]) {
      const model = await load("/zoo/minilm/model.safetensors", { config: await file("config.json"), device, cache: false });
      devices[device] = [];
      for (const row of ids) {
        const dims = [1, row.length];
        const { sentence_embedding } = await model.run({
          input_ids: { data: BigInt64Array.from(row, BigInt), dims },
          attention_mask: { data: new BigInt64Array(row.length).fill(1n), dims },
          token_type_ids: { data: new BigInt64Array(row.length), dims },
        });
        devices[device].push([...sentence_embedding.data]);
      }
      model.free();
    }
    return { tokens: ids.flat().length, ids, long: [long.length, long.at(-1)], devices };
  }, TEXTS);
  must(String(found.long) === "512,102", `a long text has the tokens ${found.long}`);
  const { data, usage } = await embeddings(PROGRAM, join(ZOO, "minilm"), TEXTS);
  must(found.tokens === usage.prompt_tokens, `${found.tokens} tokens, not ${usage.prompt_tokens}: ${JSON.stringify(found.ids)}`);
  const words = Object.entries(found.devices).map(([device, vectors]) => {
    const named = vectors.map((vector, i) => [`text ${i}`, { data: vector }]);
    const relative = difference(named, data.map(({ embedding }) => ({ data: embedding })));
    must(relative <= 1e-4, `${device} differs by ${relative.toExponential(1)}`);
    return `${device} ${relative.toExponential(1)}`;
  });
  return words.join(", ");
}

async function ggufEqualsNative(page) {
  const file = llama();
  const tokens = [1, 5, 23, 7, 7];
  const logits = await page.evaluate(
    async ([bytes, tokens]) => {
      const model = await window.olivine.load(Uint8Array.from(bytes), { device: "webgpu" });
      const feeds = { tokens: { data: BigInt64Array.from(tokens, BigInt), dims: [1, tokens.length] } };
      const { logits } = await model.run(feeds);
      model.free();
      return [...logits.data];
    },
    [[...file], tokens],
  );
  const path = join(SHOTS, "tiny.gguf");
  await writeFile(path, file);
  const feeds = { tokens: { data: BigInt64Array.from(tokens, BigInt), dims: [1, tokens.length] } };
  const relative = difference([["logits", { data: logits }]], await native(PROGRAM, path, feeds));
  must(relative <= 1e-4, `it differs by ${relative.toExponential(1)}`);
  return `webgpu ${relative.toExponential(1)}`;
}

/** Frames of a recording in which silero hears speech. */
async function hearSpeech(page) {
  const heard = await page.evaluate(async () => {
    const wav = new DataView(await (await fetch("/zoo/speech/beckett.wav")).arrayBuffer());
    const samples = Float32Array.from({ length: (wav.byteLength - 44) / 2 }, (_, i) => wav.getInt16(44 + 2 * i, true) / 32768);
    const model = await window.olivine.load("/zoo/silero/silero_vad.onnx", { device: "webgpu", cache: false });
    let state = { data: new Float32Array(256), dims: [2, 1, 128] };
    const sr = { data: BigInt64Array.of(16000n), dims: [] };
    let [above, frames] = [0, 0];
    for (let start = 0; start + 512 <= samples.length; start += 512) {
      const data = new Float32Array(576);
      data.set(samples.subarray(Math.max(0, start - 64), start), start ? 0 : 64);
      data.set(samples.subarray(start, start + 512), 64);
      const { output, stateN } = await model.run({ input: { data, dims: [1, 576] }, state, sr });
      state = stateN;
      above += output.data[0] > 0.5;
      frames += 1;
    }
    model.free();
    return `${above} of ${frames} frames`;
  });
  must(heard === "141 of 311 frames", heard);
  return heard;
}

async function loadWithoutNetwork(page) {
  await page.evaluate(async () => {
    await window.olivine.clearCache();
    (await window.olivine.load("/demo/digits.onnx", { device: "cpu" })).free();
  });
  await page.route("**/digits.onnx", (route) => route.abort());
  const loaded = await page.evaluate(async () => {
    let most = 0;
    const onProgress = ({ loaded }) => (most = loaded);
    (await window.olivine.load("/demo/digits.onnx", { device: "cpu", onProgress })).free();
    return most;
  });
  await page.unroute("**/digits.onnx");
  must(loaded > 20_000, `${loaded} bytes came out of the cache`);
  return `${loaded} bytes`;
}

export async function models(browser, address) {
  const page = await newPage(browser, `${address}/test/`);
  await page.waitForFunction(() => window.olivine);
  const names = await page.evaluate(async () => (await import("/test/zoo.js")).MODELS.map((model) => model.name));
  for (const name of names) await test(`${name} equals the native CPU`, () => equalsNative(page, name));
  await test("minilm equals the native CPU", () => minilmEqualsNative(page));
  await test("a GGUF file equals the native CPU", () => ggufEqualsNative(page));
  await test("silero hears speech", () => hearSpeech(page));
  await test("a model is there without a network once it was loaded", () => loadWithoutNetwork(page));
  await page.close();
}
