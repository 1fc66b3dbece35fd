// Tests with names that print what they found, and what a person does in the demo.

import { join } from "node:path";
import { existsSync, statSync } from "node:fs";
import { ROOT } from "./folders.mjs";

export const WIDE = { width: 1280, height: 900 };
export const PHONE = { width: 390, height: 844 };
const SECONDS = 1000;

/** The native program: the newest that is built. */
export const PROGRAM = ["release", "debug"]
  .map((profile) => join(ROOT, "target", profile, "olivine"))
  .filter((path) => existsSync(path))
  .sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs)[0];

/** How many tests failed. */
export let failed = 0;

/** Runs a test; its body returns words for the report, or throws. */
export async function test(name, body) {
  const begun = Date.now();
  const seconds = () => `(${((Date.now() - begun) / 1000).toFixed(1)} s)`;
  try {
    const words = await body();
    console.log(`ok    ${name}${words ? `: ${words}` : ""} ${seconds()}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message.split("\n")[0].slice(0, 600)} ${seconds()}`);
  }
}

export function must(holds, words) {
  if (!holds) throw new Error(words);
}

/** How far outputs are from others, `[name, {data}]` in the order of names: for the output that differs most the L2 norm of the
 * difference, relative to that of the other. */
export function difference(outputs, expected) {
  must(outputs.length === expected.length, `${outputs.length} outputs, not ${expected.length}`);
  const sorted = [...outputs].sort(([a], [b]) => (a < b ? -1 : 1));
  return sorted.reduce((most, [name, { data }], i) => {
    const other = expected[i].data;
    must(data.length === other.length, `${name}: ${data.length} elements, not ${other.length}`);
    let [apart, size] = [0, 0];
    data.forEach((x, k) => {
      apart += (Number(x) - Number(other[k])) ** 2;
      size += Number(other[k]) ** 2;
    });
    const relative = Math.sqrt(apart / (size || 1));
    must(!Number.isNaN(relative), `${name} has NaN`);
    return Math.max(most, relative);
  }, 0);
}

/** Draws strokes, as parts of the pad's width and height. */
export async function draw(page, strokes) {
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

export const SEVEN = [[[0.28, 0.2], [0.72, 0.2], [0.42, 0.82]]];

/** Draws a seven and returns what the page reads. */
export async function guess(page) {
  await draw(page, SEVEN);
  await page.waitForFunction(() => /% sure/.test(document.querySelector("#guess").textContent), null, { timeout: 60 * SECONDS });
  return page.textContent("#guess");
}

/** Gives the page a model as a file of its own. */
export function giveModel(page, name, buffer) {
  return page.setInputFiles("#file", { name, mimeType: "application/octet-stream", buffer });
}

/** Loads the sample, runs it, and returns what the page says of it. */
export async function runSample(page) {
  await page.click("#samples button");
  await page.waitForSelector("#loaded:not([hidden])", { timeout: 60 * SECONDS });
  return runModel(page);
}

/** Runs the model that is loaded, and returns what the page says of it. */
export async function runModel(page) {
  await page.click("#run");
  const done = () => !document.querySelector("#run").disabled && document.querySelector("#bars").children.length;
  await page.waitForFunction(done, null, { timeout: 120 * SECONDS });
  return page.evaluate(() => ({
    rows: [...document.querySelectorAll("#bars div")].map((row) => row.innerText.replace(/\s+/g, " ")),
    agreement: document.querySelector("#agreement").textContent,
  }));
}

/** Does something that goes wrong, and returns what the page says. */
export async function withProblem(page, act) {
  await act();
  await page.waitForSelector("#problem:not([hidden])", { timeout: 120 * SECONDS });
  return page.textContent("#problem");
}

/** Ends the process that all of the browser's devices are in. */
export async function crashGpu(browser) {
  await (await browser.newBrowserCDPSession()).send("Browser.crashGpuProcess").catch(() => {});
}
