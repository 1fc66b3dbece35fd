// Olivine in a worker of its own, so that the page stays responsive while the CPU computes. A worker whose module has
// stopped is replaced, and the page goes on.

export class Engine {
  #worker;
  #calls = new Map();
  #next = 0;

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
    this.onrestart?.();
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
