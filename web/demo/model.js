// Any ONNX or GGUF model: its summary, a run on each device on random inputs, their times and how well they agree.

import { showBars } from "./bars.js";

const SAMPLES = [{ name: "the digit classifier", file: "digits.onnx" }];

export function models(page) {
  const { engine, device, report, clear } = page;
  const find = (id) => document.querySelector(`#${id}`);
  const loading = find("loading");
  let current;

  async function take(source, name) {
    clear();
    find("loaded").hidden = true;
    loading.hidden = false;
    loading.removeAttribute("value");
    try {
      const first = await device;
      const onProgress = ({ loaded, total }) => total && (loading.value = loaded / total);
      const devices = first === "webgpu" ? ["webgpu", "cpu"] : ["cpu"];
      const argument = (name) => ({ key: name, source, options: { device: name } });
      const said = await engine.load(argument(first), onProgress);
      devices.slice(1).forEach((name) => engine.expect(argument(name)));
      current = { ...said, devices };
      summarise(find("summary"), said, name);
      askSizes(find("sizes"), said.inputs);
      find("run").textContent = current.devices.length > 1 ? "Run on both devices" : "Run";
      find("bars").replaceChildren();
      find("agreement").textContent = "";
      find("loaded").hidden = false;
    } catch (error) {
      report(new Error(`${name}: ${error.message}`));
    }
    loading.hidden = true;
  }

  async function run() {
    clear();
    const button = find("run");
    button.disabled = true;
    const rows = [];
    const results = {};
    try {
      const feeds = randomFeeds(current.inputs, new FormData(find("sizes")));
      for (const name of current.devices) {
        try {
          const measure = { key: name, feeds, least: 3, most: 1500, samples: 30 };
          results[name] = await engine.use("measure", measure);
        } catch (error) {
          results[name] = { error: error.message };
        }
        rows.push({ device: name, ...results[name] });
        show(rows);
      }
      find("agreement").innerHTML = agreement(results);
    } catch (error) {
      report(error);
    }
    button.disabled = false;
  }

  function show(rows) {
    const longest = Math.max(...rows.map((row) => row.median ?? 0));
    const bar = (row) => ({
      label: row.device === "webgpu" ? "WebGPU" : "CPU, one thread",
      words: row.error ?? `${row.median.toFixed(row.median < 10 ? 2 : 1)} ms`,
      part: row.error ? undefined : row.median / longest,
      kind: row.error ? "bad" : row.device === "webgpu" ? "gpu" : "",
    });
    showBars(find("bars"), rows.map(bar));
  }

  const drop = find("drop");
  find("file").addEventListener("change", ({ target }) => {
    if (target.files[0]) take(target.files[0], target.files[0].name);
    target.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      const file = kind === "drop" && event.dataTransfer.files[0];
      if (file) take(file, file.name);
    });
  }
  for (const { name, file } of SAMPLES) {
    const button = Object.assign(document.createElement("button"), { textContent: name, className: "link", type: "button" });
    button.addEventListener("click", () => take(new URL(file, import.meta.url).href, file));
    find("samples").append(button);
  }
  find("run").addEventListener("click", run);
  find("sizes").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
}

function summarise(into, { summary, inputs, outputs }, name) {
  const port = ({ name, type, dims }) => `${name}: ${type}${dims ? `[${dims.map((d) => d ?? "?").join(", ")}]` : ""}`;
  const cut = (all, most) => (all.length > most ? [...all.slice(0, most), `and ${all.length - most} more`] : all);
  const rows = [
    ["file", [name]],
    ["made by", [summary.producer].filter(Boolean)],
    ["weights", [`${count(summary.parameters)} (${bytes(summary.parameterBytes)})`]],
    ["inputs", cut(inputs.map(port), 6)],
    ["outputs", cut(outputs.map(port), 6)],
  ];
  const table = document.createElement("table");
  for (const [label, lines] of rows.filter(([, lines]) => lines.length)) {
    const row = table.insertRow();
    row.append(Object.assign(document.createElement("th"), { textContent: label }));
    const cell = row.insertCell();
    lines.forEach((line, i) => cell.append(...(i ? [document.createElement("br")] : []), line));
  }
  const chips = table.insertRow();
  chips.append(Object.assign(document.createElement("th"), { textContent: "operators" }));
  const cell = chips.insertCell();
  const most = [...summary.operators].sort((a, b) => b[1] - a[1]);
  for (const text of cut(most.map(([op, n]) => (n > 1 ? `${op} ×${n}` : op)), 14)) {
    cell.append(Object.assign(document.createElement("span"), { className: "chip", textContent: text }));
  }
  into.replaceChildren(table);
}

function count(n) {
  return n < 1e4 ? String(n) : n < 1e6 ? `${(n / 1e3).toFixed(1)} thousand` : `${(n / 1e6).toFixed(1)} million`;
}

function bytes(n) {
  return n < 1e6 ? `${(n / 1e3).toFixed(1)} KB` : `${(n / 1e6).toFixed(1)} MB`;
}

/** The name of an open size: the model's, or one made of the input and the axis. */
function sizeName(input, dim, axis) {
  return typeof dim === "string" ? dim : `${input.name} axis ${axis}`;
}

function askSizes(form, inputs) {
  const guess = (name, input, axis) => {
    if (/height|width|^[hw]$/i.test(name)) return 224;
    if (/batch|^n$/i.test(name) || axis === 0) return 1;
    if (input.dims.length === 4) return axis === 1 ? 3 : 224;
    return 32;
  };
  const fields = new Map();
  for (const input of inputs) {
    input.dims?.forEach((dim, axis) => {
      const name = sizeName(input, dim, axis);
      if (typeof dim !== "number" && !fields.has(name)) fields.set(name, guess(name, input, axis));
    });
  }
  form.replaceChildren(
    ...[...fields].map(([name, value]) => {
      const label = document.createElement("label");
      const field = Object.assign(document.createElement("input"), { type: "number", min: 0, max: 1e6, name, value });
      label.append(name, field);
      return label;
    }),
  );
}

/** Inputs that are the same in every run of the page: floats in [-1, 1), integers 0 and 1. */
export function randomFeeds(inputs, sizes) {
  let seed = 42;
  const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  const makers = {
    f32: (n) => Float32Array.from({ length: n }, () => 2 * random() - 1),
    f64: (n) => Float64Array.from({ length: n }, () => 2 * random() - 1),
    i64: (n) => BigInt64Array.from({ length: n }, () => BigInt(random() < 0.5 ? 0 : 1)),
    u64: (n) => BigUint64Array.from({ length: n }, () => BigInt(random() < 0.5 ? 0 : 1)),
    i32: (n) => Int32Array.from({ length: n }, () => (random() < 0.5 ? 0 : 1)),
    u32: (n) => Uint32Array.from({ length: n }, () => (random() < 0.5 ? 0 : 1)),
    u8: (n) => Uint8Array.from({ length: n }, () => 256 * random()),
    i8: (n) => Int8Array.from({ length: n }, () => 256 * random() - 128),
    bool: (n) => Uint8Array.from({ length: n }, () => (random() < 0.5 ? 0 : 1)),
  };
  const feeds = {};
  for (const input of inputs) {
    if (!input.dims || !makers[input.type]) throw new Error(`this page has no random ${input.type} for \`${input.name}\``);
    const dims = input.dims.map((dim, axis) =>
      typeof dim === "number" ? dim : Number(sizes.get(sizeName(input, dim, axis))),
    );
    const length = dims.reduce((product, dim) => product * dim, 1);
    if (length > 2 ** 28) throw new Error(`\`${input.name}\` would have ${count(length)} elements`);
    feeds[input.name] = { type: input.type, dims, data: makers[input.type](length) };
  }
  return feeds;
}

/** The L2 norm of the difference over that of the CPU's outputs, as a sentence. */
function agreement({ webgpu, cpu }) {
  if (!webgpu?.outputs || !cpu?.outputs) return "";
  let [difference, size] = [0, 0];
  for (const [name, { data }] of Object.entries(cpu.outputs)) {
    const other = webgpu.outputs[name].data;
    for (let i = 0; i < data.length; i++) {
      const [a, b] = [Number(data[i]), Number(other[i])];
      // Infinities and NaN that are the same in both do not count.
      if (Object.is(a, b) && !Number.isFinite(a)) continue;
      difference += (a - b) ** 2;
      size += a ** 2;
    }
  }
  const relative = Math.sqrt(difference / (size || 1));
  if (relative === 0) return "Both devices give <strong>the same bits</strong>.";
  const words = relative < 1e-4 ? "<strong>agree</strong>" : "differ";
  return `The devices ${words}: relative difference ${relative.toExponential(1)}.`;
}
