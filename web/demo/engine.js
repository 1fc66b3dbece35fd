// Olivine in a worker of its own, so that the page stays responsive while the CPU computes. A worker whose module has
// stopped is replaced, and models that went with it or with a lost device are loaded again when they are next used.

export class Engine {
  #worker;
  #calls = new Map();
  /** Models by key: how to load each, whether the worker has it, and on which device. */
  #models = new Map();
  #next = 0;
  /** Counts the GPU devices that were lost. */
  #lost = 0;

  #start() {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => {
      const call = this.#calls.get(data.id);
      if (!call) return;
      if (data.progress) return call.onProgress?.(data.progress);
      this.#calls.delete(data.id);
      if (data.error === undefined) return call.resolve(data.result);
      call.reject(new Error(data.error));
      if (data.stopped) this.restart(data.error);
    };
    worker.onerror = (event) => this.restart(event.message || "the worker cannot be started");
    this.#worker = worker;
  }

  /** Ends the worker; what it was doing fails with these words, and the next call starts another. */
  restart(words) {
    this.#worker?.terminate();
    this.#worker = undefined;
    for (const call of this.#calls.values()) call.reject(new Error(words));
    this.#calls.clear();
    for (const model of this.#models.values()) model.loaded = false;
  }

  /** Says how a model is loaded, `{key, source, options}`; the first `use` does it. `how` is the worker's call. */
  expect(argument, how = "load") {
    this.#models.set(argument.key, { argument, how, loaded: false });
  }

  /** Loads a model now and returns what it says of itself. */
  load(argument, onProgress, how = "load") {
    this.expect(argument, how);
    return this.#load(this.#models.get(argument.key), onProgress);
  }

  async #load(model, onProgress) {
    model.lost = this.#lost;
    return this.#watched(model, async () => {
      const said = await this.call(model.how, model.argument, onProgress);
      model.loaded = true;
      model.device = said.device;
      return said;
    });
  }

  /** A call on the model of `argument.key`. */
  async use(name, argument, onProgress) {
    const model = this.#models.get(argument.key);
    if (model && !model.loaded) await this.#load(model);
    return this.#watched(model, () => this.call(name, argument, onProgress));
  }

  /** Work on a model. If its device is lost, so are the other models on that device, but none that was loaded since. */
  async #watched(model, work) {
    const since = model?.lost;
    try {
      return await work();
    } catch (error) {
      if (model && /device was lost/.test(error.message)) {
        const gone = ({ device, lost }) => device === "webgpu" && lost === since;
        for (const other of this.#models.values()) if (gone(other)) other.loaded = false;
        this.#lost = Math.max(this.#lost, since + 1);
      }
      throw error;
    }
  }

  call(name, argument, onProgress) {
    if (!this.#worker) this.#start();
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject, onProgress });
      this.#worker.postMessage({ id, name, argument });
    });
  }
}
