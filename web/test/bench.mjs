// Times models beside ONNX Runtime Web in the same browser: `cargo xtask web bench`. Prints a table for docs.

import { newPage, open } from "./browser.mjs";
import { start } from "./folders.mjs";

const ENGINES = [
  ["Olivine", "olivine", "webgpu"],
  ["ONNX Runtime Web", "onnxRuntime", "webgpu"],
  ["Olivine", "olivine", "cpu"],
  ["ONNX Runtime Web", "onnxRuntime", "wasm"],
];

const { server, address } = await start();
const browser = await open();
const first = await newPage(browser, `${address}/test/`);
const names = await first.evaluate(async () => (await import("/test/zoo.js")).MODELS.map((model) => model.name));
await first.close();
const wanted = process.argv.slice(2);

const rows = [];
for (const name of names.filter((name) => !wanted.length || wanted.includes(name))) {
  const times = [];
  for (const [, engine, device] of ENGINES) {
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
  console.error(name, times.map((time) => time?.toFixed(2)).join(" "));
}

const ratio = (times, at) => times[at + 1] && times[at] && times[at + 1] / times[at];
const mean = (at) => {
  const ratios = rows.map(([, times]) => ratio(times, at)).filter(Boolean);
  return Math.exp(ratios.reduce((sum, r) => sum + Math.log(r), 0) / ratios.length);
};
const cell = (time) => (time === undefined ? "fails" : time.toFixed(time < 10 ? 2 : 1));
const times = (x) => (x ? `${x.toFixed(2)}×` : "–");
console.log("| model | WebGPU: Olivine | ONNX Runtime | ratio | CPU: Olivine | ONNX Runtime | ratio |");
console.log("|---|--:|--:|--:|--:|--:|--:|");
for (const [name, t] of rows) {
  console.log(`| ${name} | ${cell(t[0])} | ${cell(t[1])} | ${times(ratio(t, 0))} | ${cell(t[2])} | ${cell(t[3])} | ${times(ratio(t, 2))} |`);
}
console.log(`| geometric mean | | | ${times(mean(0))} | | | ${times(mean(2))} |`);
await browser.close();
server.close();
