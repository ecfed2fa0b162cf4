// A panic in Rust kills the wasm instance and every object of the isolate with it. Each comes back by its alarm.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { counted, startWorld, until, valid } from "./lib/world.mjs";

let world;
before(async () => {
  world = await startWorld({ mayDie: true });
});
after(() => world.close());

test("a tool that panics parks its agent, and nobody else is lost", async () => {
  const bystander = "bystander";
  world.script(bystander, { tool_calls: [{ name: "count_safe", arguments: { name: "bystander", hold: "bystander" } }] }, { text: "Untouched." });
  await world.send(bystander, "count");
  await until(() => world.gateway.holds().bystander, "the bystander's tool to be held");

  const agent = "panics";
  world.script(agent, { tool_calls: [{ name: "panic", arguments: {} }] }, { text: "Survived?" });
  await world.ask("POST", `/v1/agents/${agent}/messages`, { request_id: "one", text: `[${agent}] panic, please` });
  const parked = await world.status(agent, "parked");
  assert.equal(parked.parked.reason, "tool_crash");
  assert.equal(world.requests(agent).length, 1);

  world.gateway.release("bystander", { all: true });
  valid(await world.finished(bystander, 2));
  assert.equal(counted(world, "bystander").keys, 1);
});

test("a hook that panics parks its agent", async () => {
  const agent = "hookpanic";
  // The message is committed before the hook is asked, in the same turn; the answer to it dies with the instance.
  const body = { request_id: "one", text: `[${agent}] go` };
  await world.ask("POST", `/v1/agents/${agent}/messages`, body);
  const parked = await world.status(agent, "parked");
  assert.equal(parked.parked.reason, "hook_crash");
  assert.deepEqual(world.requests(agent), []);
  await world.marker();
});
