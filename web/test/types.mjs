// The package's types, held against its JavaScript by the TypeScript compiler.

import { execFile } from "node:child_process";
import { cp, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { ROOT } from "./folders.mjs";
import { must, test } from "./harness.mjs";

export async function types() {
  await test("the types are those of the JavaScript", async () => {
    const [source, copy] = [join(ROOT, "web/olivine"), join(ROOT, "target/web-types")];
    await rm(copy, { recursive: true, force: true });
    await mkdir(join(copy, "wasm"), { recursive: true });
    const files = (await readdir(source)).filter((name) => name.endsWith(".js"));
    for (const file of [...files, "wasm/olivine_web.js"]) await cp(join(source, file), join(copy, file));
    const folder = join(ROOT, "web/test");
    const compile = promisify(execFile)(join(folder, "node_modules/.bin/tsc"), ["--project", folder]);
    const problems = await compile.then(() => "", ({ stdout, message }) => stdout || message);
    must(!problems, problems.replaceAll("\n", " | "));
  });
}
