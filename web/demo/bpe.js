// Byte-level BPE, the tokenizer of GPT-2 and of most small models since, from the metadata of a GGUF file.

const CONTROL = 3;
const USER_DEFINED = 4;

const SPACE = "\\p{White_Space}";
const GPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?![^${SPACE}])|${SPACE}+`;
const words = (numbers) =>
  `'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${numbers}|` +
  ` ?[^${SPACE}\\p{L}\\p{N}]+[\\r\\n]*|${SPACE}*[\\r\\n]+|${SPACE}+(?![^${SPACE}])|${SPACE}+`;

/** How text is split before pairs are merged: expressions applied one after another, by the name in the metadata. */
const SPLITS = {
  "gpt-2": [GPT2],
  smollm: ["\\p{N}|\\P{N}+", GPT2],
  qwen2: [words("\\p{N}")],
  "llama-bpe": [words("\\p{N}{1,3}")],
};

/** Printable characters that stand for bytes in the vocabulary. */
const CHARACTERS = (() => {
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
})();
const BYTES = new Map(CHARACTERS.map((character, byte) => [character, byte]));

export class BytePairs {
  #pieces;
  #ids;
  #ranks;
  #splits;
  #special;

  constructor(metadata) {
    const of = (key) => metadata.get(`tokenizer.ggml.${key}`);
    if (of("model") !== "gpt2") throw new Error(`its tokenizer is \`${of("model") ?? "missing"}\`: this page knows byte-level BPE (\`gpt2\`)`);
    this.#splits = SPLITS[of("pre")]?.map((expression) => new RegExp(expression, "gu"));
    if (!this.#splits) throw new Error(`its tokenizer splits text as \`${of("pre") ?? "nothing"}\`: this page knows ${Object.keys(SPLITS).join(", ")}`);
    this.#pieces = of("tokens");
    if (!Array.isArray(this.#pieces) || !Array.isArray(of("merges"))) throw new Error("its tokenizer has no tokens or no merges");
    this.#ids = new Map(this.#pieces.map((piece, id) => [piece, id]));
    this.#ranks = new Map(of("merges").map((pair, rank) => [pair, rank]));
    const kinds = of("token_type") ?? [];
    this.#special = new Map(this.#pieces.flatMap((piece, id) => ([CONTROL, USER_DEFINED].includes(kinds[id]) && piece ? [[piece, id]] : [])));
  }

  /** The token of a piece such as `<|im_end|>`, if there is one. */
  id(piece) {
    return this.#ids.get(piece);
  }

  /** The tokens of a text, in which special pieces are themselves. */
  encode(text) {
    const escape = (piece) => piece.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    const longestFirst = [...this.#special.keys()].sort((a, b) => b.length - a.length);
    const parts = longestFirst.length ? text.split(new RegExp(`(${longestFirst.map(escape).join("|")})`)) : [text];
    return parts.flatMap((part) => (this.#special.has(part) ? [this.#special.get(part)] : this.#plain(part)));
  }

  #plain(text) {
    const pieces = this.#splits.reduce((parts, split) => parts.flatMap((part) => part.match(split) ?? []), [text]);
    const encoder = new TextEncoder();
    return pieces.flatMap((piece) => this.#merged(Array.from(encoder.encode(piece), (byte) => CHARACTERS[byte])));
  }

  /** Joins the pair that was learned first, again and again. */
  #merged(symbols) {
    for (;;) {
      let [best, at] = [Infinity, -1];
      for (let i = 0; i + 1 < symbols.length; i++) {
        const rank = this.#ranks.get(`${symbols[i]} ${symbols[i + 1]}`);
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      symbols.splice(at, 2, symbols[at] + symbols[at + 1]);
    }
    return symbols.map((symbol) => {
      const id = this.#ids.get(symbol);
      if (id === undefined) throw new Error(`the tokenizer has no token for \`${symbol}\``);
      return id;
    });
  }

  /** A function that returns the text of one token after another; a character may take several. */
  decoder() {
    const decoder = new TextDecoder();
    return (id) => {
      const piece = this.#pieces[id];
      if (piece === undefined || this.#special.has(piece)) return "";
      return decoder.decode(Uint8Array.from(piece, (character) => BYTES.get(character) ?? 63), { stream: true });
    };
  }
}
