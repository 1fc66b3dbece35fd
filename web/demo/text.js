// A small language model from a GGUF file: it chats where it was trained to, and else continues a text.

import { dropBox } from "./drop.js";

/** What a conversation may have in all: the caches are that long. */
const MOST_TOKENS = 4096;
const KEY = "decoder";

export function text({ engine, device, report, clear }) {
  const find = (id) => document.querySelector(`#${id}`);
  const [progress, log, said, stop] = ["reading", "log", "said", "stop"].map(find);
  let model;
  /** The answer that is being written: its number, when it has ended, and whether it is still wanted. */
  let running;
  let texts = 0;
  /** The file that was given last. */
  let current;

  async function take(file) {
    clear();
    current = file;
    find("talk").hidden = true;
    progress.hidden = false;
    progress.removeAttribute("value");
    model = undefined;
    try {
      await end();
      const chosen = await device;
      const onProgress = ({ loaded, total }) => total && (progress.value = loaded / total);
      const argument = { key: KEY, source: file, options: { device: chosen, context: MOST_TOKENS } };
      if (current !== file) return;
      const found = await engine.load(argument, onProgress, "loadText");
      if (current !== file) return;
      model = { ...found, messages: [] };
      log.replaceChildren();
      said.value = model.chats ? "What is 2+2?" : "Once upon a time";
      find("say").textContent = model.chats ? "Send" : "Continue";
      find("model-name").textContent = `${model.name || file.name} ${model.chats ? "chats" : "continues texts"}.`;
      find("pace").textContent = "";
      find("talk").hidden = false;
    } catch (error) {
      if (current === file) report(new Error(`${file.name}: ${error.message}`));
    }
    if (current === file) progress.hidden = true;
  }

  // Where the worker goes down, the answer itself fails and says so.
  function halt() {
    if (running) engine.call("stop", { text: running.text }).catch(() => {});
  }

  /** Ends the answer that is being written, for good. */
  async function end() {
    if (!running) return;
    running.dropped = true;
    halt();
    await running.ended;
  }

  function bubble(kind, words) {
    const paragraph = Object.assign(document.createElement("p"), { className: kind, textContent: words });
    log.append(paragraph);
    log.scrollTop = log.scrollHeight;
    return paragraph;
  }

  async function speak(words) {
    clear();
    const speaker = model;
    const { promise: ended, resolve } = Promise.withResolvers();
    const state = (running = { text: texts++, dropped: false, ended });
    find("say").disabled = true;
    stop.hidden = false;
    const question = { role: "user", content: words };
    try {
      if (speaker.chats) {
        bubble("mine", words);
        speaker.messages.push(question);
      }
      said.value = "";
      await answer(speaker, speaker.chats ? speaker.messages : words, bubble("theirs", speaker.chats ? "" : words), state);
    } catch (error) {
      // What was not answered is not part of the conversation.
      speaker.messages = speaker.messages.filter((message) => message !== question);
      if (!state.dropped) report(error);
    }
    running = undefined;
    find("say").disabled = false;
    stop.hidden = true;
    resolve();
  }

  async function answer({ messages, chats }, prompt, into, state) {
    const options = { temperature: Number(find("temperature").value), topK: 40 };
    let [first, text] = [undefined, ""];
    into.classList.add("busy");
    const onPiece = (piece) => {
      first ??= { at: performance.now(), tokens: piece.tokens };
      text += piece.text;
      into.append(piece.text);
      log.scrollTop = log.scrollHeight;
      const [made, seconds] = [piece.tokens - first.tokens, (performance.now() - first.at) / 1000];
      if (made > 0) find("pace").textContent = `${piece.tokens} tokens, ${(made / seconds).toFixed(1)} a second`;
    };
    try {
      await engine.use("write", { key: KEY, text: state.text, prompt, options }, onPiece);
      if (chats && !state.dropped) messages.push({ role: "assistant", content: text });
    } finally {
      into.classList.remove("busy");
    }
  }

  dropBox(find("decoder"), ([file]) => take(file));
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running && model && said.value) speak(said.value);
  });
  said.addEventListener("keydown", (event) => {
    // An input method ends its word with Enter.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      find("ask").requestSubmit();
    }
  });
  stop.addEventListener("click", halt);
  find("again").addEventListener("click", () => {
    end();
    if (model) model.messages = [];
    log.replaceChildren();
    find("pace").textContent = "";
  });
}
