// The module ends with a panic or another trap. What then waits for it is rejected, and so is what comes later.

let stopped;
/** Rejects each promise that waits for the module. */
const waiting = new Set();

/** Whether the module has ended. */
export function hasStopped() {
  return stopped !== undefined;
}

/** The module has ended, and says why. */
export function stop(reason) {
  stopped ??= new Error(`Olivine has stopped (${reason}): reload the page, or start a new worker`);
  for (const reject of waiting) reject(stopped);
  waiting.clear();
}

/** Does work that needs the module; a trap in it, or in whatever it waits for, rejects. */
export function guarded(work) {
  if (stopped) return Promise.reject(stopped);
  return new Promise((resolve, reject) => {
    // Not `Promise.race`: a promise that never settles would keep all that it ever raced with.
    waiting.add(reject);
    const failed = (error) => {
      waiting.delete(reject);
      if (isTrap(error)) stop(error.message);
      reject(stopped ?? error);
    };
    const done = (value) => {
      waiting.delete(reject);
      resolve(value);
    };
    try {
      Promise.resolve(work()).then(done, failed);
    } catch (error) {
      failed(error);
    }
  });
}

function isTrap(error) {
  return error instanceof WebAssembly.RuntimeError || (error instanceof RangeError && /call stack/.test(error.message));
}

// Futures of the module are polled in tasks of their own. Nothing but these events hears of a trap there, and lack of memory has
// no panic's message.
const folder = new URL(".", import.meta.url).href;
function heard(event, error) {
  const stack = error?.stack ?? "";
  if (!isTrap(error) || !(stack.includes(folder) || stack.includes("wasm://"))) return;
  // Whoever waits hears of it instead.
  if (waiting.size || stopped) event.preventDefault();
  stop(error.message);
}
globalThis.addEventListener?.("error", (event) => heard(event, event.error));
globalThis.addEventListener?.("unhandledrejection", (event) => heard(event, event.reason));
