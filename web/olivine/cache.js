// Files between visits, in IndexedDB: a file's pieces, written while they arrive, and a record once all are there. A browser
// without it, or without room, goes on without a cache.

const [FILES, PIECES] = ["files", "pieces"];

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("olivine", 2);
    request.onupgradeneeded = () => {
      const database = request.result;
      for (const name of [...database.objectStoreNames]) database.deleteObjectStore(name);
      for (const name of [FILES, PIECES]) database.createObjectStore(name);
    };
    request.onblocked = () => reject(new Error("another page has the database"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function ask(mode, question) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction([FILES, PIECES], mode);
      const request = question(transaction.objectStore(FILES), transaction.objectStore(PIECES));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error);
      transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** What was stored under an address: `{tag, pieces, bytes}`, or undefined. */
export async function find(address) {
  try {
    return await ask("readonly", (files) => files.get(address));
  } catch {
    return undefined;
  }
}

/** A piece of a file that was stored, or undefined where it cannot be read or is another version's. */
export async function piece(address, number, tag) {
  try {
    const found = await ask("readonly", (_, pieces) => pieces.get([address, number]));
    return found?.tag === tag ? found.bytes : undefined;
  } catch {
    return undefined;
  }
}

/** Removes what is stored under an address. */
async function remove(address) {
  await ask("readwrite", (files, pieces) => {
    files.delete(address);
    return pieces.delete(IDBKeyRange.bound([address], [address, []]));
  });
}

/** Stores a file under its address piece by piece; `tag` tells later whether the server has another by then. */
export class Keeper {
  #address;
  #tag;
  #pieces = 0;
  #bytes = 0;
  /** Without room, or with storage off, nothing is kept. */
  #keeps = true;

  constructor(address, tag) {
    this.#address = address;
    this.#tag = tag;
  }

  /** Stores the next piece. Pieces of one file always have the same sizes, so that two pages may store it at once. */
  async push(bytes) {
    await this.#attempt(async () => {
      if (this.#pieces === 0) await remove(this.#address);
      // A view would be stored with all of its buffer.
      const value = { tag: this.#tag, bytes: bytes.slice() };
      const key = [this.#address, this.#pieces];
      await ask("readwrite", (_, pieces) => pieces.put(value, key));
      this.#pieces += 1;
      this.#bytes += bytes.length;
    });
  }

  /** All pieces are there. */
  async end() {
    const record = { tag: this.#tag, pieces: this.#pieces, bytes: this.#bytes };
    await this.#attempt(() => ask("readwrite", (files) => files.put(record, this.#address)));
  }

  /** The file did not arrive. */
  async drop() {
    await this.#attempt(() => remove(this.#address));
  }

  async #attempt(work) {
    if (!this.#keeps) return;
    try {
      await work();
    } catch {
      this.#keeps = false;
      await remove(this.#address).catch(() => {});
    }
  }
}

/** Removes everything that was stored. */
export async function clearCache() {
  try {
    await ask("readwrite", (files, pieces) => {
      files.clear();
      return pieces.clear();
    });
  } catch {
    // Nothing was stored.
  }
}
