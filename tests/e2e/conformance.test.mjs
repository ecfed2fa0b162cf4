// The conformance checks of the SQL port, inside workerd over Durable Object storage. `cargo test` runs the same list over
// rusqlite.

import assert from "node:assert/strict";
import { test } from "node:test";
import { startWorld } from "./lib/world.mjs";

test("Durable Object storage conforms to the SQL port", async (t) => {
  const world = await startWorld();
  t.after(() => world.close());
  const checks = await (await fetch(`${world.url}/conformance`)).json();
  assert.ok(checks.length >= 20, `${checks.length} checks`);
  for (const { name, problem } of checks) await t.test(name, () => assert.equal(problem, null));
});
