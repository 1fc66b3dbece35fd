// A small language model from a GGUF file: it chats where it was trained to, and else continues a text.

import { BytePairs } from "./bpe.js";
import { readMetadata } from "./gguf.js";

/** What a conversation may have in all: every new token reads it again. */
const MOST_TOKENS = 512;
const KEY = "decoder";

export function text({ engine, device, report, clear }) {
  const find = (id) => document.querySelector(`#${id}`);
  const [progress, log, said, stop] = ["reading", "log", "said", "stop"].map(find);
  let model;
  let running;

  async function take(file) {
    clear();
    find("talk").hidden = true;
    progress.hidden = false;
    progress.removeAttribute("value");
    model = undefined;
    try {
      const metadata = await readMetadata(file);
      const tokenizer = new BytePairs(metadata);
      const chosen = await device;
      const onProgress = ({ loaded, total }) => total && (progress.value = loaded / total);
      await engine.load({ key: KEY, source: file, options: { device: chosen } }, onProgress);
      model = { file, tokenizer, ...habits(metadata, tokenizer), tokens: [] };
      log.replaceChildren();
      said.value = model.chats ? "What is 2+2?" : "Once upon a time";
      find("say").textContent = model.chats ? "Send" : "Continue";
      find("model-name").textContent = `${metadata.get("general.name") ?? file.name} ${model.chats ? "chats" : "continues texts"}.`;
      find("talk").hidden = false;
    } catch (error) {
      report(new Error(`${file.name}: ${error.message}`));
    }
    progress.hidden = true;
  }

  function bubble(kind, words) {
    const paragraph = Object.assign(document.createElement("p"), { className: kind, textContent: words });
    log.append(paragraph);
    log.scrollTop = log.scrollHeight;
    return paragraph;
  }

  async function speak(words) {
    clear();
    const { tokenizer, chats } = model;
    running = { stopped: false };
    find("say").disabled = true;
    stop.hidden = false;
    try {
      const before = model.tokens;
      const turn = tokenizer.encode(chats ? `${before.length ? "\n" : ""}<|im_start|>user\n${words}<|im_end|>\n<|im_start|>assistant\n` : words);
      if (before.length + turn.length >= model.most) throw new Error(`the text has ${before.length + turn.length} tokens; this page goes to ${model.most}`);
      if (chats) bubble("mine", words);
      said.value = "";
      await answer([...before, ...turn], bubble("theirs", chats ? "" : words));
    } catch (error) {
      report(error);
    }
    running = undefined;
    find("say").disabled = false;
    stop.hidden = true;
  }

  async function answer(tokens, into) {
    const { tokenizer, ends, most } = model;
    const temperature = Number(find("temperature").value);
    const decode = tokenizer.decoder();
    const state = running;
    const begun = performance.now();
    let made = 0;
    into.classList.add("busy");
    try {
      while (!state.stopped && tokens.length < most) {
        const token = await engine.use("next", { key: KEY, tokens, temperature });
        tokens.push(token);
        made += 1;
        if (ends.has(token)) break;
        into.append(decode(token));
        log.scrollTop = log.scrollHeight;
        find("pace").textContent = `${made} tokens, ${((1000 * made) / (performance.now() - begun)).toFixed(1)} a second`;
      }
      if (state.dropped) return;
      model.tokens = model.chats ? tokens : [];
      if (model.chats && !ends.has(tokens.at(-1))) model.tokens.push(model.tokenizer.id("<|im_end|>"));
    } finally {
      into.classList.remove("busy");
    }
  }

  find("decoder").addEventListener("change", ({ target }) => {
    if (target.files[0]) take(target.files[0]);
    target.value = "";
  });
  const drop = find("decoder").closest(".drop");
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      const file = kind === "drop" && event.dataTransfer.files[0];
      if (file) take(file);
    });
  }
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running && model && said.value) speak(said.value);
  });
  said.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      find("ask").requestSubmit();
    }
  });
  stop.addEventListener("click", () => running && (running.stopped = true));
  find("again").addEventListener("click", () => {
    if (running) Object.assign(running, { stopped: true, dropped: true });
    if (model) model.tokens = [];
    log.replaceChildren();
    find("pace").textContent = "";
  });
}

/** How a model talks: in turns if its template marks them as ChatML does, and which tokens end an answer. */
function habits(metadata, tokenizer) {
  const chats = (metadata.get("tokenizer.chat_template") ?? "").includes("<|im_start|>") && tokenizer.id("<|im_end|>") !== undefined;
  const named = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>"].map((piece) => tokenizer.id(piece));
  const ends = new Set([metadata.get("tokenizer.ggml.eos_token_id"), ...named].filter((id) => id !== undefined));
  const context = metadata.get(`${metadata.get("general.architecture")}.context_length`) ?? MOST_TOKENS;
  return { chats, ends, most: Math.min(context, MOST_TOKENS) };
}
