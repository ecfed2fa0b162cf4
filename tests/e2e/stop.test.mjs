// A stop ends the run whatever it waits for, and no request leaves afterwards: everything is released, another agent's
// request arrives, and none of the stopped one did.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { conversation, counted, startWorld, until, valid } from "./lib/world.mjs";

let world;
before(async () => {
  world = await startWorld();
});
after(() => world.close());

/** Stops it, and waits until it says so. */
async function stop(agent, where = world) {
  const { status, body } = await where.ask("POST", `/v1/agents/${agent}/stop`, { reason: "enough" });
  assert.equal(status, 202, JSON.stringify(body));
  await where.status(agent, "stopped");
}

/** It refuses messages until `/retry`, and works then. */
async function revives(agent, requests, where = world) {
  const body = { request_id: "refused", text: `[${agent}] hello?` };
  const refused = await where.ask("POST", `/v1/agents/${agent}/messages`, body);
  assert.equal(refused.status, 409);
  assert.equal(refused.body.error.code, "agent_stopped");
  assert.equal((await where.ask("POST", `/v1/agents/${agent}/retry`, {})).status, 200);
  where.script(agent, { text: "Back." });
  const requestId = await where.send(agent, "and now?");
  valid(await where.finished(agent, requests));
  const submission = await where.settled(agent, requestId);
  assert.equal(submission.answer.text, "Back.");
}

for (const kind of ["held", "deaf", "never"]) {
  test(`while a hook waits that ${{ held: "obeys", deaf: "ignores its signal", never: "never returns" }[kind]}`, async () => {
    const agent = `${kind}-stop`;
    const requestId = await world.send(agent, "go");
    await until(() => world.flags.invocations(agent).length === 1, "the hook to be asked");
    await stop(agent);
    assert.equal((await world.settled(agent, requestId)).reason, "stopped");
    world.flags.raise(agent);
    // A deaf hook returns now, long after.
    if (kind === "deaf") {
      const returned = await until(() => world.flags.readings(agent).find((reading) => reading.up), "the hook to return");
      assert.equal(returned.aborted, "true");
    }
    await world.marker();
    assert.deepEqual(world.requests(agent), []);
    if (kind !== "never") await revives(agent, 1);
  });
}

test("while a stream is held", async () => {
  const agent = "stop-stream";
  world.script(agent, { text: "Once upon a time there was a stream that was held.", hold: { name: "held-stream", after_chunks: 2 } });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "tell");
  await watcher.seen(({ type, text }) => type === "delta" && text, "text");
  await stop(agent);
  await until(() => world.requests(agent)[0].state === "aborted_by_client", "the request to be aborted");
  world.gateway.release("held-stream", { all: true });
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
  assert.equal((await world.settled(agent, requestId)).status, "unanswered");
  await revives(agent, 2);
});

test("before the first byte of an answer", async () => {
  const agent = "stop-head";
  world.script(agent, { text: "Late.", hold: "held-head" });
  await world.send(agent, "tell");
  await until(() => world.gateway.holds()["held-head"], "the hold");
  await stop(agent);
  await until(() => world.requests(agent)[0].state === "aborted_by_client", "the request to be aborted");
  world.gateway.release("held-head", { all: true });
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
  await revives(agent, 2);
});

test("while a tool is at work: its result says so, and the transcript stays valid", async () => {
  const agent = "stop-tool";
  world.script(agent, {
    tool_calls: [
      { name: "count_unsafe", arguments: { name: "stopped", hold: "held-tool" } },
      { name: "count_unsafe", arguments: { name: "stopped-2" } },
    ],
  });
  await world.send(agent, "count");
  await until(() => world.gateway.holds()["held-tool"], "the tool to be held");
  await stop(agent);
  world.gateway.release("held-tool", { all: true });
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
  await revives(agent, 2);
  const said = conversation(world.requests(agent)[1]);
  assert.deepEqual(said.map(([role]) => role), ["user", "assistant", "tool", "tool", "user"]);
  assert.equal(counted(world, "stopped").count, 1);
});

test("during a backoff", async () => {
  const agent = "stop-backoff";
  world.script(agent, { text: "Never.", fault: { kind: "http", status: 429, retry_after: 3 } });
  const watcher = world.watch(agent);
  await world.send(agent, "go");
  await watcher.seen(({ type, error }) => type === "call_ended" && error, "a failed call");
  await stop(agent);
  // The time that the call would have waited passes; then another agent's request shows that nothing was on its way.
  await new Promise((resolve) => setTimeout(resolve, 3_500));
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
  await revives(agent, 2);
});

test("a stop survives a death: the hook that waited is not asked again", async () => {
  const agent = "deaf-stop-kill";
  await world.send(agent, "go");
  await until(() => world.flags.invocations(agent).length === 1, "the hook to be asked");
  await stop(agent);
  await world.kill9();
  world.flags.raise(agent);
  await world.marker();
  assert.equal((await world.agent(agent)).status, "stopped");
  assert.deepEqual(world.requests(agent), []);
  assert.equal(world.flags.invocations(agent).length, 1);
});

test("a stop and a death inside its grace: it is finished first", async () => {
  const agent = "stop-grace-kill";
  world.script(agent, { tool_calls: [{ name: "count_safe", arguments: { name: "grace", hold: "grace" } }] }, { text: "No." });
  await world.send(agent, "count");
  await until(() => world.gateway.holds().grace, "the tool to be held");
  const { status } = await world.ask("POST", `/v1/agents/${agent}/stop`, {});
  assert.equal(status, 202);
  await world.kill9();
  world.gateway.release("grace", { all: true });
  await world.marker();
  await world.status(agent, "stopped");
  assert.equal(world.requests(agent).length, 1);
  assert.deepEqual(counted(world, "grace"), { count: 1, keys: 1 });
});

test("while a token is being fetched", async (t) => {
  const other = await startWorld({
    vars: (gateway) => ({
      AI_GATEWAY_BASE_URL: undefined,
      OPENROUTER_BASE_URL: `${gateway.url}/v1`,
      OPENROUTER_TOKEN_URL: `${gateway.url}/token`,
    }),
  });
  t.after(() => other.close());
  const agent = "stop-token";
  other.gateway.token({ hold: "token", enforce: true });
  await other.send(agent, "go");
  await until(() => other.gateway.holds().token, "the token to be asked for");
  await stop(agent, other);
  other.gateway.release("token", { all: true });
  await other.marker();
  assert.deepEqual(other.requests(agent), []);
  await revives(agent, 1, other);
});
