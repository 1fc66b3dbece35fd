// The section of the demo that talks: its tokenizer, a model that chats, and a device that is lost on the way.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { newPage, open } from "./browser.mjs";
import { ROOT, SHOTS, ZOO } from "./folders.mjs";
import { llama } from "./gguf.mjs";
import { PHONE, PROGRAM, crashGpu, must, test, withProblem } from "./harness.mjs";
import { answerOf } from "./native.mjs";

const SMOLLM2 = join(ZOO, "smollm2/model.gguf");

/** The tokens of texts, and the texts that they become again, by the tokenizer of a GGUF file. */
function tokenized(page, source, texts) {
  return page.evaluate(
    async ([source, texts]) => {
      const given = typeof source === "string" ? source : Uint8Array.from(source);
      const model = await window.olivine.loadLanguageModel(given, { device: "cpu", context: 64, cache: false });
      const rows = texts.map((text) => model.tokenize(text)).map((ids) => [ids, model.detokenize(ids)]);
      model.free();
      return rows;
    },
    [source, texts],
  );
}

async function tokens(page) {
  const rows = JSON.parse(await readFile(new URL("./bpe.json", import.meta.url)));
  // llama.cpp's tokens of other prompts.
  const prompts = JSON.parse(await readFile(join(ROOT, "zoo/greedy.json"))).filter(({ model }) => model === "smollm2/model.gguf");
  rows.push(...prompts.map(({ text, prompt }) => [text, prompt]));
  must(prompts.length > 0, "zoo/greedy.json has no prompts of smollm2");
  const found = await tokenized(page, "/zoo/smollm2/model.gguf", rows.map(([text]) => text));
  rows.forEach(([text, ids], i) => {
    const [got, plain] = found[i];
    must(String(got) === String(ids), `${JSON.stringify(text)} is ${got}, not ${ids}`);
    must(text.includes("<|") || plain === text, `${JSON.stringify(text)} comes back as ${JSON.stringify(plain)}`);
  });
  return `${rows.length} texts`;
}

/** How each family splits a text, by the pairs that it lets join. */
async function splits(page) {
  const all = Array.from({ length: 256 }, (_, byte) => byte);
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let other = 256;
  const bytes = all.map((byte) => String.fromCodePoint(printable(byte) ? byte : other++));
  // Two digits, a space and a letter, two line breaks, a bracket and a letter: joined where no split is between them.
  const [space, line] = [bytes[32], bytes[10]];
  const pairs = [["1", "2"], [space, "a"], [line, line], ["(", "b"]];
  const pieces = [...bytes, ...pairs.map(([a, b]) => a + b)];
  const merges = pairs.map((pair) => pair.join(" "));
  const text = "12 a!\n\n(b";
  const expected = { "gpt-2": [0, 1], smollm: [1], qwen2: [1, 2, 3], "llama-bpe": [0, 1, 2, 3] };
  for (const [split, pairs] of Object.entries(expected)) {
    const [[ids]] = await tokenized(page, [...llama({ split, pieces, merges })], [text]);
    const got = ids.filter((id) => id >= 256).map((id) => id - 256);
    must(String(got) === String(pairs), `${split} joins ${got}, not ${pairs}`);
  }
}

/** A text generated through the package: what a caller of `generate` may rely on. */
async function generates(page) {
  const found = await page.evaluate(async (bytes) => {
    const model = await window.olivine.loadLanguageModel(Uint8Array.from(bytes), { device: "cpu", context: 64 });
    const collect = async (prompt, options) => {
      const pieces = [];
      for await (const piece of model.generate(prompt, options)) pieces.push(piece);
      return { ...pieces.at(-1), text: pieces.map(({ text }) => text).join("") };
    };
    const words = (work) => work.then(() => "nothing", (error) => error.message);
    const greedy = await collect("abc", { maxTokens: 9 });
    const drawn = [7, 7, 8].map((seed) => collect("abc", { maxTokens: 20, temperature: 3, seed }));
    const found = { context: model.context, chats: model.chats, greedy, again: await collect("abc", { maxTokens: 9 }) };
    found.drawn = (await Promise.all(drawn)).map(({ text }) => text);
    found.full = await collect("abc", {});
    // Whoever leaves the loop ends the text, and the model is free for the next.
    let left = 0;
    for await (const piece of model.generate("abc")) if (++left === 3) break;
    const controller = new AbortController();
    const aborted = (async () => {
      for await (const piece of model.generate("abc", { signal: controller.signal })) controller.abort(new Error("enough"));
    })();
    found.aborted = await words(aborted);
    found.after = (await collect("abc", { maxTokens: 9 })).text;
    found.errors = [
      await words(collect("", {})),
      await words(collect("a".repeat(70), {})),
      await words(collect("abc", { temperature: -1 })),
      await words(collect("abc", { topK: "many" })),
      await words(collect([{ role: "user", content: "abc" }], {})),
    ];
    model.free();
    found.errors.push(await words(collect("abc", {})));
    return found;
  }, [...llama()]);
  const { greedy } = found;
  must(greedy.text.length === 9 && greedy.tokens === 9 && greedy.promptTokens === 3 && greedy.finish === "length", JSON.stringify(greedy));
  must(found.again.text === greedy.text && found.after === greedy.text, `${found.again.text}, ${found.after}`);
  must(found.full.finish === "context" && found.full.text.startsWith(greedy.text), JSON.stringify(found.full));
  must(found.full.promptTokens + found.full.tokens === found.context, JSON.stringify(found.full));
  const [one, same, other] = found.drawn;
  must(one === same && one !== other, found.drawn.join(", "));
  must(found.aborted === "enough", found.aborted);
  const expected = [/no tokens/, /70 tokens/, /temperature cannot be -1/, /topK: expected a number/, /chat template/, /was freed/];
  expected.forEach((pattern, i) => must(pattern.test(found.errors[i]), found.errors[i]));
  return `${greedy.text}, ${one}, ${other}; ${found.errors.join("; ")}`;
}

async function giveDecoder(page, file) {
  await page.setInputFiles("#decoder", file);
  await page.waitForSelector("#talk:not([hidden]), #problem:not([hidden])", { timeout: 120_000 });
  must(await page.isHidden("#problem"), await page.textContent("#problem"));
}

const bytes = (name, buffer) => ({ name, mimeType: "application/octet-stream", buffer });
const talking = (page) => page.isVisible("#stop");
const silent = (page) => page.waitForSelector("#stop", { state: "hidden", timeout: 120_000 });

/** SmolLM2 answers without chance as it does to `olivine chat`; a long answer is stopped. */
async function chat(browser, address) {
  const page = await newPage(browser, `${address}/demo/`, PHONE);
  await giveDecoder(page, SMOLLM2);
  await page.fill("#said", "What is 2+2?");
  await page.click("#say");
  await silent(page);
  const answer = await page.textContent("#log .theirs");
  const expected = answerOf(PROGRAM, SMOLLM2, "What is 2+2?");
  must(expected.includes("4") && answer === expected, `it answers ${JSON.stringify(answer)}, the native program ${JSON.stringify(expected)}`);
  await page.fill("#said", "Tell me a long story about the sea.");
  await page.click("#say");
  await page.waitForFunction(() => document.querySelectorAll("#log .theirs")[1]?.textContent.length > 20, null, { timeout: 120_000 });
  must(await talking(page), "it ended before it was stopped");
  await page.click("#stop");
  await silent(page);
  const story = await page.locator("#log .theirs").nth(1).textContent();
  const pace = await page.textContent("#pace");
  await page.locator("#text").screenshot({ path: join(SHOTS, "chat.png") });
  must(page.problems.length === 0, page.problems.join("; "));
  await page.close();
  return `${answer} | ${story.trim()} … | ${pace}`;
}

/** On WebGPU, with a model that babbles: files that do not fit and a lost device are explained. */
async function babble(browser, address) {
  const page = await newPage(browser, `${address}/demo/`);
  const refused = (name, buffer) => withProblem(page, () => page.setInputFiles("#decoder", bytes(name, buffer)));
  const words = [
    await refused("noise.gguf", Buffer.from("this is no model, whatever its name says")),
    await refused("cut.gguf", llama().subarray(0, 200)),
    await refused("odd.gguf", llama({ split: "odd" })),
    await refused("clip.gguf", llama({ architecture: "clip" })),
  ];
  const expected = [/not a GGUF file/, /bytes are left/, /pre-tokenizer `odd` is not known/, /`clip` cannot be run/];
  expected.forEach((pattern, i) => must(pattern.test(words[i]), words[i]));
  await giveDecoder(page, bytes("tiny.gguf", llama()));
  const start = async (text) => {
    await page.fill("#said", text);
    await page.click("#say");
  };
  const grown = (length) =>
    page.waitForFunction((n) => [...document.querySelectorAll("#log .theirs")].at(-1)?.textContent.length >= n, length, { timeout: 120_000 });
  // This tokenizer has small letters alone.
  words.push(await withProblem(page, () => start("CAPITALS")));
  must(/no tokens/.test(words.at(-1)), words.at(-1));
  await start("abc");
  await grown(6);
  await crashGpu(browser);
  await page.waitForSelector("#problem:not([hidden])", { timeout: 60_000 });
  words.push(await page.textContent("#problem"));
  must(/lost/.test(words.at(-1)), words.at(-1));
  await page.waitForTimeout(1500);
  await start("abc");
  await grown(6);
  await page.click("#stop");
  await silent(page);
  must(await page.isHidden("#problem"), await page.textContent("#problem"));
  // Another file may come while an answer is written.
  await start("abc");
  await grown(6);
  await giveDecoder(page, bytes("other.gguf", llama()));
  must((await page.locator("#log p").count()) === 0 && !(await talking(page)), "the old answer is still there");
  await start("abc");
  await grown(6);
  await page.click("#stop");
  await silent(page);
  must(await page.isHidden("#problem"), await page.textContent("#problem"));
  words.push(await page.locator("#log .theirs").last().textContent());
  must(/^abc[a-x]+$/.test(words.at(-1)), words.at(-1));
  await page.close();
  return words.join(" | ");
}

/** With WebGPU. */
export async function text(browser, address) {
  const page = await newPage(browser, `${address}/test/`);
  await page.waitForFunction(() => window.olivine);
  await test("the tokenizer equals that of Hugging Face", () => tokens(page));
  await test("texts are split as each family of tokenizers does", () => splits(page));
  await test("texts are generated, ended and refused through the package", () => generates(page));
  await page.close();
  // Chromium offers no WebGPU any more after a few crashes, so each has a browser of its own.
  const other = await open();
  await test("a decoder babbles, and what goes wrong is explained", () => babble(other, address));
  await other.close();
}

/** Without: on the CPU. */
export async function textOnCpu(browser, address) {
  await test("SmolLM2 chats and can be stopped", () => chat(browser, address));
}
