// Steers, follow-ups, hooks of `tool_call`, and holds: what reaches the model, in which order.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { conversation, counted, startWorld, until, valid } from "./lib/world.mjs";

let world;
before(async () => {
  world = await startWorld();
});
after(() => world.close());

test("a steer joins after the round of tools, a follow-up after the answer", async () => {
  const agent = "order";
  const turn = { tool_calls: [{ name: "count_safe", arguments: { name: "order", hold: "order" } }] };
  world.gateway.scenario([
    { name: "order-1", match: { contains: "[order] begin" }, turns: [turn] },
    { name: "order-2", match: { contains: "[order] steer" }, turns: [{ text: "Steered." }] },
    { name: "order-3", match: { contains: "[order] follow" }, turns: [{ text: "Followed." }] },
  ]);
  const begun = await world.send(agent, "begin");
  await until(() => world.gateway.holds().order, "the tool to be held");
  const followed = await world.send(agent, "follow", { whenBusy: "follow_up" });
  const steered = await world.send(agent, "steer", { whenBusy: "steer" });
  const busy = await world.ask("POST", `/v1/agents/${agent}/messages`, { request_id: "b", text: "now", when_busy: "reject" });
  assert.equal(busy.body.error.code, "agent_busy");
  world.gateway.release("order");
  const records = await world.finished(agent, 3);
  valid(records);
  const wanted = [
    ["user", "[order] begin"],
    ["assistant", "count_safe"],
    ["tool", "order: 1"],
    ["user", "[order] steer"],
    ["assistant", "Steered."],
    ["user", "[order] follow"],
  ];
  assert.deepEqual(conversation(records[1]), wanted.slice(0, 4));
  assert.deepEqual(conversation(records[2]), wanted);
  for (const [id, text] of [[begun, "Steered."], [steered, "Steered."], [followed, "Followed."]]) {
    assert.equal((await world.settled(agent, id)).answer.text, text);
  }
});

test("the same request id twice is one message", async () => {
  const agent = "twice";
  const body = { request_id: "same", text: `[${agent}] hello` };
  const answers = await Promise.all([1, 2, 3].map(() => world.ask("POST", `/v1/agents/${agent}/messages`, body)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 200, 202]);
  await world.finished(agent, 1);
  const other = await world.ask("POST", `/v1/agents/${agent}/messages`, { ...body, text: "another" });
  assert.equal(other.status, 409);
});

const VERDICTS = {
  throws: { result: /no judgement today/, count: 0, reported: true },
  blocks: { result: /not on a Monday/, count: 0, reported: false },
  changes: { result: /^judged-changes-changed: 1$/, count: 0, changed: 1, reported: false },
  spoils: { result: /do not fit/, count: 0, reported: false },
  hangs: { result: /did not return within/, count: 0, reported: true },
};
for (const [kind, wanted] of Object.entries(VERDICTS)) {
  test(`a tool_call handler that ${kind}`, async () => {
    const agent = `${kind}-verdict`;
    const counter = `judged-${kind}`;
    world.script(agent, { tool_calls: [{ name: "count_unsafe", arguments: { name: counter } }] }, { text: "Well." });
    await world.send(agent, "count");
    const records = await world.finished(agent, 2);
    valid(records);
    assert.match(conversation(records[1]).at(-1)[1], wanted.result);
    assert.equal(counted(world, counter).count, wanted.count);
    assert.equal(counted(world, `${counter}-changed`).count, wanted.changed ?? 0);
    const watcher = world.watch(agent);
    await watcher.seen(({ type }) => type === "run_ended", "run_ended");
    const reports = watcher.events.filter(({ type }) => type === "extension_error");
    assert.equal(reports.length > 0, wanted.reported, JSON.stringify(reports));
  });
}

test("a steer during a hold joins the held request, and the hook is not asked again", async () => {
  const agent = "held-steer";
  const first = await world.send(agent, "first");
  await until(() => world.flags.invocations(agent).length === 1, "the hook to be asked");
  const second = await world.send(agent, "second", { whenBusy: "steer" });
  assert.equal((await world.agent(agent)).status, "working");
  world.flags.raise(agent);
  const records = await world.finished(agent, 1);
  valid(records);
  assert.deepEqual(conversation(records[0]), [["user", `[${agent}] first`], ["user", `[${agent}] second`]]);
  assert.equal(world.flags.invocations(agent).length, 1);
  for (const id of [first, second]) assert.equal((await world.settled(agent, id)).status, "done");
});

test("an interrupt ends the hold, and what waits goes on", async () => {
  const agent = "held-interrupt";
  const first = await world.send(agent, "first");
  await until(() => world.flags.invocations(agent).length === 1, "the hook to be asked");
  const second = await world.send(agent, "second", { whenBusy: "follow_up" });
  const { status } = await world.ask("POST", `/v1/agents/${agent}/interrupt`, { keep_queue: true });
  assert.equal(status, 202);
  assert.equal((await world.settled(agent, first)).reason, "interrupted");
  await until(() => world.flags.invocations(agent).length === 2, "the hook to be asked for the second");
  world.flags.raise(agent);
  valid(await world.finished(agent, 1));
  assert.equal((await world.settled(agent, second)).status, "done");
});
