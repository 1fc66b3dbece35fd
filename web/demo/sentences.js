// Sentence similarity with a BERT encoder that the user has.

import { showBars } from "./bars.js";
import { dropBox } from "./drop.js";

const NEEDED = ["config.json", "model.safetensors", "vocab.txt"];
const KEY = "encoder";

export function sentences({ engine, device, report, clear }) {
  const find = (id) => document.querySelector(`#${id}`);
  const progress = find("encoding");
  /** The files that were given last. */
  let current;

  async function take(files) {
    const byName = new Map(files.map((file) => [file.name, file]));
    const missing = NEEDED.filter((name) => !byName.has(name));
    if (missing.length) return report(new Error(`the encoder needs ${missing.join(" and ")} too: choose all three files`));
    clear();
    current = files;
    progress.hidden = false;
    progress.removeAttribute("value");
    find("compare").disabled = true;
    try {
      const vocabulary = await byName.get("vocab.txt").text();
      const config = await byName.get("config.json").text();
      const source = byName.get("model.safetensors");
      const options = { device: await device, config };
      const onProgress = ({ loaded, total }) => (progress.value = loaded / total);
      await engine.load({ key: KEY, source, vocabulary, options }, onProgress, "loadEncoder");
      if (current !== files) return;
      await compare();
    } catch (error) {
      if (current === files) report(error);
    }
    if (current === files) progress.hidden = true;
  }

  async function compare() {
    clear();
    const files = current;
    find("compare").disabled = true;
    try {
      const texts = find("texts").value.split("\n").map((text) => text.trim()).filter(Boolean);
      const vectors = [];
      for (const text of texts) vectors.push(await engine.use("embed", { key: KEY, text }));
      if (current !== files) return;
      const rows = texts.slice(1).map((label, i) => {
        const cosine = vectors[0].reduce((sum, x, k) => sum + x * vectors[i + 1][k], 0);
        return { label, words: cosine.toFixed(4), part: Math.max(cosine, 0), kind: "gpu" };
      });
      showBars(find("similarities"), rows);
    } catch (error) {
      if (current === files) report(error);
    }
    if (current === files) find("compare").disabled = false;
  }

  dropBox(find("encoder"), take);
  find("compare").addEventListener("click", compare);
}
