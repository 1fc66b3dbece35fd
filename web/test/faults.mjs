// What goes wrong in the page is said in words, and the page goes on.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { newPage, open } from "./browser.mjs";
import { ROOT, ZOO } from "./folders.mjs";
import { llama } from "./gguf.mjs";
import { SEVEN, crashGpu, draw, giveModel, guess, must, runModel, runSample, test, withProblem } from "./harness.mjs";
import { doubledProducts, outerProduct } from "./onnx.mjs";

/** The page still runs a model on so many devices. */
async function goesOn(page, devices) {
  const { rows } = await runSample(page);
  must(rows.length === devices && rows.every((row) => / ms$/.test(row)), rows.join("; "));
}

async function badModels(page) {
  const words = [];
  const refused = async (name, buffer) => words.push(await withProblem(page, () => giveModel(page, name, buffer)));
  await refused("noise.onnx", Buffer.from("this is no model, whatever its name says"));
  await refused("cut.onnx", (await readFile(join(ROOT, "web/demo/digits.onnx"))).subarray(0, 9000));
  await refused("empty.onnx", Buffer.alloc(0));
  await refused("clip.gguf", llama({ architecture: "clip" }));
  await refused("cut.gguf", llama().subarray(0, 4000));
  must(words.every((text) => /^\w+\.(onnx|gguf): ./.test(text)), words.join(" | "));
  must(/`clip` cannot be run/.test(words[3]), words[3]);
  await goesOn(page, 2);
  return words.join(" | ");
}

async function tooManyElements(page) {
  await giveModel(page, "outer.onnx", outerProduct());
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.fill("#sizes input", "200000");
  const { rows } = await runModel(page);
  must(rows.length === 2 && rows.every((row) => /more than 2\^27 elements/.test(row)), rows.join("; "));
  await goesOn(page, 2);
  return rows[0];
}

/** A device that binds 128 MiB at once, as WebGPU promises at least, refuses a larger tensor and names the limit. */
async function moreThanOneBinding(page) {
  await page.waitForFunction(() => window.olivine);
  const words = await page.evaluate(
    async (bytes) => {
      const limits = { maxStorageBufferBindingSize: 2 ** 27 };
      for (const [name, value] of Object.entries(limits)) {
        Object.defineProperty(GPUSupportedLimits.prototype, name, { get: () => value });
      }
      const model = await window.olivine.load(Uint8Array.from(bytes), { device: "webgpu" });
      const run = async (n) => (await model.run({ x: { data: new Float32Array(n).fill(2), dims: [n, 1] } })).largest.data[0];
      const refusal = await run(6000).catch((error) => error.message);
      return { refusal, then: await run(50) };
    },
    [...outerProduct()],
  );
  must(/binds 134217728 at once/.test(words.refusal) && /144000000 bytes/.test(words.refusal), String(words.refusal));
  must(words.then === 4, `a smaller run gives ${words.then}`);
  return words.refusal;
}

async function closedTab(browser, address) {
  const page = await newPage(browser, `${address}/demo/`);
  await page.click("#samples button");
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.click("#run");
  await page.close();
  const other = await newPage(browser, `${address}/demo/`);
  const words = await guess(other);
  await other.close();
  return words;
}

async function lostDevice(browser, page) {
  await guess(page);
  await crashGpu(browser);
  await page.waitForTimeout(1500);
  const words = await withProblem(page, () => draw(page, SEVEN));
  must(/lost/.test(words), words);
  await page.waitForTimeout(1500);
  return `${words} | then ${await guess(page)}`;
}

/** The device goes while a model that takes about a second is run again and again. */
async function lostInARun(browser, page) {
  await giveModel(page, "magika.onnx", await readFile(join(ZOO, "magika/model.onnx")));
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  const running = runModel(page);
  await page.waitForTimeout(1500);
  await crashGpu(browser);
  const { rows } = await running;
  must(rows.length === 2 && /lost/.test(rows[0]) && /^CPU.* ms$/.test(rows[1]), rows.join("; "));
  await page.waitForTimeout(1500);
  const { rows: again } = await runModel(page);
  must(again.length === 2 && again.every((row) => / ms$/.test(row)), again.join("; "));
  return `${rows[0]} | then ${again[0]}`;
}

/** A file that is chosen while another model runs takes its place, and the run leaves nothing behind. */
async function chosenInARun(page) {
  await giveModel(page, "magika.onnx", await readFile(join(ZOO, "magika/model.onnx")));
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  await page.click("#run");
  await page.waitForTimeout(700);
  const { rows, agreement } = await runSample(page);
  must(rows.length === 2 && rows.every((row) => / ms$/.test(row)), rows.join("; "));
  must(/agree|same bits/.test(agreement) && (await page.isHidden("#problem")), `${agreement} ${await page.textContent("#problem")}`);
  // What the first run still had to say would come by now.
  await page.waitForTimeout(1500);
  const { length } = await page.$$("#bars div");
  must(length === 2, `${length} rows`);
  await goesOn(page, 2);
}

/** The module of the worker ends; the page says why, starts another, and loads the model again. */
async function endedModule(page) {
  const { rows } = await runSample(page);
  must(rows.length === 2, rows.join("; "));
  const fail = page.workers()[0].evaluate(() => import("/olivine/wasm/olivine_web.js").then((module) => module.fail("panic")));
  fail.catch(() => {});
  await page.waitForTimeout(500);
  const words = await runModel(page);
  must(words.rows.some((row) => /Olivine has stopped \(panicked at .*on purpose\)/.test(row)), words.rows.join("; "));
  const again = await runModel(page);
  must(again.rows.length === 2 && again.rows.every((row) => / ms$/.test(row)), again.rows.join("; "));
  return words.rows[0];
}

/** With WebGPU. */
export async function faults(browser, address) {
  const on = (folder, body, browser) => async () => {
    const page = await newPage(browser, `${address}/${folder}/`);
    try {
      return await body(page);
    } finally {
      await page.close();
    }
  };
  await test("bad models are explained and the page goes on", on("demo", badModels, browser));
  await test("a tensor of too many elements is explained and the page goes on", on("demo", tooManyElements, browser));
  await test("a tensor above the limit of one binding is refused with the limit", on("test", moreThanOneBinding, browser));
  await test("a model chosen while another runs takes its place", on("demo", chosenInARun, browser));
  await test("a panic is explained and the page goes on", on("demo", endedModule, browser));
  await test("a tab closed in a run harms no other", () => closedTab(browser, address));
  // Chromium offers no WebGPU any more after a few crashes, so each has a browser of its own.
  for (const [name, body] of [["a lost device", lostDevice], ["a device lost in a run", lostInARun]]) {
    const other = await open();
    await test(`${name} is explained and the next run opens another`, on("demo", (page) => body(other, page), other));
    await other.close();
  }
}

/** In a browser without WebGPU: the module's memory is all there is. */
export async function memory(browser, address) {
  await test("a model that needs more memory than there is is explained and the page goes on", async () => {
    const page = await newPage(browser, `${address}/demo/`);
    // Twelve outputs of half a gigabyte: a module has four.
    await giveModel(page, "doubled.onnx", doubledProducts(12));
    await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
    await page.fill("#sizes input", "11000");
    const { rows } = await runModel(page);
    must(rows.length === 1 && /not enough memory/.test(rows[0]), rows.join("; "));
    await goesOn(page, 1);
    await page.close();
    return rows[0];
  });
}
