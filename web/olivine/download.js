// A file's bytes, put into the module's memory while they arrive.

import { find, keep } from "./cache.js";

/** Fills a `Download` of the module from an address, a Blob or File, or a buffer. */
export async function download(source, Download, { cache = true, onProgress, signal } = {}) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) {
    const bytes = source instanceof ArrayBuffer
      ? new Uint8Array(source)
      : new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
    const file = new Download(bytes.length);
    file.push(bytes);
    onProgress?.({ loaded: bytes.length, total: bytes.length });
    return file;
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
    // Offline, what is stored is what there is.
    if (!head || (head.ok && tagOf(head) === stored.tag)) {
      return stream(stored.blob.stream(), stored.blob.size, Download, { onProgress, signal });
    }
  }
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error(`cannot fetch ${address}: ${response.status} ${response.statusText}`);
  // The length of what is sent compressed is not the file's.
  const plain = !response.headers.get("content-encoding");
  const total = plain ? Number(response.headers.get("content-length")) || 0 : 0;
  const tag = tagOf(response);
  const pieces = cache && tag ? [] : undefined;
  const file = await stream(response.body, total, Download, { onProgress, signal, pieces });
  if (pieces) await keep(address, tag, new Blob(pieces));
  return file;
}

function tagOf(response) {
  const tag = response.headers.get("etag") ?? response.headers.get("last-modified");
  return tag && `${tag} ${response.headers.get("content-length")}`;
}

async function stream(body, total, Download, { onProgress, signal, pieces }) {
  const file = new Download(total);
  try {
    let loaded = 0;
    const reader = body.getReader();
    for (;;) {
      signal?.throwIfAborted();
      const { done, value } = await reader.read();
      if (done) return file;
      file.push(value);
      pieces?.push(value);
      loaded += value.length;
      onProgress?.({ loaded, total: total || undefined });
    }
  } catch (error) {
    file.free();
    throw error;
  }
}
