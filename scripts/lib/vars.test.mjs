// Variables reach the Worker as they are: wrangler's own parser must read back what envFile writes.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";
import { ROOT } from "./serve.mjs";
import { apiTokens, envFile, isVariable, VARIABLES } from "./vars.mjs";

/** dotenv's grammar and dotenv-expand's `$`, as wrangler 4.164 bundles them. */
function read(text) {
  const line =
    /(?:^|^)\s*(?:export\s+)?([\w.-]+)(?:\s*=\s*?|:\s+?)(\s*'(?:\\'|[^'])*'|\s*"(?:\\"|[^"])*"|\s*`(?:\\`|[^`])*`|[^#\r\n]+)?\s*(?:#.*)?(?:$|$)/gm;
  const found = {};
  for (const [, name, raw = ""] of text.matchAll(line)) {
    let value = raw.trim();
    const quote = value[0];
    value = value.replace(/^(['"`])([\s\S]*)\1$/gm, "$2");
    if (quote === '"') value = value.replace(/\\n/g, "\n").replace(/\\r/g, "\r");
    assert.doesNotMatch(value, /(?<!\\)\$[A-Za-z_{]/, "would be expanded");
    found[name] = value.replace(/\\\$/g, "$");
  }
  return found;
}

test("values come back as they went in", () => {
  const values = {
    EMPTY: "",
    PLAIN: "16,32,32",
    URL: "http://127.0.0.1:9/v1/acct/gw?a=b#c",
    JSON: '{"a":"b: c","d":["$HOME","${X}"," e "]}',
    KEY: '{"private_key":"-----BEGIN-----\\nabc\\n-----END-----\\n"}',
    APOSTROPHE: `it's "quoted" # no comment`,
    SPACES: "  two  ",
    LINES: "a\nb=c\n",
    BACKSLASHES: "a\\$b\\\\$c",
  };
  assert.deepEqual(read(envFile(values)), values);
});

test("JSON with every kind of quote keeps its meaning", () => {
  const prompt = { system_prompt: "it's `code` and \"more\"\\n" };
  assert.deepEqual(JSON.parse(read(envFile({ AGENT_DEFAULTS: JSON.stringify(prompt) })).AGENT_DEFAULTS), prompt);
  assert.deepEqual(JSON.parse(read(envFile({ AGENT_DEFAULTS: prompt })).AGENT_DEFAULTS), prompt);
});

test("what an env file cannot hold is refused by name, not changed", () => {
  for (const value of ["' ` \"", "ends with \\", "a\rb", undefined]) {
    assert.throws(() => envFile({ ROUTING: value }), /ROUTING/);
  }
});

test("configuration is told from the rest of the environment", () => {
  assert.ok(isVariable("API_TOKENS") && isVariable("LIVENESS_INTERVAL_MS"));
  assert.ok(!isVariable("PATH") && !isVariable("PORT") && !isVariable("HOME"));
});

test("every variable the Worker reads is passed on, and none that it does not know", () => {
  const folder = path.join(ROOT, "src/config");
  const files = readdirSync(folder).filter((name) => name.endsWith(".rs") && name !== "tests.rs");
  const sources = [path.join(ROOT, "src/config.rs"), path.join(folder, "mod.rs"), ...files.map((name) => path.join(folder, name))]
    .filter((file) => existsSync(file))
    .map((file) => readFileSync(file, "utf8").replace(/^\s*\/\/.*$/gm, ""))
    .join("\n");
  const read = new Set([...sources.matchAll(/"([A-Z][A-Z0-9]*_[A-Z0-9_]+|TIERS|ROUTING)"/g)].map(([, name]) => name));
  assert.ok(read.size > 20, "the Worker's list was not found");
  assert.deepEqual([...read].filter((name) => !isVariable(name)), []);
  assert.deepEqual(VARIABLES.filter((name) => !read.has(name)), []);
});

test("tokens are stored by hash", () => {
  const [entry] = JSON.parse(apiTokens({ token: "t", tenant: "x", scopes: ["read"] }));
  assert.deepEqual(entry, { sha256: createHash("sha256").update("t").digest("hex"), tenant: "x", scopes: ["read"] });
});
