// The section of the demo that talks: its tokenizer, a model that chats, and a device that is lost on the way.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { BytePairs } from "../demo/bpe.js";
import { readMetadata } from "../demo/gguf.js";
import { newPage, open } from "./browser.mjs";
import { ROOT, SHOTS, ZOO } from "./folders.mjs";
import { llama } from "./gguf.mjs";
import { PHONE, crashGpu, must, test, withProblem } from "./harness.mjs";

const SMOLLM2 = join(ZOO, "smollm2/model.gguf");

async function tokens() {
  const tokenizer = new BytePairs(await readMetadata(new Blob([await readFile(SMOLLM2)])));
  const rows = JSON.parse(await readFile(new URL("./bpe.json", import.meta.url)));
  // llama.cpp's tokens of other prompts.
  const prompts = JSON.parse(await readFile(join(ROOT, "zoo/greedy.json"))).filter(({ model }) => model === "smollm2/model.gguf");
  rows.push(...prompts.map(({ text, prompt }) => [text, prompt]));
  must(prompts.length > 0, "zoo/greedy.json has no prompts of smollm2");
  const plain = (ids) => ids.map(tokenizer.decoder()).join("");
  for (const [text, ids] of rows) {
    const got = tokenizer.encode(text);
    must(String(got) === String(ids), `${JSON.stringify(text)} is ${got}, not ${ids}`);
    must(text.includes("<|") || plain(got) === text, `${JSON.stringify(text)} comes back as ${JSON.stringify(plain(got))}`);
  }
  return `${rows.length} texts`;
}

/** How each family splits a text, by the pairs that it lets join. */
async function splits() {
  const all = Array.from({ length: 256 }, (_, byte) => byte);
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let other = 256;
  const pieces = all.map((byte) => String.fromCodePoint(printable(byte) ? byte : other++));
  // Two digits, a space and a letter, two line breaks, a bracket and a letter: joined where no split is between them.
  const [space, line] = [pieces[32], pieces[10]];
  const pairs = [["1", "2"], [space, "a"], [line, line], ["(", "b"]];
  const metadata = (pre) =>
    new Map(Object.entries({ model: "gpt2", pre, tokens: [...pieces, ...pairs.map(([a, b]) => a + b)], merges: pairs.map((pair) => pair.join(" ")) })
      .map(([key, value]) => [`tokenizer.ggml.${key}`, value]));
  const joined = (pre, text) => new BytePairs(metadata(pre)).encode(text).filter((id) => id >= 256).map((id) => id - 256);
  const text = "12 a!\n\n(b";
  const expected = { "gpt-2": [0, 1], smollm: [1], qwen2: [1, 2, 3], "llama-bpe": [0, 1, 2, 3] };
  for (const [pre, pairs] of Object.entries(expected)) {
    const got = joined(pre, text);
    must(String(got) === String(pairs), `${pre} joins ${got}, not ${pairs}`);
  }
}

async function giveDecoder(page, file) {
  await page.setInputFiles("#decoder", file);
  await page.waitForSelector("#talk:not([hidden]), #problem:not([hidden])", { timeout: 120_000 });
  must(await page.isHidden("#problem"), await page.textContent("#problem"));
}

const bytes = (name, buffer) => ({ name, mimeType: "application/octet-stream", buffer });
const talking = (page) => page.isVisible("#stop");
const silent = (page) => page.waitForSelector("#stop", { state: "hidden", timeout: 120_000 });

/** SmolLM2 answers without chance as `zoo/greedy.json` has it of exact arithmetic: 504 2988 314 216 …; a long answer is stopped. */
async function chat(browser, address) {
  const page = await newPage(browser, `${address}/demo/`, PHONE);
  await giveDecoder(page, SMOLLM2);
  await page.fill("#said", "What is 2+2?");
  await page.click("#say");
  await silent(page);
  const answer = await page.textContent("#log .theirs");
  must(answer === "The answer is 4.", `it answers ${JSON.stringify(answer)}`);
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
  const expected = [/no GGUF file/, /ends in the middle/, /splits text as `odd`/, /`clip` cannot be run/];
  expected.forEach((pattern, i) => must(pattern.test(words[i]), words[i]));
  await giveDecoder(page, bytes("tiny.gguf", llama()));
  const start = async (text) => {
    await page.fill("#said", text);
    await page.click("#say");
  };
  const grown = (length) =>
    page.waitForFunction((n) => [...document.querySelectorAll("#log .theirs")].at(-1)?.textContent.length >= n, length, { timeout: 60_000 });
  words.push(await withProblem(page, () => start("Capital letters have no tokens")));
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
  words.push(await page.locator("#log .theirs").last().textContent());
  must(/^abc[a-x]+$/.test(words.at(-1)), words.at(-1));
  await page.close();
  return words.join(" | ");
}

/** With WebGPU. */
export async function text(browser, address) {
  await test("the tokenizer equals that of Hugging Face", tokens);
  await test("texts are split as each family of tokenizers does", splits);
  // Chromium offers no WebGPU any more after a few crashes, so each has a browser of its own.
  const other = await open();
  await test("a decoder babbles, and what goes wrong is explained", () => babble(other, address));
  await other.close();
}

/** Without: on the CPU. */
export async function textOnCpu(browser, address) {
  await test("SmolLM2 chats and can be stopped", () => chat(browser, address));
}
