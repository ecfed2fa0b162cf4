// What is not configured, or stored by another release, is said and never guessed.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { noPanic, ok, refused, send, startWorld, temporaryFolder, TOKEN, until } from "./lib/api.mjs";

const ROUTES = [
  ["GET", "/healthz"], ["GET", "/v1/agents"], ["GET", "/v1/extensions"], ["GET", "/v1/agents/a"], ["PUT", "/v1/agents/a"],
  ["POST", "/v1/agents/a/messages"], ["GET", "/v1/agents/a/events"], ["DELETE", "/v1/agents/a"], ["GET", "/"],
];

/** Every route answers `not_configured` and names the variable. */
async function unconfigured(t, vars, variable, problem) {
  const world = await startWorld({ vars });
  t.after(() => world.stop());
  for (const [method, target] of ROUTES) {
    const response = await send(world.url, method, target, { token: TOKEN });
    const error = refused(response, 503, "not_configured");
    assert.equal(error.details.variable, variable);
    assert.match(error.message, new RegExp(variable));
    assert.match(error.message, problem);
    for (const value of Object.values(vars)) if (value?.length > 12) assert.ok(!response.text.includes(value), "a value is not repeated");
  }
  noPanic(world.server.output);
}

test("without API_TOKENS nothing is served", (t) => unconfigured(t, { API_TOKENS: undefined }, "API_TOKENS", /not set/));
test("a bad TIERS is named on every request", (t) =>
  unconfigured(t, { TIERS: '{"haiku":{"openrouter":{"models":[],"context":1,"max_output":1}}}' }, "TIERS", /models/));
test("a bad number, and what is wrong with it", (t) => unconfigured(t, { RETRY_BASE_MS: "soon" }, "RETRY_BASE_MS", /whole number/));

/** The SQLite files of a state folder below the folder of that name. */
function databases(stateDir, part) {
  return readdirSync(stateDir, { recursive: true })
    .filter((name) => name.includes(part) && name.endsWith(".sqlite") && !name.endsWith("metadata.sqlite"))
    .map((name) => path.join(stateDir, name));
}

/** What a database holds, read without changing it. */
function contents(file) {
  const database = new DatabaseSync(file, { readOnly: true });
  const tables = database.prepare("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name").all();
  const held = tables.map(({ name, sql }) => [name, sql, database.prepare(`SELECT * FROM "${name}"`).all()]);
  database.close();
  return createHash("sha256").update(JSON.stringify(held)).digest("hex");
}

function change(file, sql) {
  const database = new DatabaseSync(file);
  database.exec(sql);
  database.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  database.close();
}

function holding(files, table) {
  return files.find((file) => {
    const database = new DatabaseSync(file, { readOnly: true });
    const found = database.prepare("SELECT 1 FROM sqlite_master WHERE name = ?").get(table);
    database.close();
    return found;
  });
}

test("a D1 schema that does not fit: 503 on every route that needs it, nothing is changed, and it serves again when it fits", async (t) => {
  const stateDir = temporaryFolder();
  let world = await startWorld({ stateDir });
  t.after(() => world.stop());
  const cases = [
    ["UPDATE meta SET value = '99' WHERE key = 'schema_version'", "schema_newer", false, "99"],
    ["UPDATE meta SET value = '0' WHERE key = 'schema_version'", "schema_older", true, "0"],
    ["ALTER TABLE meta RENAME TO meta_away", "schema_older", true, "0"],
  ];
  await world.stop();
  const file = holding(databases(stateDir, "D1"), "meta");
  assert.ok(file, "the D1 file was not found");
  for (const [sql, code, retryable, version] of cases) {
    change(file, sql);
    const before = contents(file);
    world = await startWorld({ stateDir });
    const api = world.client();
    for (const [method, target] of ROUTES.filter(([, target]) => target.startsWith("/v1"))) {
      const error = refused(await api.call(method, target), 503, code);
      assert.equal(error.retryable, retryable);
      assert.match(error.message, new RegExp(`\\b${version}\\b`));
    }
    ok(await api.get("/healthz"));
    refused(await send(world.url, "GET", "/v1/agents"), 401, "unauthorized");
    noPanic(world.server.output);
    await world.stop();
    assert.equal(contents(file), before, "nothing else was changed");
    assert.equal(databases(stateDir, "AgentDO").length, 0, "no object was made");
  }
  change(file, "ALTER TABLE meta_away RENAME TO meta; UPDATE meta SET value = '1' WHERE key = 'schema_version'");
  world = await startWorld({ stateDir });
  assert.equal((await world.client().ask("a", "hello")).status, "done");
});

test("an agent's database of a newer release: 503 schema_newer, and its file is left as it is", async (t) => {
  const stateDir = temporaryFolder();
  let world = await startWorld({ stateDir });
  t.after(() => world.stop());
  await world.client().ask("newer", "hello", { request_id: "r" });
  await until("nothing is armed", async () => (await world.client().agent("newer")).next_wake_at === null);
  await world.stop();
  const file = holding(databases(stateDir, "AgentDO"), "schema_version");
  assert.ok(file, "the agent's file was not found");
  change(file, "UPDATE schema_version SET version = 99");
  const before = contents(file);
  const bytes = readFileSync(file);

  world = await startWorld({ stateDir });
  const api = world.client();
  const calls = [
    ["GET", ""], ["GET", "/entries"], ["GET", "/events"], ["GET", "/submissions/r?wait=1"], ["PUT", "", { system_prompt: "", tier: "haiku" }],
    ["POST", "/messages", { request_id: "n", text: "t" }], ["POST", "/stop"], ["POST", "/retry"], ["POST", "/interrupt"],
    ["POST", "/signals/go", { value: 1, request_id: "s" }], ["DELETE", ""],
  ];
  for (const [method, rest, body] of calls) {
    const error = refused(await api.call(method, `/v1/agents/newer${rest}`, body), 503, "schema_newer");
    assert.equal(error.retryable, false);
    assert.match(error.message, /99/);
  }
  // Other agents are served.
  assert.equal((await api.ask("beside", "hello")).status, "done");
  noPanic(world.server.output);
  await world.stop();
  assert.equal(contents(file), before);
  assert.ok(readFileSync(file).equals(bytes), "byte for byte");

  change(file, "UPDATE schema_version SET version = 1");
  world = await startWorld({ stateDir });
  assert.equal((await world.client().submission("newer", "r")).status, "done");
});
