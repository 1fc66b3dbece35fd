// A small language model from a GGUF file: it chats where it was trained to, and else continues a text.

/** What a conversation may have in all: the caches are that long. */
const MOST_TOKENS = 4096;
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
      const chosen = await device;
      const onProgress = ({ loaded, total }) => total && (progress.value = loaded / total);
      const argument = { key: KEY, source: file, options: { device: chosen, context: MOST_TOKENS } };
      model = { ...(await engine.load(argument, onProgress, "loadText")), messages: [] };
      log.replaceChildren();
      said.value = model.chats ? "What is 2+2?" : "Once upon a time";
      find("say").textContent = model.chats ? "Send" : "Continue";
      find("model-name").textContent = `${model.name || file.name} ${model.chats ? "chats" : "continues texts"}.`;
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
    const state = (running = {});
    find("say").disabled = true;
    stop.hidden = false;
    try {
      if (model.chats) {
        bubble("mine", words);
        model.messages.push({ role: "user", content: words });
      }
      said.value = "";
      await answer(model.chats ? model.messages : words, bubble("theirs", model.chats ? "" : words), state);
    } catch (error) {
      // What was not answered is not part of the conversation.
      if (model.messages.at(-1)?.role === "user") model.messages.pop();
      report(error);
    }
    running = undefined;
    find("say").disabled = false;
    stop.hidden = true;
  }

  async function answer(prompt, into, state) {
    const { messages, chats } = model;
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
      await engine.use("write", { key: KEY, prompt, options }, onPiece);
      if (chats && !state.dropped) messages.push({ role: "assistant", content: text });
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
  stop.addEventListener("click", () => running && engine.call("stop"));
  find("again").addEventListener("click", () => {
    if (running) {
      running.dropped = true;
      engine.call("stop");
    }
    if (model) model.messages = [];
    log.replaceChildren();
    find("pace").textContent = "";
  });
}
