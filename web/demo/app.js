import { Engine } from "./engine.js";
import { digits } from "./digits.js";
import { keepPage } from "./drop.js";
import { models } from "./model.js";
import { sentences } from "./sentences.js";
import { text } from "./text.js";

const engine = new Engine();
const problem = document.querySelector("#problem");

/** Shows what went wrong; the page goes on. */
function report(error) {
  problem.textContent = error?.message ?? String(error);
  problem.hidden = false;
}

function clear() {
  problem.hidden = true;
}

async function showDevice() {
  const label = document.querySelector("#device");
  const found = await engine.call("device");
  label.classList.toggle("gpu", found.device === "webgpu");
  label.textContent =
    found.device === "webgpu" ? `WebGPU · ${found.name}` : "No WebGPU here: running on the CPU";
  if (found.reason) label.title = found.reason;
  return found.device;
}

const device = showDevice().catch((error) => {
  document.querySelector("#device").textContent = "Olivine cannot start here";
  report(error);
  return "cpu";
});

const page = { engine, device, report, clear };
keepPage();
digits(page);
models(page);
sentences(page);
text(page);
