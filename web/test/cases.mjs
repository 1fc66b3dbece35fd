// The table of cases on WebGPU: `cargo xtask web cases [--step N] [--device cpu] [--jobs N] [FILTER]`. A case that is wrong, or
// refused for another reason than an element type that browsers do not have, is a failure. What was refused is listed in
// `target/web-pages/cases.txt`.

import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { newPage, open } from "./browser.mjs";
import { SHOTS, start } from "./folders.mjs";

const args = process.argv.slice(2);
const option = (name, otherwise) => {
  const at = args.indexOf(`--${name}`);
  return at < 0 ? otherwise : args.splice(at, 2)[1];
};
const step = Number(option("step", 1));
const jobs = Number(option("jobs", 2));
const query = { step, device: option("device", "webgpu"), filter: args[0] ?? "" };

/** Cases that one page runs: a module's memory only grows. Neighbours in the table share kernels. */
const PER_PAGE = 250 * step;
const STUCK_MS = 300_000;

const { server, address } = await start();
const total = { passed: 0, refused: [], wrong: [] };
let [next, all, done] = [0, Infinity, 0];
const begun = Date.now();

/** Runs cases of a range on a page and returns where it stopped: past the range, or past a case that took the page down. */
async function runRange(first, last) {
  // A browser of its own: each has a GPU process, where kernels are compiled one after another.
  const browser = await open();
  const page = await newPage(browser, `${address}/test/cases.html?${new URLSearchParams({ ...query, first, last })}`);
  await page.waitForFunction(() => window.report, null, { timeout: 120_000 }).catch(() => {});
  let seen = { at: -1, since: Date.now() };
  let report;
  for (;;) {
    await page.waitForTimeout(250);
    const now = await page.evaluate(() => window.report).catch(() => undefined);
    report = now ?? report;
    if (!now || report.done || page.problems.some((text) => /panicked|unreachable/.test(text))) break;
    if (report.next !== seen.at) seen = { at: report.next, since: Date.now() };
    else if (Date.now() - seen.since > STUCK_MS) break;
  }
  await browser.close();
  if (!report) throw new Error(page.problems.join("; ") || "the page does not start");
  all = report.all;
  total.denormals = report.denormals;
  total.passed += report.passed;
  total.refused.push(...report.refused);
  total.wrong.push(...report.wrong);
  if (report.done) return last;
  const problem = page.problems.at(-1) ?? "it does not end";
  total.wrong.push(`${report.name} (case ${report.next}) stopped the page: ${problem}`);
  return report.next + step;
}

async function work() {
  while (next < all) {
    const first = next;
    const last = (next += PER_PAGE);
    for (let at = first; at < Math.min(last, all); ) at = await runRange(at, last);
    done += 1;
    const seconds = ((Date.now() - begun) / 1000).toFixed(0);
    console.error(`${Math.min(done * PER_PAGE, all)} of ${all} in ${seconds} s: ${total.passed} passed, ${total.refused.length} refused, ${total.wrong.length} wrong`);
  }
}
await Promise.all(Array.from({ length: jobs }, work));
server.close();

const f64 = total.refused.filter((line) => /the device has no f64\b/.test(line));
const other = total.refused.filter((line) => !f64.includes(line));
const words =
  `${total.passed} passed, ${f64.length} refused for f64, ${other.length} refused for another reason, ` +
  `${total.wrong.length} wrong; denormals are ${total.denormals}`;
console.log(words);
for (const line of [...total.wrong, ...other]) console.log(line);
await mkdir(SHOTS, { recursive: true });
const list = (title, lines) => [`${title}: ${lines.length}`, ...lines.sort(), ""];
const text = [words, "", ...list("wrong", total.wrong), ...list("refused for another reason", other), ...list("refused for f64", f64)];
await writeFile(join(SHOTS, "cases.txt"), text.join("\n"));
process.exitCode = total.wrong.length + other.length ? 1 : 0;
