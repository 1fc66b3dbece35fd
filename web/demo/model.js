// Any ONNX or GGUF model: its summary, a run on each device on random inputs, their times and how well they agree.

import { showBars } from "./bars.js";
import { dropBox } from "./drop.js";
import { agreement, count, randomFeeds, sizeName } from "./numbers.js";

const SAMPLES = [{ name: "the digit classifier", file: "digits.onnx" }];

export function models(page) {
  const { engine, device, report, clear } = page;
  const find = (id) => document.querySelector(`#${id}`);
  const loading = find("loading");
  let current;

  async function take(source, name) {
    clear();
    const mine = (current = {});
    find("loaded").hidden = true;
    loading.hidden = false;
    loading.removeAttribute("value");
    try {
      const first = await device;
      const onProgress = ({ loaded, total }) => total && (loading.value = loaded / total);
      const devices = first === "webgpu" ? ["webgpu", "cpu"] : ["cpu"];
      const argument = (name) => ({ key: name, source, options: { device: name } });
      const said = await engine.load(argument(first), onProgress);
      // Another was chosen meanwhile.
      if (current !== mine) return;
      devices.slice(1).forEach((name) => engine.expect(argument(name)));
      Object.assign(mine, said, { devices });
      summarise(find("summary"), said, name);
      askSizes(find("sizes"), said.inputs);
      find("run").textContent = devices.length > 1 ? "Run on both devices" : "Run";
      find("run").disabled = false;
      find("bars").replaceChildren();
      find("agreement").textContent = "";
      find("loaded").hidden = false;
    } catch (error) {
      if (current === mine) report(new Error(`${name}: ${error.message}`));
    }
    if (current === mine) loading.hidden = true;
  }

  async function run() {
    clear();
    const model = current;
    const button = find("run");
    button.disabled = true;
    const rows = [];
    const results = {};
    try {
      const feeds = randomFeeds(model.inputs, new FormData(find("sizes")));
      for (const name of model.devices) {
        try {
          const measure = { key: name, feeds, least: 3, most: 1500, samples: 30 };
          results[name] = await engine.use("measure", measure);
        } catch (error) {
          results[name] = { error: error.message };
        }
        // The next device would run another model by now.
        if (current !== model) return;
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

  dropBox(find("file"), ([file]) => take(file, file.name));
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

function bytes(n) {
  return n < 1e6 ? `${(n / 1e3).toFixed(1)} KB` : `${(n / 1e6).toFixed(1)} MB`;
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
