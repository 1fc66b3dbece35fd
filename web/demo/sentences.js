// Sentence similarity with a BERT encoder that the user has.

import { showBars } from "./bars.js";
import { WordPiece } from "./tokenizer.js";

const NEEDED = ["config.json", "model.safetensors", "vocab.txt"];

export function sentences({ engine, device, report, clear }) {
  const find = (id) => document.querySelector(`#${id}`);
  const progress = find("encoding");
  let encoder;

  async function take(files) {
    const byName = new Map([...files].map((file) => [file.name, file]));
    const missing = NEEDED.filter((name) => !byName.has(name));
    if (missing.length) return report(new Error(`the encoder needs ${missing.join(" and ")} too: choose all three files`));
    clear();
    progress.hidden = false;
    progress.removeAttribute("value");
    try {
      const tokenizer = new WordPiece(await byName.get("vocab.txt").text());
      const config = await byName.get("config.json").text();
      const source = byName.get("model.safetensors");
      const chosen = await device;
      const onProgress = ({ loaded, total }) => (progress.value = loaded / total);
      await engine.load({ key: "encoder", source, options: { device: chosen, config } }, onProgress);
      encoder = { tokenizer };
      find("compare").disabled = false;
      await compare();
    } catch (error) {
      report(error);
    }
    progress.hidden = true;
  }

  async function embed(text) {
    const ids = BigInt64Array.from(encoder.tokenizer.encode(text), BigInt);
    const dims = [1, ids.length];
    const feeds = {
      input_ids: { data: ids, dims },
      attention_mask: { data: new BigInt64Array(ids.length).fill(1n), dims },
      token_type_ids: { data: new BigInt64Array(ids.length), dims },
    };
    const { sentence_embedding } = await engine.use("run", { key: "encoder", feeds });
    return sentence_embedding.data;
  }

  async function compare() {
    clear();
    find("compare").disabled = true;
    try {
      const texts = find("texts").value.split("\n").map((text) => text.trim()).filter(Boolean);
      const vectors = [];
      for (const text of texts) vectors.push(await embed(text));
      const rows = texts.slice(1).map((label, i) => {
        const cosine = vectors[0].reduce((sum, x, k) => sum + x * vectors[i + 1][k], 0);
        return { label, words: cosine.toFixed(4), part: Math.max(cosine, 0), kind: "gpu" };
      });
      showBars(find("similarities"), rows);
    } catch (error) {
      report(error);
    }
    find("compare").disabled = false;
  }

  find("encoder").addEventListener("change", ({ target }) => take(target.files));
  find("compare").addEventListener("click", compare);
}
