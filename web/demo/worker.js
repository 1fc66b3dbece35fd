// The worker's side of engine.js: models by key, each loaded for one device.

import { WordPiece, device, load, loadLanguageModel } from "../olivine/index.js";

const models = new Map();
/** Ends the load that is under way, by key. */
const loading = new Map();
/** Ends a text, by its number; a text may be ended before it begins. */
const texts = new Map();

/** Puts a model in the place of another, which goes first: there may be no room for both. */
async function replace(key, open) {
  loading.get(key)?.abort(new Error("another model was loaded in its place"));
  const controller = new AbortController();
  const { signal } = controller;
  loading.set(key, controller);
  const old = models.get(key);
  models.delete(key);
  old?.free();
  const model = await open(signal);
  if (signal.aborted) {
    model.free();
    throw signal.reason;
  }
  models.set(key, model);
  return model;
}

/** An encoder of sentences with its tokenizer. */
class Encoder {
  constructor(model, tokenizer) {
    Object.assign(this, { model, tokenizer });
  }

  async embed(text) {
    const ids = BigInt64Array.from(this.tokenizer.encode(text), BigInt);
    const dims = [1, ids.length];
    const { sentence_embedding } = await this.model.run({
      input_ids: { data: ids, dims },
      attention_mask: { data: new BigInt64Array(ids.length).fill(1n), dims },
      token_type_ids: { data: new BigInt64Array(ids.length), dims },
    });
    return sentence_embedding.data;
  }

  free() {
    this.model.free();
    this.tokenizer.free();
  }
}

function textOf(number) {
  if (!texts.has(number)) texts.set(number, new AbortController());
  return texts.get(number);
}

const calls = {
  device: ({ wanted } = {}) => device(wanted),

  async load({ key, source, options }, onProgress) {
    const model = await replace(key, (signal) => load(source, { ...options, signal, onProgress }));
    const { inputs, outputs, summary, deviceName } = model;
    return { device: model.device, deviceName, inputs, outputs, summary };
  },

  run: ({ key, feeds }) => find(key).run(feeds),

  async loadEncoder({ key, source, vocabulary, options }, onProgress) {
    const { model } = await replace(key, async (signal) => {
      const maxTokens = JSON.parse(options.config).max_position_embeddings;
      const tokenizer = await WordPiece.load(vocabulary, { maxTokens });
      try {
        return new Encoder(await load(source, { ...options, signal, onProgress }), tokenizer);
      } catch (error) {
        tokenizer.free();
        throw error;
      }
    });
    return { device: model.device };
  },

  embed: ({ key, text }) => find(key).embed(text),

  async loadText({ key, source, options }, onProgress) {
    const model = await replace(key, (signal) => loadLanguageModel(source, { ...options, signal, onProgress }));
    const { device, name, chats, context } = model;
    return { device, name, chats, context };
  },

  // Answers to a chat or continues a text; pieces go to the page as they come.
  async write({ key, text, prompt, options }, onProgress) {
    const { signal } = textOf(text);
    let last;
    try {
      for await (last of find(key).generate(prompt, { ...options, signal })) onProgress(last);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      texts.delete(text);
    }
    return last;
  },

  stop: ({ text }) => textOf(text).abort(),

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
