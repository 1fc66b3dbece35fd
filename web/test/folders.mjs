// Where things are, and the server over them.

import { fileURLToPath } from "node:url";
import { serve } from "./server.mjs";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

export const ROOT = at("../..");
export const ZOO = at("../../target/zoo");
export const SHOTS = at("../../target/web-pages");

export const start = (port) =>
  serve({ demo: at("../demo"), olivine: at("../olivine"), test: at("."), zoo: ZOO, cases: at("../../target/web-cases") }, port);
