// The table of cases on WebGPU: `cargo xtask web cases [--step N] [--device cpu] [FILTER]`. A case is wrong, or refused
// for another reason than f64, which browsers do not have: that is a failure.

import { newPage, open } from "./browser.mjs";
import { start } from "./folders.mjs";

const args = process.argv.slice(2);
const option = (name) => {
  const at = args.indexOf(`--${name}`);
  return at < 0 ? undefined : args.splice(at, 2)[1];
};
const query = { step: option("step") ?? "1", device: option("device") ?? "webgpu", filter: args[0] ?? "" };

const { server, address } = await start();
const total = { passed: 0, refused: [], wrong: [] };
let first = 0;
for (let all = 1; first < all; ) {
  // A new browser now and then: a module's memory only grows, and a page may be lost on the way.
  const browser = await open();
  const page = await newPage(browser, `${address}/test/cases.html?${new URLSearchParams({ ...query, first })}`);
  await page.waitForFunction(() => window.report, null, { timeout: 120_000 }).catch(() => {});
  let last = { at: -1, since: Date.now() };
  let report;
  for (;;) {
    await page.waitForTimeout(1000);
    const now = await page.evaluate(() => window.report).catch(() => undefined);
    report = now ?? report;
    if (!now || report.done || page.problems.some((text) => /panicked|unreachable/.test(text))) break;
    if (report.next !== last.at) last = { at: report.next, since: Date.now() };
    else if (Date.now() - last.since > 300_000) break;
    process.stderr.write(`\r${report.next} of ${report.all} `);
  }
  if (!report) throw new Error(page.problems.join("; ") || "the page does not start");
  total.passed += report.passed;
  total.refused.push(...report.refused);
  total.wrong.push(...report.wrong);
  all = report.all;
  first = report.next;
  if (!report.done) {
    total.wrong.push(`case ${report.next} stopped the page: ${page.problems.at(-1) ?? "it does not end"}`);
    first += Number(query.step);
  }
  await browser.close();
}
server.close();

const wide = total.refused.filter((line) => /the device has no f64|f64/.test(line));
const other = total.refused.filter((line) => !wide.includes(line));
console.log(`${total.passed} passed, ${wide.length} refused for f64, ${other.length} refused for another reason, ${total.wrong.length} wrong`);
for (const line of [...total.wrong, ...other]) console.log(line);
process.exitCode = total.wrong.length ? 1 : 0;
