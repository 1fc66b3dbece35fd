// Headless Chromium with WebGPU on the processor, and pages whose errors count.

import { chromium } from "playwright-core";

/** Opens the browser; `gpu: false` opens it without WebGPU. */
export function open({ gpu = true } = {}) {
  const webgpu = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--headless=new", "--no-sandbox", ...(gpu ? webgpu : ["--disable-features=WebGPU"])],
  });
}

/** A page whose errors are kept; `first` runs in it before all else. */
export async function newPage(browser, address, viewport = { width: 1280, height: 900 }, first = undefined) {
  const page = await browser.newPage({ viewport, deviceScaleFactor: viewport.width < 600 ? 2 : 1 });
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") page.problems.push(message.text());
  });
  if (first) await page.addInitScript(first);
  await page.goto(address);
  return page;
}
