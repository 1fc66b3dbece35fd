// Olivine in the browser: load a model, run it on WebGPU or on the CPU. Works in pages and in workers.

import init, { Download, Session } from "./wasm/olivine_web.js";
import { download } from "./download.js";
import { LanguageModel } from "./language.js";
import { fromModule, toModule } from "./tensors.js";

export { clearCache } from "./cache.js";
export { LanguageModel };

let module;
let stopped;
const sessions = new Map();

/** Loads the WebAssembly module, once; `load` and `device` do it by themselves. */
export function ready(source) {
  module ??= init({ module_or_path: source ?? new URL("./wasm/olivine_web_bg.wasm", import.meta.url) });
  return module;
}

// A panic ends the module; what it said is on the console. Everything later would only fail in odd ways.
async function guarded(work) {
  if (stopped) throw stopped;
  try {
    return await work();
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError) {
      stopped = new Error(`Olivine has stopped (${error.message}): reload the page, or start a new worker`);
      throw stopped;
    }
    throw error;
  }
}

function open(device) {
  if (!sessions.has(device)) {
    const opened = Session.open(device);
    sessions.set(device, opened);
    // A device that cannot be opened now may be there later.
    opened.catch(() => sessions.delete(device));
  }
  return sessions.get(device);
}

async function choose(device = "auto") {
  if (device !== "auto") return { device, session: await open(device) };
  try {
    return { device: "webgpu", session: await open("webgpu") };
  } catch (error) {
    return { device: "cpu", session: await open("cpu"), reason: error.message };
  }
}

// Browsers say little of a GPU, and where they say it differs.
async function nameOf(device, session) {
  if (device === "cpu") return session.name();
  const info = (await navigator.gpu.requestAdapter())?.info;
  const words = [info?.vendor, info?.architecture, info?.description].filter(Boolean);
  return words.join(" ") || session.name().replace(/[ ·]+$/, "");
}

/** What `load` runs on: WebGPU where the browser offers it, else the CPU, with the reason. */
export async function device(wanted = "auto") {
  await ready();
  return guarded(async () => {
    const { device, session, reason } = await choose(wanted);
    return { device, name: await nameOf(device, session), reason };
  });
}

/** Loads a GGUF language model and compiles it for a device. */
export async function loadLanguageModel(source, options = {}) {
  await ready();
  return guarded(async () => {
    const { device, session } = await choose(options.device);
    const file = await download(source, Download, options);
    const model = session.compileLanguageModel(file, options.context);
    return new LanguageModel(device, session, model, (work) => guarded(() => lostIs(device, work())));
  });
}

/** Loads a model and compiles it for a device. */
export async function load(source, options = {}) {
  await ready();
  return guarded(async () => {
    const { device, session } = await choose(options.device);
    const sizes = options.sizes ?? {};
    if (options.config !== undefined) {
      const file = await download(source, Download, options);
      return new Model(device, session, await lostIs(device, session.compileBert(options.config, file, sizes)));
    }
    const file = await download(source, Download, options);
    return new Model(device, session, await lostIs(device, session.compile(file, sizes)));
  });
}

// After a device is lost, the next `load` opens it anew.
async function lostIs(device, work) {
  try {
    return await work;
  } catch (error) {
    if (/device was lost/.test(error?.message)) sessions.delete(device);
    throw error;
  }
}

/** A model compiled for a device. */
export class Model {
  #model;

  constructor(device, session, model) {
    this.device = device;
    this.deviceName = session.name().replace(/[ ·]+$/, "");
    this.#model = model;
    this.inputs = model.inputs();
    this.outputs = model.outputs();
    this.summary = model.summary();
  }

  /** Runs on typed arrays by name. */
  run(feeds) {
    return guarded(async () => {
      if (!this.#model) throw new Error("the model was freed");
      return fromModule(await lostIs(this.device, this.#model.run(toModule(feeds, this.inputs))));
    });
  }

  /** Frees its memory now instead of when it is collected. */
  free() {
    this.#model?.free();
    this.#model = undefined;
  }
}
