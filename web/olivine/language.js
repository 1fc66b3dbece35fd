// A language model: text after a prompt or a chat, piece by piece.

/** A language model compiled for a device. */
export class LanguageModel {
  #model;
  #guarded;
  /** The end of the last text that was begun: the module generates one at a time. */
  #last = Promise.resolve();

  constructor(device, session, model, guarded) {
    this.device = device;
    this.deviceName = session.name().replace(/[ ·]+$/, "");
    this.name = model.name;
    this.context = model.context;
    this.chats = model.chats;
    this.#model = model;
    this.#guarded = guarded;
  }

  /** The tokens of a text. */
  tokenize(text, { special = true } = {}) {
    return Array.from(this.#there().tokenize(text, special));
  }

  /** The text of tokens. */
  detokenize(ids) {
    return this.#there().detokenize(Uint32Array.from(ids));
  }

  /** Generates after a text, or answers to a chat: yields pieces of text, then why it ended. */
  async *generate(prompt, options = {}) {
    const { signal, json, ...numbers } = options;
    signal?.throwIfAborted();
    const model = this.#there();
    const chat = typeof prompt !== "string";
    const given = chat ? JSON.stringify(prompt) : prompt;
    const schema = typeof json === "object" && json ? JSON.stringify(json) : json;
    // The module waits with the next token until this one was taken, and ends where nobody takes it any more.
    let give, fail, resume;
    const fresh = () => {
      const next = new Promise((resolve, reject) => ([give, fail] = [resolve, reject]));
      // Where nobody waits for it any more, an error is nobody's.
      next.catch(() => {});
      return next;
    };
    const each = async (text, tokens) => {
      await otherEvents();
      if (signal?.aborted) return false;
      const taken = new Promise((resolve) => (resume = resolve));
      give({ text, tokens });
      return taken;
    };
    let next = fresh();
    this.#last = this.#last
      .then(() => this.#guarded(() => model.generate(given, chat, { ...numbers, json: schema }, each)))
      .then((end) => give({ text: "", ...end }), (error) => fail(error));
    try {
      for (;;) {
        const piece = await next;
        if (piece.finish) {
          signal?.throwIfAborted();
          yield piece;
          return;
        }
        next = fresh();
        if (piece.text) yield piece;
        resume(true);
      }
    } finally {
      resume?.(false);
      await this.#last;
    }
  }

  /** Frees its memory now instead of when it is collected. */
  free() {
    this.#model?.free();
    this.#model = undefined;
  }

  #there() {
    if (!this.#model) throw new Error("the model was freed");
    return this.#model;
  }
}

// Lets messages and clicks in, also where the CPU computes and nothing else would.
function otherEvents() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(undefined);
  });
}
