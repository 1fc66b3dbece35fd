// A file's bytes, put into the module's memory while they arrive.

import { Keeper, find, piece } from "./cache.js";

/** Bytes that go into the module and the cache at once. */
const PIECE = 4 << 20;

/** Fills a `Download` of the module from an address, a Blob or File, or a buffer. */
export async function download(source, Download, { cache = true, onProgress, signal } = {}) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) {
    const bytes = source instanceof ArrayBuffer
      ? new Uint8Array(source)
      : new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
    return filled(Download, bytes.length, async (file) => {
      for (let at = 0; at < bytes.length; at += PIECE) file.push(bytes.subarray(at, at + PIECE));
      onProgress?.({ loaded: bytes.length, total: bytes.length });
    });
  }
  if (source instanceof Blob) return stream(source.stream(), source.size, Download, { onProgress, signal });
  if (typeof source === "string" || source instanceof URL) {
    return fetched(new URL(source, globalThis.location?.href).href, Download, { cache, onProgress, signal });
  }
  throw new TypeError("a model is a URL, a File or Blob, or an ArrayBuffer");
}

async function fetched(address, Download, { cache, onProgress, signal }) {
  const stored = cache ? await find(address) : undefined;
  if (stored) {
    const head = await fetch(address, { method: "HEAD", signal }).catch(() => undefined);
    signal?.throwIfAborted();
    // Offline, what is stored is what there is.
    if (!head || (head.ok && tagOf(head) === stored.tag)) {
      const file = await kept(address, stored, Download, { onProgress, signal });
      if (file) return file;
    }
  }
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(`cannot fetch ${address}: ${response.status} ${response.statusText}`);
  // The length of what is sent compressed is not the file's.
  const plain = !response.headers.get("content-encoding");
  const total = plain ? Number(response.headers.get("content-length")) || 0 : 0;
  const tag = tagOf(response);
  const keeper = cache && tag ? new Keeper(address, tag) : undefined;
  return stream(response.body, total, Download, { onProgress, signal, keeper });
}

function tagOf(response) {
  const tag = response.headers.get("etag") ?? response.headers.get("last-modified");
  return tag && `${tag} ${response.headers.get("content-length")}`;
}

/** The file that is stored, or undefined where some of it cannot be read any more. */
async function kept(address, { tag, pieces, bytes }, Download, { onProgress, signal }) {
  const missing = new Error("a piece is missing");
  try {
    return await filled(Download, bytes, async (file) => {
      let loaded = 0;
      for (let number = 0; number < pieces; number++) {
        signal?.throwIfAborted();
        const found = await piece(address, number, tag);
        if (!found) throw missing;
        file.push(found);
        loaded += found.length;
        onProgress?.({ loaded, total: bytes });
      }
      if (loaded !== bytes) throw missing;
    });
  } catch (error) {
    if (error === missing) return undefined;
    throw error;
  }
}

async function stream(body, total, Download, { onProgress, signal, keeper }) {
  const reader = body.getReader();
  try {
    return await filled(Download, total, async (file) => {
      const pieces = new Pieces(async (bytes) => {
        file.push(bytes);
        await keeper?.push(bytes);
      });
      let loaded = 0;
      for (;;) {
        signal?.throwIfAborted();
        const { done, value } = await reader.read();
        if (done) break;
        await pieces.push(value);
        loaded += value.length;
        onProgress?.({ loaded, total: total || undefined });
      }
      await pieces.end();
      await keeper?.end();
    });
  } catch (error) {
    // Nobody wants the rest.
    reader.cancel(error).catch(() => {});
    await keeper?.drop();
    throw error;
  }
}

/** A `Download` that `fill` puts bytes into; it is freed where that fails. */
async function filled(Download, expected, fill) {
  const file = new Download(expected);
  try {
    await fill(file);
    return file;
  } catch (error) {
    file.free();
    throw error;
  }
}

/** Bytes as they come, as pieces of `PIECE` bytes and a last one. */
class Pieces {
  #take;
  #bytes = new Uint8Array(PIECE);
  #length = 0;

  constructor(take) {
    this.#take = take;
  }

  async push(bytes) {
    while (bytes.length) {
      const some = bytes.subarray(0, PIECE - this.#length);
      this.#bytes.set(some, this.#length);
      this.#length += some.length;
      bytes = bytes.subarray(some.length);
      if (this.#length === PIECE) await this.end();
    }
  }

  async end() {
    const bytes = this.#bytes.subarray(0, this.#length);
    this.#length = 0;
    if (bytes.length) await this.#take(bytes);
  }
}
