// One SIGKILL after each kind of event, a start on the same state, no request to any agent: the run finishes. The verdict
// comes from the stand-in's log and its counters.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { conversation, counted, startWorld, until, valid } from "./lib/world.mjs";

const LONG = "All that is gold does not glitter, not all those who wander are lost. ".repeat(4);

let world;
before(async () => {
  world = await startWorld();
});
after(() => world.close());

/** After the verdict: the API says the same. */
async function agrees(agent, requestId, text) {
  const submission = await world.settled(agent, requestId);
  assert.equal(submission.status, "done");
  assert.equal(submission.answer.text, text);
  assert.equal((await world.agent(agent)).status, "idle");
}

test("while a stream is held in the middle", async () => {
  const agent = "kill-stream";
  world.script(agent, { text: LONG, attempts: [{ hold: { name: "middle", after_chunks: 6 } }] });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "recite");
  await watcher.seen(({ type, text }) => type === "delta" && text, "text");
  await until(() => world.gateway.holds().middle, "the hold");
  await world.kill9();
  const records = await world.finished(agent, 2);
  valid(records);
  assert.equal(records[0].state, "aborted_by_client");
  assert.deepEqual(conversation(records[1]).at(-1), ["user", `[${agent}] recite`]);
  await agrees(agent, requestId, LONG);
});

test("before the first byte of an answer", async () => {
  const agent = "kill-head";
  world.script(agent, { text: "Here.", attempts: [{ hold: "head" }] });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "hello");
  await watcher.seen(({ type }) => type === "call_started", "call_started");
  await until(() => world.gateway.holds().head, "the hold");
  await world.kill9();
  valid(await world.finished(agent, 2));
  await agrees(agent, requestId, "Here.");
});

test("while a safe tool is at work: it runs again under its key", async () => {
  const agent = "kill-safe";
  world.script(agent, { tool_calls: [{ name: "count_safe", arguments: { name: "safe", hold: "safe" } }] }, { text: "Counted." });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "count");
  await watcher.seen(({ type }) => type === "tool_started", "tool_started");
  await until(() => world.gateway.holds().safe, "the tool to be held");
  await world.kill9();
  await until(() => counted(world, "safe").count === 2, "the second execution");
  world.gateway.release("safe", { all: true });
  const records = await world.finished(agent, 2);
  valid(records);
  assert.deepEqual(counted(world, "safe"), { count: 2, keys: 1 });
  assert.deepEqual(conversation(records[1]).at(-1), ["tool", "safe: 2"]);
  await agrees(agent, requestId, "Counted.");
});

test("while an unsafe tool is at work: it does not, and the model is told", async () => {
  const agent = "kill-unsafe";
  world.script(agent, { tool_calls: [{ name: "count_unsafe", arguments: { name: "unsafe", hold: "unsafe" } }] }, { text: "Told." });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "count");
  await watcher.seen(({ type }) => type === "tool_started", "tool_started");
  await until(() => world.gateway.holds().unsafe, "the tool to be held");
  await world.kill9();
  const records = await world.finished(agent, 2);
  valid(records);
  assert.deepEqual(counted(world, "unsafe"), { count: 1, keys: 1 });
  assert.match(conversation(records[1]).at(-1)[1], /interrupted/);
  await agrees(agent, requestId, "Told.");
});

test("two tools of one round: the one that was done stays done", async () => {
  const agent = "kill-round";
  const calls = [
    { name: "count_unsafe", arguments: { name: "round-1" } },
    { name: "count_safe", arguments: { name: "round-2", hold: "round" } },
    { name: "count_unsafe", arguments: { name: "round-3", hold: "round" } },
  ];
  world.script(agent, { tool_calls: calls }, { text: "Round." });
  const watcher = world.watch(agent);
  await world.send(agent, "count");
  await watcher.seen(({ type, entry }) => type === "entry" && entry.kind === "tool_result", "the first result");
  await until(() => world.gateway.holds().round === 2, "two tools to be held");
  await world.kill9();
  await until(() => counted(world, "round-2").count === 2, "the safe one again");
  world.gateway.release("round", { all: true });
  const records = await world.finished(agent, 2);
  valid(records);
  assert.deepEqual(counted(world, "round-1"), { count: 1, keys: 1 });
  assert.deepEqual(counted(world, "round-2"), { count: 2, keys: 1 });
  assert.deepEqual(counted(world, "round-3"), { count: 1, keys: 1 });
  const results = conversation(records[1]).slice(-3).map(([, text]) => text);
  assert.equal(results[0], "round-1: 1");
  assert.equal(results[1], "round-2: 2");
  assert.match(results[2], /interrupted/);
});

test("after a result is stored, the next call on its way", async () => {
  const agent = "kill-stored";
  world.script(
    agent,
    { tool_calls: [{ name: "count_unsafe", arguments: { name: "stored" } }] },
    { text: "Done.", attempts: [{ hold: "next" }] },
  );
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "count");
  await watcher.seen(({ type, entry }) => type === "entry" && entry.kind === "tool_result", "the result");
  await until(() => world.gateway.holds().next, "the next call");
  await world.kill9();
  const records = await world.finished(agent, 3);
  valid(records);
  assert.deepEqual(counted(world, "stored"), { count: 1, keys: 1 });
  assert.deepEqual(conversation(records[2]).at(-1), ["tool", "stored: 1"]);
  await agrees(agent, requestId, "Done.");
});

for (const [status, more] of [[429, { retry_after: 4 }], [503, {}]]) {
  test(`during the backoff after ${status}`, async () => {
    const agent = `kill-backoff-${status}`;
    const fault = { kind: "http", status, ...more };
    world.script(agent, { text: "Again.", attempts: [{ fault }, { fault }] });
    const watcher = world.watch(agent);
    const requestId = await world.send(agent, "go");
    await watcher.seen(({ type, error }) => type === "call_ended" && error, "a failed call");
    await world.kill9();
    const records = await world.finished(agent, 3);
    valid(records);
    if (more.retry_after) {
      const waited = Date.parse(records[1].at) - Date.parse(records[0].at);
      assert.ok(waited >= more.retry_after * 1_000, `it waited ${waited} ms only`);
    }
    await agrees(agent, requestId, "Again.");
  });
}

test("while a hook waits: it is asked again, and one request leaves when it returns", async () => {
  const agent = "held-kill";
  world.script(agent, { text: "Free." });
  const watcher = world.watch(agent);
  const requestId = await world.send(agent, "may I?");
  await watcher.seen(({ type }) => type === "run_started", "run_started");
  for (let death = 1; death <= 2; death++) {
    await until(() => world.flags.invocations(agent).length === death, `invocation ${death}`);
    await world.kill9();
  }
  await until(() => world.flags.invocations(agent).length === 3, "the third invocation");
  assert.equal(world.flags.readings(agent).at(-1).resumed, "true");
  assert.deepEqual(world.requests(agent), []);
  world.flags.raise(agent);
  valid(await world.finished(agent, 1));
  await agrees(agent, requestId, "Free.");
  await world.marker();
  assert.equal(world.requests(agent).length, 1);
});

test("an accepted message that waits in the queue is not lost", async () => {
  const agent = "kill-queue";
  world.script(agent, { text: "One.", attempts: [{ hold: { name: "one", after_chunks: 1 } }] });
  world.gateway.scenario({ name: "kill-queue-2", match: { contains: "second" }, turns: [{ text: "Two." }] });
  const watcher = world.watch(agent);
  const first = await world.send(agent, "first");
  await watcher.seen(({ type }) => type === "call_started", "call_started");
  await until(() => world.gateway.holds().one, "the hold");
  const second = await world.send(agent, "second", { whenBusy: "follow_up" });
  await world.kill9();
  const records = await world.finished(agent, 3);
  valid(records);
  assert.deepEqual(conversation(records[2]).map(([role]) => role), ["user", "assistant", "user"]);
  assert.equal((await world.settled(agent, first)).answer.text, "One.");
  await agrees(agent, second, "Two.");
});

test("five deaths inside a safe tool park the run; retry goes on", async () => {
  const agent = "kill-loop";
  world.script(agent, { tool_calls: [{ name: "count_safe", arguments: { name: "loop", hold: "loop" } }] }, { text: "At last." });
  const requestId = await world.send(agent, "count");
  for (let death = 1; death <= 5; death++) {
    await until(() => counted(world, "loop").count === death && world.gateway.holds().loop, `execution ${death}`);
    await world.kill9();
  }
  const parked = await world.status(agent, "parked");
  assert.equal(parked.parked.reason, "tool_crash");
  await world.marker();
  assert.deepEqual(counted(world, "loop"), { count: 5, keys: 1 });
  assert.equal((await world.ask("POST", `/v1/agents/${agent}/retry`, {})).status, 200);
  await until(() => counted(world, "loop").count === 6, "the execution after retry");
  world.gateway.release("loop", { all: true });
  valid(await world.finished(agent, 2));
  assert.equal(counted(world, "loop").keys, 1);
  await agrees(agent, requestId, "At last.");
});
