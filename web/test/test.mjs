// The package and the demo in headless Chromium: `cargo xtask web`.

import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { open } from "./browser.mjs";
import { demo, demoWithoutWebGpu } from "./demo.mjs";
import { faults, memory } from "./faults.mjs";
import { ROOT, SHOTS, start } from "./folders.mjs";
import { failed, must, test } from "./harness.mjs";
import { models } from "./models.mjs";
import { calls } from "./package.mjs";
import { text, textOnCpu } from "./text.mjs";
import { types } from "./types.mjs";

const MOST_BYTES = 4e6;

// All parts, or those named: `cargo xtask web test faults memory`.
const named = process.argv.slice(2);
const wanted = (part) => !named.length || named.includes(part.name);

const { server, address } = await start();
await mkdir(SHOTS, { recursive: true });

await test("the module is small", async () => {
  const size = gzipSync(await readFile(join(ROOT, "web/olivine/wasm/olivine_web_bg.wasm")), { level: 9 }).length;
  must(size <= MOST_BYTES, `${size} bytes gzipped, the limit is ${MOST_BYTES}`);
  return `${size} bytes gzipped`;
});

if (wanted(types)) await types();

let browser = await open();
for (const part of [demo, models, calls, text, faults].filter(wanted)) await part(browser, address);
await browser.close();

browser = await open({ gpu: false });
for (const part of [demoWithoutWebGpu, textOnCpu, memory].filter(wanted)) await part(browser, address);
await browser.close();

server.close();
console.log(failed ? `${failed} failed` : `all passed; screenshots are in ${SHOTS}`);
process.exitCode = failed ? 1 : 0;
