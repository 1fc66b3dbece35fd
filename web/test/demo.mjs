// The demo as a person uses it, with screenshots.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { newPage } from "./browser.mjs";
import { SHOTS, ZOO } from "./folders.mjs";
import { PHONE, PROGRAM, WIDE, difference, giveModel, guess, must, runModel, runSample, test } from "./harness.mjs";
import { native, typed } from "./native.mjs";

/** Cosines of the sentences in the page, by the makers of the model. */
const COSINES = [0.6946, 0.9429, 0.2569];

async function compareSentences(page) {
  const files = ["config.json", "model.safetensors", "vocab.txt"].map((file) => join(ZOO, "minilm", file));
  await page.setInputFiles("#encoder", files);
  await page.waitForSelector("#similarities div, #problem:not([hidden])", { timeout: 180_000 });
  must(await page.isHidden("#problem"), await page.textContent("#problem"));
  const cosines = await page.locator("#similarities span").allTextContents();
  const right = cosines.length === COSINES.length && cosines.every((c, i) => Math.abs(Number(c) - COSINES[i]) <= 2e-4);
  must(right, `MiniLM gives ${cosines}, not ${COSINES}`);
  return cosines;
}

/** Keeps what the page's worker answers, for a look at more than the page shows. */
function keepAnswers() {
  window.answers = [];
  window.Worker = class extends Worker {
    constructor(...args) {
      super(...args);
      this.addEventListener("message", ({ data }) => data.result && window.answers.push(data.result));
    }
  };
}

/** A model of the zoo on both devices, beside the native CPU on the same inputs. */
async function runZooModel(page) {
  const path = join(ZOO, "magika/model.onnx");
  await giveModel(page, "magika.onnx", await readFile(path));
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60_000 });
  const { rows, agreement } = await runModel(page);
  must(rows.length === 2 && rows.every((row) => / ms$/.test(row)) && /agree/.test(agreement), `${rows.join("; ")}; ${agreement}`);
  const [feeds, ...outputs] = await page.evaluate(async () => {
    const { randomFeeds } = await import("./numbers.js");
    const plain = (tensors) =>
      Object.entries(tensors).map(([name, { data, dims }]) => [name, data.constructor.name, [...data].map(String), dims]);
    const { inputs } = window.answers.findLast((answer) => answer.inputs);
    const sizes = new FormData(document.querySelector("#sizes"));
    return [randomFeeds(inputs, sizes), ...window.answers.filter(({ median }) => median).slice(-2).map(({ outputs }) => outputs)].map(plain);
  });
  const expected = await native(PROGRAM, path, Object.fromEntries(typed(feeds)));
  const found = outputs.map((tensors) => difference(typed(tensors), expected));
  must(found.length === 2 && found.every((relative) => relative <= 1e-4), `magika differs from the native CPU by ${found}`);
  return `magika ${found.map((relative) => relative.toExponential(1)).join(" ")}`;
}

async function screenshot(page, name) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  must(wide <= 0, `the page is ${wide} pixels wider than the screen`);
  // Bars grow for a while.
  await page.waitForTimeout(400);
  await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

/** With WebGPU. */
export async function demo(browser, address) {
  for (const [name, viewport] of [["wide", WIDE], ["phone", PHONE]]) {
    await test(`the demo on a ${name} screen`, async () => {
      const page = await newPage(browser, `${address}/demo/`, viewport, keepAnswers);
      await page.waitForFunction(() => /^WebGPU/.test(document.querySelector("#device").textContent), null, { timeout: 60_000 });
      const seven = await guess(page);
      must(/^7/.test(seven), `a seven is read as ${seven}`);
      const { rows, agreement } = await runSample(page);
      must(rows.length === 2 && rows.every((row) => / ms$/.test(row)), rows.join("; "));
      must(/agree|same bits/.test(agreement), agreement);
      const zoo = await runZooModel(page);
      const cosines = await compareSentences(page);
      await screenshot(page, name);
      must(page.problems.length === 0, page.problems.join("; "));
      await page.close();
      return `${seven}; ${rows.join(", ")}; ${zoo}; MiniLM ${cosines.join(" ")}`;
    });
  }
}

/** In a browser without WebGPU. */
export async function demoWithoutWebGpu(browser, address) {
  await test("without WebGPU the page says so and runs on the CPU", async () => {
    const page = await newPage(browser, `${address}/demo/`, PHONE);
    await page.waitForFunction(() => /CPU/.test(document.querySelector("#device").textContent), null, { timeout: 60_000 });
    const said = await page.textContent("#device");
    const words = await guess(page);
    const { rows } = await runSample(page);
    must(rows.length === 1 && /CPU/.test(rows[0]), rows.join("; "));
    await screenshot(page, "cpu");
    await page.close();
    return `${said}; ${words}`;
  });
}
