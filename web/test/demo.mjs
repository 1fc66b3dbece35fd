// The demo as a person uses it, with screenshots.

import { join } from "node:path";
import { newPage } from "./browser.mjs";
import { SHOTS, ZOO } from "./folders.mjs";
import { PHONE, WIDE, guess, must, runSample, test } from "./harness.mjs";

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
      const page = await newPage(browser, `${address}/demo/`, viewport);
      await page.waitForFunction(() => /^WebGPU/.test(document.querySelector("#device").textContent), null, { timeout: 60_000 });
      const seven = await guess(page);
      must(/^7/.test(seven), `a seven is read as ${seven}`);
      const { rows, agreement } = await runSample(page);
      must(rows.length === 2 && rows.every((row) => / ms$/.test(row)), rows.join("; "));
      must(/agree|same bits/.test(agreement), agreement);
      const cosines = await compareSentences(page);
      await screenshot(page, name);
      must(page.problems.length === 0, page.problems.join("; "));
      await page.close();
      return `${seven}; ${rows.join(", ")}; MiniLM ${cosines.join(" ")}`;
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
