// The worker's side of engine.js: models by key, each loaded for one device.

import { device, load } from "../olivine/index.js";

const models = new Map();

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

  // The token after these: the likeliest at temperature 0, else one of the likeliest by chance.
  async next({ key, tokens, temperature }) {
    const data = BigInt64Array.from(tokens, BigInt);
    const { logits } = await find(key).run({ tokens: { data, dims: [1, tokens.length] } });
    const vocabulary = logits.dims.at(-1);
    return choose(logits.data.subarray(logits.data.length - vocabulary), temperature);
  },

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

const CANDIDATES = 40;

function choose(scores, temperature) {
  if (!(temperature > 0)) {
    return scores.reduce((best, score, id) => (score > scores[best] ? id : best), 0);
  }
  const ids = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a]).slice(0, CANDIDATES);
  const weights = ids.map((id) => Math.exp((scores[id] - scores[ids[0]]) / temperature));
  let left = Math.random() * weights.reduce((sum, weight) => sum + weight, 0);
  return ids.find((_, i) => (left -= weights[i]) <= 0) ?? ids[0];
}

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
