// WordPiece as uncased BERT models are trained with: words split at spaces and punctuation, then the longest known pieces.

export class WordPiece {
  #pieces;

  constructor(vocabulary) {
    this.#pieces = new Map(vocabulary.split(/\r?\n/).map((piece, id) => [piece, id]));
    for (const piece of ["[CLS]", "[SEP]", "[UNK]"]) {
      if (!this.#pieces.has(piece)) throw new Error(`vocab.txt has no ${piece}`);
    }
  }

  encode(text) {
    const plain = text.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase();
    const words = plain.match(/[\p{P}\p{S}]|[^\s\p{P}\p{S}]+/gu) ?? [];
    const ids = words.flatMap((word) => this.#split(word));
    return [this.#pieces.get("[CLS]"), ...ids, this.#pieces.get("[SEP]")];
  }

  #split(word) {
    const ids = [];
    for (let start = 0; start < word.length; ) {
      let end = word.length;
      while (end > start && !this.#pieces.has((start ? "##" : "") + word.slice(start, end))) end--;
      if (end === start) return [this.#pieces.get("[UNK]")];
      ids.push(this.#pieces.get((start ? "##" : "") + word.slice(start, end)));
      start = end;
    }
    return ids;
  }
}
