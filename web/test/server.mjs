// A plain static server: several folders under one address.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".wasm": "application/wasm",
  ".json": "application/json",
};

/** Serves folders by the first part of the path; resolves to the server and its address. */
export async function serve(folders, port = 0) {
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname));
    const [, name, ...rest] = path.split("/");
    const folder = folders[name];
    let file = folder && join(folder, ...rest);
    try {
      let found = await stat(file);
      if (found.isDirectory()) found = await stat((file = join(file, "index.html")));
      response.writeHead(200, {
        "content-type": TYPES[extname(file)] ?? "application/octet-stream",
        "content-length": found.size,
        "last-modified": found.mtime.toUTCString(),
      });
      if (request.method === "HEAD") response.end();
      else createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404).end("not found");
    }
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}
