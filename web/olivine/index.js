// Olivine in the browser: load a model, run it on WebGPU or on the CPU. Works in pages and in workers.

import init, { Download, WordPiece as Pieces, onPanic } from "./wasm/olivine_web.js";
import { download } from "./download.js";
import { guarded, stop } from "./guard.js";
import { Handle } from "./handle.js";
import { LanguageModel } from "./language.js";
import { choose, onSession } from "./sessions.js";
import { fromModule, toModule } from "./tensors.js";

export { clearCache } from "./cache.js";
export { LanguageModel };

let module;

/** Loads the WebAssembly module, once; `load` and `device` do it by themselves. */
export function ready(source) {
  module ??= start(source ?? new URL("./wasm/olivine_web_bg.wasm", import.meta.url)).catch((error) => {
    // What cannot be fetched now may be there later.
    module = undefined;
    throw error;
  });
  return module;
}

async function start(source) {
  const exports = await init({ module_or_path: source });
  onPanic(stop);
  return exports;
}

// Browsers say little of a GPU, and where they say it differs.
async function nameOf({ device, session }) {
  if (device === "cpu") return session.name();
  const info = (await navigator.gpu.requestAdapter())?.info;
  const words = [info?.vendor, info?.architecture, info?.description].filter(Boolean);
  return words.join(" ") || session.name().replace(/[ ·]+$/, "");
}

/** What `load` runs on: WebGPU where the browser offers it, else the CPU, with the reason. */
export async function device(wanted = "auto") {
  await ready();
  return guarded(async () => {
    const { place, reason } = await choose(wanted);
    return { device: place.device, name: await nameOf(place), reason };
  });
}

/** Loads a GGUF language model and compiles it for a device. */
export async function loadLanguageModel(source, options = {}) {
  await ready();
  return guarded(async () => {
    const { place } = await choose(options.device);
    const file = await download(source, Download, options);
    return new LanguageModel(place, await onSession(place, (session) => session.compileLanguageModel(file, options.context)));
  });
}

/** Loads a model and compiles it for a device. */
export async function load(source, options = {}) {
  await ready();
  return guarded(async () => {
    const { place } = await choose(options.device);
    const { config, sizes = {} } = options;
    const file = await download(source, Download, options);
    const compile = (session) =>
      config === undefined ? session.compile(file, sizes) : session.compileBert(config, file, sizes);
    return new Model(place, await onSession(place, compile));
  });
}

/** A model compiled for a device. */
export class Model {
  #place;
  #handle;

  constructor(place, model) {
    this.device = place.device;
    this.deviceName = place.session.name().replace(/[ ·]+$/, "");
    this.inputs = model.inputs();
    this.outputs = model.outputs();
    this.summary = model.summary();
    this.#place = place;
    this.#handle = new Handle(model);
  }

  /** Runs on typed arrays by name. */
  run(feeds) {
    return guarded(async () => {
      const inputs = toModule(feeds, this.inputs);
      const results = await this.#handle.use((model) => onSession(this.#place, () => model.run(inputs)));
      return fromModule(results, this.outputs);
    });
  }

  /** Frees its memory now instead of when it is collected; runs that are under way end first. */
  free() {
    this.#handle.free();
  }
}

/** The tokenizer of a BERT encoder. */
export class WordPiece {
  #handle;

  constructor(tokenizer) {
    this.#handle = new Handle(tokenizer);
  }

  /** Reads the text of a `vocab.txt`. */
  static async load(vocabulary, { lowercase = true, maxTokens = 512 } = {}) {
    await ready();
    return guarded(() => new WordPiece(new Pieces(vocabulary, lowercase, maxTokens)));
  }

  /** The tokens of a text, from `[CLS]` to `[SEP]`; a longer text is cut. */
  encode(text) {
    return Array.from(this.#handle.object.encode(text));
  }

  /** Frees its memory now instead of when it is collected. */
  free() {
    this.#handle.free();
  }
}
