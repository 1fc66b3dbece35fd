// A language model: text after a prompt or a chat, piece by piece.

import { guarded } from "./guard.js";
import { Handle } from "./handle.js";
import { onSession } from "./sessions.js";

/** A language model compiled for a device. */
export class LanguageModel {
  #place;
  #handle;
  /** The end of the last text that was begun: the module generates one at a time. */
  #last = Promise.resolve();
  /** Ends the text that waits for its last piece to be taken. */
  #end;

  constructor(place, model) {
    this.device = place.device;
    this.deviceName = place.session.name().replace(/[ ·]+$/, "");
    this.name = model.name;
    this.context = model.context;
    this.chats = model.chats;
    this.#place = place;
    this.#handle = new Handle(model);
  }

  /** The tokens of a text. */
  tokenize(text, { special = true } = {}) {
    return Array.from(this.#handle.object.tokenize(text, special));
  }

  /** The text of tokens. */
  detokenize(ids) {
    return this.#handle.object.detokenize(Uint32Array.from(ids));
  }

  /** Generates after a text, or answers to a chat: yields pieces of text, then why it ended. */
  async *generate(prompt, options = {}) {
    const { signal, json, ...numbers } = options;
    signal?.throwIfAborted();
    // Known before others end.
    this.#handle.object;
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
      if (signal?.aborted || this.#handle.freed) return false;
      const taken = new Promise((resolve) => (resume = resolve));
      this.#end = () => resume(false);
      give({ text, tokens });
      return taken;
    };
    const whole = (model) => onSession(this.#place, () => model.generate(given, chat, { ...numbers, json: schema }, each));
    let next = fresh();
    this.#last = this.#last
      .then(() => guarded(() => this.#handle.use(whole)))
      .then((end) => give({ text: "", ...end }), (error) => fail(error));
    try {
      for (;;) {
        const piece = await next;
        if (piece.finish) {
          signal?.throwIfAborted();
          // A text that was ended from outside was ended by `free`.
          if (piece.finish === "stopped") this.#handle.object;
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

  /** Frees its memory now instead of when it is collected; a text that is under way ends. */
  free() {
    this.#handle.free();
    this.#end?.();
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
