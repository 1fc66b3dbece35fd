// Times models beside ONNX Runtime Web in the same browser: `cargo xtask web bench [--device webgpu|cpu] [MODEL...]`. Prints a
// table for docs.

import { newPage, open } from "./browser.mjs";
import { start } from "./folders.mjs";

const ENGINES = [
  ["olivine", "webgpu"],
  ["onnxRuntime", "webgpu"],
  ["olivine", "cpu"],
  ["onnxRuntime", "wasm"],
];

const { server, address } = await start();
const browser = await open();
const first = await newPage(browser, `${address}/test/`);
const names = await first.evaluate(async () => (await import("/test/zoo.js")).MODELS.map((model) => model.name));
await first.close();
const args = process.argv.slice(2);
const at = args.indexOf("--device");
const only = at < 0 ? undefined : args.splice(at, 2)[1];
const asked = (device) => !only || (only === "webgpu") === (device === "webgpu");

const rows = [];
for (const name of names.filter((name) => !args.length || args.includes(name))) {
  const times = [];
  for (const [engine, device] of ENGINES) {
    if (!asked(device)) {
      times.push(undefined);
      continue;
    }
    // A page of its own, so that no engine runs in another's leftovers.
    const page = await newPage(browser, `${address}/test/`);
    await page.waitForFunction(() => window.olivine);
    const time = await page
      .evaluate(
        async ({ name, engine, device }) => {
          const zoo = await import("/test/zoo.js");
          const model = zoo.find(name);
          const { run } = await zoo[engine](model, device);
          return zoo.time(run, model.feeds());
        },
        { name, engine, device },
      )
      .catch((error) => {
        console.error(`${name}: ${engine} on ${device}: ${error.message.split("\n")[0]}`);
        return undefined;
      });
    times.push(time);
    await page.close();
  }
  rows.push([name, times]);
  console.error(name, times.map((time) => time?.toFixed(4)).join(" "));
}

const ratio = (times, at) => times[at + 1] && times[at] && times[at + 1] / times[at];
const mean = (at) => {
  const ratios = rows.map(([, times]) => ratio(times, at)).filter(Boolean);
  return Math.exp(ratios.reduce((sum, r) => sum + Math.log(r), 0) / ratios.length);
};
const cell = (time) => (time === undefined ? "–" : time.toFixed(time < 0.1 ? 4 : time < 10 ? 2 : 1));
const times = (x) => (x ? `${x.toFixed(2)}×` : "–");
console.log("| model | WebGPU: Olivine | ONNX Runtime | ratio | CPU: Olivine | ONNX Runtime | ratio |");
console.log("|---|--:|--:|--:|--:|--:|--:|");
for (const [name, t] of rows) {
  console.log(`| ${name} | ${cell(t[0])} | ${cell(t[1])} | ${times(ratio(t, 0))} | ${cell(t[2])} | ${cell(t[3])} | ${times(ratio(t, 2))} |`);
}
console.log(`| geometric mean | | | ${times(mean(0))} | | | ${times(mean(2))} |`);
await browser.close();
server.close();
