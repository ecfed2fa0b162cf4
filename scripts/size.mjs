// Prints the size of a built Worker: `node scripts/size.mjs [FOLDER]`, raw and gzip, WebAssembly and glue.

import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { ROOT } from "./lib/serve.mjs";

/** The mark for wasm and glue together, gzip. */
const MARK_BYTES = 350 * 1024;

/** Sizes in bytes of what is uploaded. */
export function sizes(folder = ".") {
  const build = path.resolve(ROOT, folder, "build");
  const rows = { wasm: { raw: 0, gzip: 0 }, glue: { raw: 0, gzip: 0 } };
  // Only the top: build/worker/ holds a shim for older configurations.
  for (const name of readdirSync(build)) {
    const kind = name.endsWith(".wasm") ? "wasm" : /\.m?js$/.test(name) ? "glue" : undefined;
    if (!kind) continue;
    const bytes = readFileSync(path.join(build, name));
    rows[kind].raw += bytes.length;
    rows[kind].gzip += gzipSync(bytes, { level: 9 }).length;
  }
  const total = { raw: rows.wasm.raw + rows.glue.raw, gzip: rows.wasm.gzip + rows.glue.gzip };
  return { ...rows, total };
}

if (process.argv[1] === import.meta.filename) {
  const measured = sizes(process.argv[2]);
  const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`.padStart(12);
  console.log(`${"".padEnd(8)}${"raw".padStart(12)}${"gzip".padStart(12)}`);
  for (const [name, { raw, gzip }] of Object.entries(measured)) {
    const mark = name === "total" ? `   (mark: ${kib(MARK_BYTES).trim()} gzip)` : "";
    console.log(`${name.padEnd(8)}${kib(raw)}${kib(gzip)}${mark}`);
  }
}
