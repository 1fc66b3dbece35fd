// The package and the demo in headless Chromium: `cargo xtask web`.

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { newPage, open } from "./browser.mjs";
import { ROOT, SHOTS, ZOO, start } from "./folders.mjs";
import { llama } from "./gguf.mjs";
import { native } from "./native.mjs";
import { doubledProducts, outerProduct } from "./onnx.mjs";

const MOST_BYTES = 4e6;
const WIDE = { width: 1280, height: 900 };
const PHONE = { width: 390, height: 844 };
const PROGRAM = join(ROOT, "target/release/olivine");

const { server, address } = await start();
await mkdir(SHOTS, { recursive: true });
let failed = 0;

async function test(name, body) {
  const begun = Date.now();
  try {
    const words = await body();
    console.log(`ok    ${name}${words ? `: ${words}` : ""} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message.split("\n")[0].slice(0, 600)}`);
  }
}

function must(holds, words) {
  if (!holds) throw new Error(words);
}

/** Draws strokes, as parts of the pad's width and height. */
async function draw(page, strokes) {
  await page.click("#wipe");
  await page.locator("#pad").scrollIntoViewIfNeeded();
  const box = await page.locator("#pad").boundingBox();
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  for (const [first, ...rest] of strokes) {
    await page.mouse.move(...at(first));
    await page.mouse.down();
    for (const point of rest) await page.mouse.move(...at(point), { steps: 6 });
    await page.mouse.up();
  }
}

const SEVEN = [[[0.28, 0.2], [0.72, 0.2], [0.42, 0.82]]];

async function guess(page) {
  await draw(page, SEVEN);
  await page.waitForFunction(() => /% sure/.test(document.querySelector("#guess").textContent), null, { timeout: 60_000 });
  return page.textContent("#guess");
}

/** Loads the sample, runs it, and returns what the page says of it. */
async function runSample(page) {
  await page.click("#samples button");
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.click("#run");
  await page.waitForFunction(() => !document.querySelector("#run").disabled && document.querySelector("#bars").children.length, null, {
    timeout: 120_000,
  });
  return page.evaluate(() => ({
    rows: [...document.querySelectorAll("#bars div")].map((row) => row.innerText.replace(/\s+/g, " ")),
    agreement: document.querySelector("#agreement").textContent,
  }));
}

async function withProblem(page, act) {
  await act();
  await page.waitForSelector("#problem:not([hidden])", { timeout: 120_000 });
  return page.textContent("#problem");
}

await test("the module is small", async () => {
  const size = gzipSync(await readFile(join(ROOT, "web/olivine/wasm/olivine_web_bg.wasm")), { level: 9 }).length;
  must(size <= MOST_BYTES, `${size} bytes gzipped, the limit is ${MOST_BYTES}`);
  return `${size} bytes gzipped`;
});

let browser = await open();

for (const [name, viewport] of [["wide", WIDE], ["phone", PHONE]]) {
  await test(`the demo on a ${name} screen`, async () => {
    const page = await newPage(browser, `${address}/demo/`, viewport);
    await page.waitForFunction(() => /^WebGPU/.test(document.querySelector("#device").textContent), null, { timeout: 60_000 });
    const seven = await guess(page);
    must(/^7/.test(seven), `a seven is read as ${seven}`);
    const { rows, agreement } = await runSample(page);
    must(rows.length === 2 && rows.every((row) => / ms$/.test(row)), rows.join("; "));
    must(/agree|same bits/.test(agreement), agreement);
    const files = ["config.json", "model.safetensors", "vocab.txt"].map((file) => join(ZOO, "minilm", file));
    await page.setInputFiles("#encoder", files);
    await page.waitForSelector("#similarities div, #problem:not([hidden])", { timeout: 180_000 });
    must(await page.isHidden("#problem"), await page.textContent("#problem"));
    const cosines = await page.locator("#similarities span").allTextContents();
    const expected = [0.6946, 0.9429, 0.2569];
    must(cosines.every((c, i) => Math.abs(Number(c) - expected[i]) <= 2e-4), `MiniLM gives ${cosines}, not ${expected}`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    must(wide <= 0, `the page is ${wide} pixels wider than the screen`);
    await page.waitForTimeout(400);
    await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
    must(page.problems.length === 0, page.problems.join("; "));
    await page.close();
    return `${seven}; ${rows.join(", ")}; MiniLM ${cosines.join(" ")}`;
  });
}

/** How far outputs are from those of the native CPU: an L2 norm relative to theirs. `outputs` are in the order of their names. */
function difference(outputs, expected) {
  let [apart, size] = [0, 0];
  outputs.forEach(({ data }, i) => {
    must(data.length === expected[i].data.length, `${data.length} elements, not ${expected[i].data.length}`);
    data.forEach((x, k) => {
      apart += (Number(x) - Number(expected[i].data[k])) ** 2;
      size += Number(expected[i].data[k]) ** 2;
    });
  });
  return Math.sqrt(apart / (size || 1));
}

const page = await newPage(browser, `${address}/test/`);
await page.waitForFunction(() => window.olivine);
const names = await page.evaluate(async () => (await import("/test/zoo.js")).MODELS.map((model) => model.name));
for (const name of names) {
  await test(`${name} equals the native CPU`, async () => {
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
    const typed = (tensors) =>
      tensors.map(([name, kind, elements, dims]) => {
        const big = kind.startsWith("Big");
        return [name, { data: globalThis[kind].from(elements, big ? BigInt : Number), dims }];
      });
    const path = file.startsWith("/zoo/") ? join(ZOO, file.slice(5)) : join(ROOT, "web", file);
    const expected = await native(PROGRAM, path, Object.fromEntries(typed(feeds)));
    const words = [];
    for (const [device, tensors] of Object.entries(outputs)) {
      const sorted = typed(tensors).sort(([a], [b]) => (a < b ? -1 : 1));
      const relative = difference(sorted.map(([, tensor]) => tensor), expected);
      must(relative <= 1e-4, `${device} differs by ${relative.toExponential(1)}`);
      words.push(`${device} ${relative.toExponential(1)}`);
    }
    return words.join(", ");
  });
}

await test("a GGUF file equals the native CPU", async () => {
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
  const relative = difference([{ data: logits }], await native(PROGRAM, path, feeds));
  must(relative <= 1e-4, `it differs by ${relative.toExponential(1)}`);
  return `webgpu ${relative.toExponential(1)}`;
});

await test("silero hears speech", async () => {
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
});

await test("a model is there without a network once it was loaded", async () => {
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
});
await page.close();

await test("bad models are explained and the page goes on", async () => {
  const page = await newPage(browser, `${address}/demo/`);
  const file = (name, buffer) => page.setInputFiles("#file", { name, mimeType: "application/octet-stream", buffer });
  const words = [];
  words.push(await withProblem(page, () => file("noise.onnx", Buffer.from("this is no model, whatever its name says"))));
  const digits = await readFile(join(ROOT, "web/demo/digits.onnx"));
  words.push(await withProblem(page, () => file("cut.onnx", digits.subarray(0, 9000))));
  words.push(await withProblem(page, () => file("bert.gguf", llama("bert"))));
  must(words.every((text) => /^(noise|cut|bert)\.(onnx|gguf): ./.test(text)), words.join(" | "));
  must(/`bert` cannot be run/.test(words[2]), words[2]);
  await file("outer.onnx", outerProduct());
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.fill("#sizes input", "200000");
  await page.click("#run");
  await page.waitForFunction(() => document.querySelectorAll("#bars .bad").length === 2, null, { timeout: 120_000 });
  words.push(...(await page.locator("#bars .bad span").allTextContents()));
  must(/more than 2\^27 elements/.test(words[3]), words[3]);
  const { rows } = await runSample(page);
  must(rows.length === 2 && rows.every((row) => / ms$/.test(row)), rows.join("; "));
  await page.close();
  return words.join(" | ");
});

await test("a tab closed in a run harms no other", async () => {
  const page = await newPage(browser, `${address}/demo/`);
  await page.click("#samples button");
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.click("#run");
  await page.close();
  const other = await newPage(browser, `${address}/demo/`);
  const words = await guess(other);
  await other.close();
  return words;
});

await test("a lost device is explained and the next run opens another", async () => {
  const page = await newPage(browser, `${address}/demo/`);
  await guess(page);
  await (await browser.newBrowserCDPSession()).send("Browser.crashGpuProcess").catch(() => {});
  await page.waitForTimeout(1500);
  const words = await withProblem(page, () => draw(page, SEVEN));
  must(/lost/.test(words), words);
  await page.waitForTimeout(1500);
  const again = await guess(page);
  await page.close();
  return `${words} | then ${again}`;
});
await browser.close();

browser = await open({ gpu: false });
await test("without WebGPU the page says so and runs on the CPU", async () => {
  const page = await newPage(browser, `${address}/demo/`, PHONE);
  await page.waitForFunction(() => /CPU/.test(document.querySelector("#device").textContent), null, { timeout: 60_000 });
  const said = await page.textContent("#device");
  const words = await guess(page);
  const { rows } = await runSample(page);
  must(rows.length === 1 && /CPU/.test(rows[0]), rows.join("; "));
  await page.screenshot({ path: join(SHOTS, "cpu.png"), fullPage: true });
  return `${said}; ${words}`;
});

await test("a model that needs more memory than there is is explained and the page goes on", async () => {
  const page = await newPage(browser, `${address}/demo/`);
  // Twelve outputs of half a gigabyte: a module has four.
  const buffer = doubledProducts(12);
  await page.setInputFiles("#file", { name: "doubled.onnx", mimeType: "application/octet-stream", buffer });
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.fill("#sizes input", "11000");
  await page.click("#run");
  await page.waitForSelector("#bars .bad span", { timeout: 120_000 });
  const words = await page.textContent("#bars .bad span");
  must(/not enough memory/.test(words), words);
  const { rows } = await runSample(page);
  must(rows.length === 1 && / ms$/.test(rows[0]), rows.join("; "));
  await page.close();
  return words;
});
await browser.close();
server.close();
console.log(failed ? `${failed} failed` : `all passed; screenshots are in ${SHOTS}`);
process.exitCode = failed ? 1 : 0;
