// The worker's side of engine.js: models by key, each loaded for one device.

import { device, load, loadLanguageModel } from "../olivine/index.js";

const models = new Map();
/** Ends the text that is being written. */
let talking;

const calls = {
  device: ({ wanted } = {}) => device(wanted),

  async load({ key, source, options }, onProgress) {
    models.get(key)?.free();
    models.delete(key);
    const model = await load(source, { ...options, onProgress });
    models.set(key, model);
    const { inputs, outputs, summary, deviceName } = model;
    return { device: model.device, deviceName, inputs, outputs, summary };
  },

  run: ({ key, feeds }) => find(key).run(feeds),

  async loadText({ key, source, options }, onProgress) {
    models.get(key)?.free();
    models.delete(key);
    const model = await loadLanguageModel(source, { ...options, onProgress });
    models.set(key, model);
    const { device, name, chats, context } = model;
    return { device, name, chats, context };
  },

  // Answers to a chat or continues a text; pieces go to the page as they come.
  async write({ key, prompt, options }, onProgress) {
    let last;
    talking = new AbortController();
    try {
      for await (last of find(key).generate(prompt, { ...options, signal: talking.signal })) onProgress(last);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
    return last;
  },

  stop: () => talking?.abort(),

  // Times of several runs after the first, which compiles for the sizes that come.
  async measure({ key, feeds, least, most, samples }) {
    const model = find(key);
    const outputs = await model.run(feeds);
    const times = [];
    const begun = performance.now();
    while (times.length < least || (times.length < samples && performance.now() - begun < most)) {
      // A sample is as many runs as a page's clock, which is coarse, can tell apart.
      const start = performance.now();
      let runs = 0;
      do {
        await model.run(feeds);
        runs += 1;
      } while (performance.now() - start < 5);
      times.push((performance.now() - start) / runs);
    }
    times.sort((a, b) => a - b);
    return { outputs, median: times[times.length >> 1] };
  },
};

function find(key) {
  const model = models.get(key);
  if (!model) throw new Error("the model is not loaded any more: load it again");
  return model;
}

self.onmessage = async ({ data: { id, name, argument } }) => {
  try {
    const result = await calls[name](argument, (progress) => self.postMessage({ id, progress }));
    self.postMessage({ id, result });
  } catch (error) {
    const words = error?.message ?? String(error);
    self.postMessage({ id, error: words, stopped: /^Olivine has stopped/.test(words) });
  }
};
