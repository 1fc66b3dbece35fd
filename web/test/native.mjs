// The same runs on the CPU by the native program, through .npy files.

import { execFile, execFileSync, spawn } from "node:child_process";
import { mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const KINDS = { Float32Array: "<f4", Int32Array: "<i4", BigInt64Array: "<i8" };
const ARRAYS = { "<f4": Float32Array, "<i4": Int32Array, "<i8": BigInt64Array };

function npy({ data, dims }) {
  const shape = dims.length === 1 ? `${dims[0]},` : dims.join(", ");
  const fields = `{'descr': '${KINDS[data.constructor.name]}', 'fortran_order': False, 'shape': (${shape}), }`;
  const header = Buffer.from(`${fields.padEnd(Math.ceil((fields.length + 11) / 64) * 64 - 11)}\n`, "latin1");
  const start = Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, header.length & 255, header.length >> 8]);
  return Buffer.concat([start, header, Buffer.from(data.buffer, data.byteOffset, data.byteLength)]);
}

function parse(bytes) {
  const length = bytes.readUInt16LE(8);
  const header = bytes.subarray(10, 10 + length).toString("latin1");
  const Elements = ARRAYS[/'descr': *'([^']+)'/.exec(header)[1]];
  return { data: new Elements(Uint8Array.from(bytes.subarray(10 + length)).buffer) };
}

/** Typed arrays of what a page returned as `[name, kind, elements as strings, dims]`. */
export function typed(tensors) {
  return tensors.map(([name, kind, elements, dims]) => {
    const big = kind.startsWith("Big");
    return [name, { data: globalThis[kind].from(elements, big ? BigInt : Number), dims }];
  });
}

/** What a server of the native program answers to a request for embeddings, `{data, usage}`. */
export async function embeddings(program, folder, input) {
  const server = spawn(program, ["serve", folder, "--device", "cpu", "--port", "0"], { stdio: ["ignore", "pipe", "pipe"] });
  try {
    const address = await new Promise((resolve, reject) => {
      let said = "";
      for (const stream of [server.stdout, server.stderr]) {
        stream.on("data", (bytes) => {
          said += bytes;
          const found = /http:\/\/[\w.:]+/.exec(said);
          if (found) resolve(found[0]);
        });
      }
      server.on("exit", () => reject(new Error(`the server does not start: ${said}`)));
    });
    const body = JSON.stringify({ model: "minilm", input });
    const response = await fetch(`${address}/v1/embeddings`, { method: "POST", headers: { "content-type": "application/json" }, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(JSON.stringify(answer));
    return answer;
  } finally {
    server.kill();
  }
}

/** The outputs of a model file on typed arrays, in the order of their names. */
export async function native(program, file, feeds) {
  const folder = await mkdtemp(join(tmpdir(), "olivine-web-"));
  try {
    const args = ["run", file, "--device", "cpu", "--output", join(folder, "out")];
    for (const [name, feed] of Object.entries(feeds)) {
      await writeFile(join(folder, `${name}.npy`), npy(feed));
      args.push("--input", `${name}=${join(folder, `${name}.npy`)}`);
    }
    await promisify(execFile)(program, args);
    const files = (await readdir(join(folder, "out"))).sort();
    return Promise.all(files.map(async (name) => parse(await readFile(join(folder, "out", name)))));
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** What a language model answers to a message without chance. */
export function answerOf(program, file, message) {
  const options = { input: `${message}\n/exit\n`, encoding: "utf8", stdio: ["pipe", "pipe", "pipe"] };
  return execFileSync(program, ["chat", file, "--device", "cpu"], options).trim();
}
