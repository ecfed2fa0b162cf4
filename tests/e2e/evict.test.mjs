// A hold that sets no timer lets the object leave memory; the alarm brings it back, and the hook is asked again.

import assert from "node:assert/strict";
import { test } from "node:test";
import { startWorld, until, valid } from "./lib/world.mjs";

test("a hold survives eviction", async (t) => {
  // workerd drops an object without events after 10 s; an alarm that comes sooner would keep it.
  const world = await startWorld({ vars: { ALARM_AHEAD_MS: "13000" } });
  t.after(() => world.close());
  const agent = "idle-evicted";
  const requestId = await world.send(agent, "wait");
  await until(() => world.flags.invocations(agent).length === 2, "the object to be evicted and its hook asked again");
  assert.deepEqual(world.requests(agent), []);
  world.flags.raise(agent);
  valid(await world.finished(agent, 1));
  assert.ok(world.flags.invocations(agent).length >= 3);
  assert.equal((await world.settled(agent, requestId)).status, "done");
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
});
