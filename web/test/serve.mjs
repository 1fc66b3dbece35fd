// Serves the demo until it is stopped: `cargo xtask web serve [PORT]`.

import { start } from "./folders.mjs";

const { address } = await start(Number(process.argv[2] ?? 8000));
console.log(`${address}/demo/`);
