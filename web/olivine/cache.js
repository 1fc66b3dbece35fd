// Files between visits, in IndexedDB. A browser without it, or without room, goes on without a cache.

const STORE = "files";

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("olivine", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function ask(mode, question) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = question(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error);
      transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** What was stored under an address: `{tag, blob}`, or undefined. */
export async function find(address) {
  try {
    return await ask("readonly", (store) => store.get(address));
  } catch {
    return undefined;
  }
}

/** Stores a file under its address; `tag` tells later whether the server has another by then. */
export async function keep(address, tag, blob) {
  try {
    await ask("readwrite", (store) => store.put({ tag, blob }, address));
  } catch {
    // No room, or storage is off.
  }
}

/** Removes everything that was stored. */
export async function clearCache() {
  try {
    await ask("readwrite", (store) => store.clear());
  } catch {
    // Nothing was stored.
  }
}
