// What callers of the package may rely on: calls that end, memory that is freed, types, and files that are fetched and kept.

import { newPage, open } from "./browser.mjs";
import { llama } from "./gguf.mjs";
import { crashGpu, must, test } from "./harness.mjs";
import { identity } from "./onnx.mjs";

/** What a promise in the page comes to: its value, an error's words, or that it never ends. */
const OUTCOME = `(promise) => Promise.race([
  promise.then((value) => ({ value }), (error) => ({ error: error.message })),
  new Promise((resolve) => setTimeout(resolve, 120000, { error: "it never ends" })),
])`;

async function testPage(browser, address, prepare = () => {}) {
  const page = await newPage(browser, "about:blank");
  await prepare(page);
  await page.goto(`${address}/test/`);
  await page.waitForFunction(() => window.olivine);
  await page.evaluate((outcome) => void (window.outcome = eval(outcome)), OUTCOME);
  return page;
}

async function freedInFlight(page, device) {
  const found = await page.evaluate(
    async ([device, bytes]) => {
      const { load, loadLanguageModel } = window.olivine;
      const model = await load("/demo/digits.onnx", { device, cache: false });
      const runs = [1, 2].map(() => model.run({ pixels: new Float32Array(64) }));
      model.free();
      const sums = (await Promise.all(runs)).map(({ probabilities }) => probabilities.data.reduce((a, b) => a + b));
      const after = await window.outcome(model.run({ pixels: new Float32Array(64) }));
      // A text that is being written, one that waits for its next piece to be taken, and one behind them.
      const words = [];
      for (const takes of [true, false]) {
        const writer = await loadLanguageModel(Uint8Array.from(bytes), { device, context: 64 });
        const [text, behind] = [writer.generate("abc"), writer.generate("abc")];
        await text.next();
        const next = takes ? text.next() : undefined;
        const second = window.outcome(behind.next());
        writer.free();
        words.push(await window.outcome(next ?? text.next()));
        words.push(await window.outcome(text.next()), await second);
      }
      return { sums, after, words };
    },
    [device, [...llama()]],
  );
  must(found.sums.length === 2 && found.sums.every((sum) => Math.abs(sum - 1) < 1e-5), String(found.sums));
  must(/was freed/.test(found.after.error), JSON.stringify(found.after));
  const [first, , second, third, , fourth] = found.words;
  // The piece that was on its way may still come.
  must(/was freed/.test(first.error) || first.value.value?.text, JSON.stringify(found.words));
  must([second, third, fourth].every(({ error }) => /was freed/.test(error)), JSON.stringify(found.words));
}

/** The module ends while a text waits for it: by a panic, or by a trap without words. */
async function endsWith(page, how) {
  const found = await page.evaluate(
    async ([how, bytes]) => {
      const { load, loadLanguageModel } = window.olivine;
      const module = await import("/olivine/wasm/olivine_web.js");
      const model = await load("/demo/digits.onnx", { device: "cpu", cache: false });
      const text = (await loadLanguageModel(Uint8Array.from(bytes), { device: "cpu", context: 64 })).generate("abc");
      await text.next();
      const waits = window.outcome(text.next());
      module.fail(how);
      const later = [model.run({ pixels: new Float32Array(64) }), load("/demo/digits.onnx"), window.olivine.device()];
      const all = [await waits, ...(await Promise.all(later.map(window.outcome)))];
      model.free();
      return all.map(({ error, value }) => error ?? `it returns ${JSON.stringify(value)}`);
    },
    [how, [...llama()]],
  );
  const words = how === "panic" ? /^Olivine has stopped \(panicked at .*on purpose\): reload/s : /^Olivine has stopped \(.+\): reload/;
  must(found.every((text) => words.test(text)), found.join(" | "));
  return found[0].replaceAll("\n", " ");
}

async function lateModule(browser, address) {
  const page = await testPage(browser, address, (page) => page.route("**/*.wasm", (route) => route.abort()));
  const refused = await page.evaluate(() => window.outcome(window.olivine.device("cpu")));
  await page.unroute("**/*.wasm");
  const { device } = await page.evaluate(() => window.olivine.device("cpu"));
  must(refused.error && device === "cpu", `${JSON.stringify(refused)}, then ${device}`);
  await page.close();
}

/** What goes in comes out again, in the array of its type. */
async function elements(page) {
  const models = Object.entries({ u8: 2, u16: 4, u64: 13, f16: 10, bf16: 16, bool: 9 }).map(([type, number]) => [type, [...identity(number)]]);
  const found = await page.evaluate(async (models) => {
    const given = {
      u8: [Uint8Array.of(1, 255), Uint8ClampedArray.of(3, 255)],
      u16: [Uint16Array.of(1, 65535)],
      u64: [BigUint64Array.of(1n, 2n ** 64n - 1n)],
      f16: [Uint16Array.of(0x3c00, 0xc000), ...(window.Float16Array ? [Float16Array.of(1, -2)] : [])],
      bf16: [Uint16Array.of(0x3f80, 0xc000)],
      bool: [Uint8Array.of(0, 1)],
    };
    const found = [];
    for (const [type, bytes] of models) {
      const model = await window.olivine.load(Uint8Array.from(bytes), { device: "cpu" });
      for (const data of given[type]) {
        const { y } = await model.run({ x: data });
        const same = [...y.data].join() === (y.data.constructor === data.constructor || type === "u8" ? [...data].join() : "1,-2");
        found.push({ type, port: model.inputs[0].type, of: data.constructor.name, is: y.data.constructor.name, shown: y.type, same });
      }
      found.push({ wrong: await window.outcome(model.run({ x: { data: new Float64Array(2), type } })) });
      model.free();
    }
    return found;
  }, models);
  const half = await page.evaluate(() => (window.Float16Array ? "Float16Array" : "Uint16Array"));
  const arrays = { u8: "Uint8Array", u16: "Uint16Array", u64: "BigUint64Array", f16: half, bf16: "Uint16Array", bool: "Uint8Array" };
  for (const { type, port, is, shown, same, wrong, of } of found) {
    if (wrong) must(/`x`: a Float64Array holds no elements of type/.test(wrong.error), JSON.stringify(wrong));
    else must(same && is === arrays[type] && shown === type && port === type, JSON.stringify({ type, port, of, is, shown, same }));
  }
  return `${found.length} arrays`;
}

/** Files of URLs are kept piece by piece; one whose pieces are gone is fetched again, and what nobody wants is not read on. */
async function kept(page) {
  const found = await page.evaluate(async () => {
    const { clearCache, load } = window.olivine;
    await clearCache();
    const plain = window.fetch;
    let fetched = 0;
    window.fetch = (...args) => {
      fetched += args[1]?.method !== "HEAD" && /digits|magika/.test(String(args[0]));
      return plain(...args);
    };
    const times = async (address) => {
      const before = fetched;
      (await load(address, { device: "cpu" })).free();
      return fetched - before;
    };
    const database = () => new Promise((resolve) => (indexedDB.open("olivine").onsuccess = ({ target }) => resolve(target.result)));
    const keys = async () => {
      const open = await database();
      const request = open.transaction("pieces").objectStore("pieces").getAllKeys();
      await new Promise((resolve) => (request.onsuccess = resolve));
      open.close();
      return request.result;
    };
    const loads = [await times("/demo/digits.onnx"), await times("/demo/digits.onnx")];
    const pieces = await keys();
    const open = await database();
    const cut = open.transaction("pieces", "readwrite");
    cut.objectStore("pieces").delete(pieces[0]);
    await new Promise((resolve) => (cut.oncomplete = resolve));
    open.close();
    loads.push(await times("/demo/digits.onnx"), await times("/demo/digits.onnx"));
    const both = await Promise.all([load("/zoo/magika/model.onnx", { device: "cpu" }), load("/zoo/magika/model.onnx", { device: "cpu" })]);
    both.forEach((model) => model.free());
    loads.push(await times("/zoo/magika/model.onnx"));
    let cancelled = false;
    const body = new ReadableStream({
      pull: (to) => to.enqueue(new Uint8Array(1000)),
      cancel: () => void (cancelled = true),
    });
    window.fetch = async () => new Response(body, { headers: { etag: "x" } });
    const controller = new AbortController();
    const onProgress = ({ loaded }) => loaded > 5000 && controller.abort(new Error("enough"));
    const stopped = await window.outcome(load("/endless.onnx", { device: "cpu", onProgress, signal: controller.signal }));
    window.fetch = plain;
    const left = (await keys()).filter(([address]) => /endless/.test(address)).length;
    await clearCache();
    return { loads, pieces: pieces.length, stopped, cancelled, left };
  });
  must(String(found.loads) === "1,0,1,0,0", `files are fetched ${found.loads} times`);
  must(found.stopped.error === "enough" && found.cancelled && !found.left, JSON.stringify(found));
}

/** A device that was lost while nothing ran is opened again by the next load but one. */
async function lostWhileIdle(browser, address) {
  const page = await testPage(browser, address);
  const load = () =>
    page.evaluate(async (bytes) => {
      const load = async () => {
        const model = await window.olivine.loadLanguageModel(Uint8Array.from(bytes), { device: "webgpu", context: 64 });
        for await (const { finish } of model.generate("abc", { maxTokens: 3 })) if (finish) return finish;
      };
      return window.outcome(load());
    }, [...llama()]);
  const before = await load();
  await crashGpu(browser);
  await page.waitForTimeout(1500);
  const after = [await load(), await load()];
  must(before.value === "length" && after[1].value === "length", JSON.stringify([before, ...after]));
  await page.close();
  return JSON.stringify(after[0]);
}

/** A GPU without room for two runs at once frees what the first left. */
async function evicts(page) {
  const found = await page.evaluate(async () => {
    // The browser's own limit is the machine's memory, so this device counts.
    let [taken, most, short] = [0, Infinity, 0];
    const { createBuffer, pushErrorScope, popErrorScope } = GPUDevice.prototype;
    const scopes = [];
    GPUDevice.prototype.createBuffer = function (descriptor) {
      const buffer = createBuffer.call(this, descriptor);
      if (taken + descriptor.size > most) {
        short += 1;
        const scope = scopes.findLast(({ filter }) => filter === "out-of-memory");
        if (scope) scope.error = new GPUOutOfMemoryError("no room");
        return buffer;
      }
      taken += descriptor.size;
      const { destroy } = buffer;
      buffer.destroy = function () {
        taken -= descriptor.size;
        return destroy.call(this);
      };
      return buffer;
    };
    GPUDevice.prototype.pushErrorScope = function (filter) {
      scopes.push({ filter });
      return pushErrorScope.call(this, filter);
    };
    GPUDevice.prototype.popErrorScope = async function () {
      const { error } = scopes.pop();
      return (await popErrorScope.call(this)) ?? error ?? null;
    };
    const model = await window.olivine.load("/demo/digits.onnx", { device: "webgpu", cache: false });
    const run = async (n) => {
      const { probabilities } = await model.run({ pixels: { data: new Float32Array(64 * n), dims: [n, 64] } });
      return probabilities.data.length / 10;
    };
    // Two runs at once leave two sets of buffers.
    await Promise.all([run(4096), run(4096)]);
    const held = taken;
    most = taken + 1000;
    const outcomes = [await window.outcome(run(4097)), await window.outcome(run(20))];
    most = 0;
    outcomes.push(await window.outcome(run(9000)));
    most = Infinity;
    outcomes.push(await window.outcome(run(9000)));
    GPUDevice.prototype.createBuffer = createBuffer;
    return { held, short, outcomes };
  });
  const [evicted, small, none, after] = found.outcomes;
  must(found.short > 0, "there was room");
  must(evicted.value === 4097 && small.value === 20 && after.value === 9000, JSON.stringify(found));
  must(/out of memory: .* asked for \d+ bytes/.test(none.error), JSON.stringify(found));
  return none.error;
}

export async function calls(browser, address) {
  const on = (body, prepare) => async () => {
    const page = await testPage(browser, address, prepare);
    try {
      return await body(page);
    } finally {
      await page.close();
    }
  };
  for (const device of ["cpu", "webgpu"]) {
    await test(`a model may be freed while it runs on ${device}`, on((page) => freedInFlight(page, device)));
  }
  for (const how of ["panic", "abort"]) {
    await test(`after a module's ${how} nothing waits for ever`, on((page) => endsWith(page, how)));
  }
  await test("a module that could not be fetched is fetched again", () => lateModule(browser, address));
  await test("elements come back in the arrays of their types", on(elements));
  await test("files are kept in pieces and fetched again where they are gone", on(kept));
  await test("a GPU without room frees what earlier runs left", on(evicts));
  // Chromium offers no WebGPU any more after a few crashes.
  const other = await open();
  await test("a device lost while nothing runs is opened again", () => lostWhileIdle(other, address));
  await other.close();
}
