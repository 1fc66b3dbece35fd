// An object of the module while calls on it are under way: only when none is may it be freed.

import { hasStopped } from "./guard.js";

export class Handle {
  #object;
  #calls = 0;

  constructor(object) {
    this.#object = object;
  }

  /** The object, or an error after `free`. */
  get object() {
    if (!this.#object) throw new Error("the model was freed");
    return this.#object;
  }

  get freed() {
    return !this.#object;
  }

  /** Awaits a call on the object, which stays until then. */
  async use(call) {
    const { object } = this;
    this.#calls += 1;
    try {
      return await call(object);
    } finally {
      this.#calls -= 1;
      if (this.freed) this.#release(object);
    }
  }

  /** Frees the object, after the calls that are under way; later calls fail. */
  free() {
    const object = this.#object;
    this.#object = undefined;
    if (object) this.#release(object);
  }

  #release(object) {
    // The memory of a module that has ended is gone with it.
    if (this.#calls === 0 && !hasStopped()) object.free();
  }
}
