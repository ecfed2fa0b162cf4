// Messages, submissions, transcripts, and the commands that steer an agent.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { noPanic, ok, refused, startWorld, until } from "./lib/api.mjs";

let world;
let api;
before(async () => {
  world = await startWorld();
  api = world.client();
});
after(() => world?.stop());

/** A scenario for questions that hold its name: turns follow the latest of them, also past a steer. */
const script = (name, turns, where = "any") => world.gateway.scenario({ name, match: { contains: name, in: where }, turns });
const asked = (name) => world.gateway.requests().filter(({ body }) => JSON.stringify(body).includes(name));
const held = (name) => until(`a request is held at ${name}`, () => world.gateway.holds()[name] > 0);
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

test("a message: 202, then 200 with the same submission, then an answer; another body: 409", async () => {
  const body = { request_id: "m-1", text: "Say it back." };
  const first = ok(await api.call("POST", "/v1/agents/m/messages", body), 202).submission;
  assert.match(first.id, /^sub_/);
  assert.equal(first.request_id, "m-1");
  const again = ok(await api.call("POST", "/v1/agents/m/messages", body), 200).submission;
  assert.equal(again.id, first.id);
  // The order of the keys and white space are not the body.
  const spaced = '{ "text" : "Say it b\\u0061ck.",  "request_id":"m-1" }';
  assert.equal(ok(await api.call("POST", "/v1/agents/m/messages", spaced), 200).submission.id, first.id);
  for (const other of [{ text: "Say it." }, { when_busy: "steer" }]) {
    const error = refused(await api.call("POST", "/v1/agents/m/messages", { ...body, ...other }), 409, "conflict");
    assert.equal(error.retryable, false);
  }
  const done = await api.settled("m", "m-1");
  assert.equal(done.status, "done");
  assert.equal(done.answer.text, "Say it back.");
  assert.equal(ok(await api.call("POST", "/v1/agents/m/messages", body), 200).submission.status, "done");
  assert.equal(asked("Say it back.").length, 1);
});

test("twenty of the same message at once are one", async () => {
  const body = { request_id: "once", text: "only-once" };
  const answers = await Promise.all(Array.from({ length: 20 }, () => api.call("POST", "/v1/agents/once/messages", body)));
  assert.deepEqual([...new Set(answers.map(({ json }) => json.submission.id))].length, 1);
  assert.equal(answers.filter(({ status }) => status === 202).length, 1);
  await api.settled("once", "once");
  assert.equal(asked("only-once").length, 1);
  assert.equal((await api.agent("once")).entries, 2);
});

test("the agent has every field of the contract, idle and at work", async () => {
  script("fields", [{ hold: "fields", text: "Done." }]);
  await api.ask("fields", "hello");
  const names = ["id", "status", "run", "queued", "parked", "waits", "next_wake_at", "last_seq", "entries", "usage"];
  const idle = await api.agent("fields");
  for (const name of names) assert.ok(name in idle, name);
  assert.deepEqual([idle.id, idle.status, idle.run, idle.queued, idle.parked, idle.waits, idle.next_wake_at], ["fields", "idle", null, [], null, [], null]);
  assert.equal(idle.entries, 2);
  assert.ok(idle.usage.input_tokens > 0 && idle.usage.output_tokens > 0 && "cost_usd" in idle.usage && "estimated" in idle.usage);

  ok(await api.message("fields", "fields", { request_id: "w" }), 202);
  ok(await api.message("fields", "later", { request_id: "q" }), 202);
  await held("fields");
  const working = await api.agent("fields");
  assert.equal(working.status, "working");
  for (const name of ["id", "task_id", "attempt", "tier", "provider", "model", "calls"]) assert.ok(name in working.run, `run.${name}`);
  assert.deepEqual([working.run.tier, working.run.provider, working.run.calls], ["sonnet", "openrouter", 1]);
  assert.match(working.next_wake_at, TIME);
  assert.ok(Date.parse(working.next_wake_at) - Date.now() <= 31_000, "the alarm stands at most 30 s ahead while work is in flight");
  assert.deepEqual(working.queued.map(({ request_id }) => request_id), ["q"]);
  world.gateway.release("fields");
  await api.settled("fields", "q");
  assert.equal((await api.agent("fields")).next_wake_at, null);
});

test("a submission is waited for, and no longer than asked", async () => {
  script("waited", [{ hold: "waited", text: "At last." }]);
  ok(await api.message("waited", "waited", { request_id: "w" }), 202);
  await held("waited");
  const began = Date.now();
  assert.equal((await api.submission("waited", "w", 1)).status, "placed");
  assert.ok(Date.now() - began >= 900, "it waited");
  const waiting = api.submission("waited", "w", 60);
  world.gateway.release("waited");
  const submission = await waiting;
  assert.deepEqual([submission.status, submission.reason, submission.answer.text], ["done", null, "At last."]);
  refused(await api.get("/v1/agents/waited/submissions/none?wait=5"), 404, "not_found");
  // Ids of requests may hold what a path must encode.
  const odd = "a/b ü?#%";
  ok(await api.message("waited", "odd", { request_id: odd }), 202);
  assert.equal((await api.settled("waited", odd)).status, "done");
});

test("entries are read in pages, each once and in order", async () => {
  script("paged", [{ text: "Let me see.", tool_calls: [{ name: "calculate", arguments: { expression: "6*7" } }] }, { text: "It is 42." }]);
  await api.ask("paged", "paged");
  const whole = await api.entries("paged");
  assert.deepEqual(whole.entries.map(({ kind }) => kind), ["user", "assistant", "tool_result", "assistant"]);
  assert.equal(whole.next ?? null, null);
  const [user, call, result, answer] = whole.entries;
  for (const entry of whole.entries) {
    for (const name of ["seq", "id", "run_id", "kind", "created_at", "message"]) assert.ok(name in entry, name);
    assert.match(entry.created_at, TIME);
  }
  assert.deepEqual(user.message.content, [{ type: "text", text: "paged" }]);
  const block = call.message.content.find(({ type }) => type === "tool_call");
  assert.deepEqual([block.name, block.arguments], ["calculate", { expression: "6*7" }]);
  assert.deepEqual([result.message.tool_call_id, result.message.is_error], [block.id, false]);
  assert.match(JSON.stringify(result.message.content), /42/);
  for (const name of ["stop", "usage", "provider", "model"]) assert.ok(name in answer.message, name);
  assert.equal(answer.message.stop, "stop");

  const pages = [];
  for (let cursor = 0, page; cursor !== null; cursor = page.next ?? null) {
    page = await api.entries("paged", `?after=${cursor}&limit=1`);
    assert.ok(page.entries.length <= 1);
    pages.push(...page.entries);
    assert.ok(pages.length < 10);
  }
  assert.deepEqual(pages, whole.entries);
  assert.deepEqual((await api.entries("paged", `?after=${answer.seq}`)).entries, []);
  assert.deepEqual((await api.entries("paged", "?after=9007199254740991")).entries, []);
});

test("reject: 409 agent_busy, nothing stored, and the id is free afterwards", async () => {
  script("busy", [{ hold: "busy", text: "Done." }]);
  ok(await api.message("busy", "busy", { request_id: "b" }), 202);
  await held("busy");
  const before_ = await api.agent("busy");
  const error = refused(await api.message("busy", "no", { request_id: "no", when_busy: "reject" }), 409, "agent_busy");
  assert.equal(error.retryable, false);
  refused(await api.get("/v1/agents/busy/submissions/no"), 404, "not_found");
  const after_ = await api.agent("busy");
  assert.deepEqual([after_.last_seq, after_.queued], [before_.last_seq, []]);
  world.gateway.release("busy");
  await api.settled("busy", "b");
  const accepted = await api.ask("busy", "yes", { request_id: "no", when_busy: "reject" });
  assert.equal(accepted.answer.text, "yes");
});

test("a steer joins after the round of tools, a follow-up after the answer, each kind in order", async () => {
  script("course", [
    { hold: "course", text: "I look.", tool_calls: [{ name: "calculate", arguments: { expression: "1+1" } }] },
    { text: "First answer." },
  ]);
  ok(await api.message("course", "course", { request_id: "c" }), 202);
  await held("course");
  for (const [request_id, when_busy] of [["f1", "follow_up"], ["s1", "steer"], ["f2", undefined], ["s2", "steer"]]) {
    const { submission } = ok(await api.message("course", `text ${request_id}`, { request_id, when_busy }), 202);
    assert.equal(submission.status, "queued");
  }
  world.gateway.release("course");
  const settled = await Promise.all(["c", "s1", "s2", "f1", "f2"].map((id) => api.settled("course", id)));
  assert.ok(settled.every(({ status }) => status === "done"));
  const { entries } = await api.entries("course");
  const order = entries.map(({ kind, message }) => (kind === "user" ? message.content[0].text : kind));
  const users = order.filter((text) => !["assistant", "tool_result"].includes(text));
  assert.deepEqual(users, ["course", "text s1", "text s2", "text f1", "text f2"]);
  assert.deepEqual(order.slice(0, 5), ["course", "assistant", "tool_result", "text s1", "text s2"]);
  assert.ok(order.indexOf("text f1") > order.lastIndexOf("text s2") + 1, "an answer stands between");
  for (const request of asked("course")) assert.equal(request.invalid, undefined);
});

test("interrupt ends the run and keeps the queue, or takes it along", async () => {
  script("keeping", [{ hold: "keeping", text: "Never said." }], "last");
  ok(await api.message("keep", "keeping", { request_id: "k1" }), 202);
  ok(await api.message("keep", "next one", { request_id: "k2" }), 202);
  await held("keeping");
  const answered = await api.interrupt("keep", { keep_queue: true });
  assert.ok([200, 202].includes(answered.status), answered.text);
  assert.deepEqual(Object.entries(await api.settled("keep", "k1")).filter(([name]) => ["status", "reason"].includes(name)), [["reason", "interrupted"], ["status", "unanswered"]]);
  assert.equal((await api.settled("keep", "k2")).status, "done");

  script("dropping", [{ hold: "dropping", text: "Never said." }], "last");
  ok(await api.message("drop", "dropping", { request_id: "d1" }), 202);
  ok(await api.message("drop", "next one", { request_id: "d2" }), 202);
  await held("dropping");
  await api.interrupt("drop", { keep_queue: false });
  for (const id of ["d1", "d2"]) assert.equal((await api.settled("drop", id)).reason, "interrupted");
  // It is not stopped: the next message is answered.
  assert.equal((await api.ask("drop", "and on")).status, "done");
  // Nothing to end: no harm.
  await api.interrupt("drop");
  assert.equal((await api.agent("drop")).status, "idle");
});

test("stop: what is in flight and queued settles, messages are refused until retry, then it works", async () => {
  script("halted", [{ hold: "halted", text: "Never said." }], "last");
  ok(await api.message("halt", "halted", { request_id: "h1" }), 202);
  ok(await api.message("halt", "waits", { request_id: "h2" }), 202);
  await held("halted");
  const sent = world.gateway.requests().length;
  const answered = await api.stop("halt", { reason: "test" });
  assert.ok(["stopping", "stopped"].includes(answered.json.agent.status), answered.text);
  for (const id of ["h1", "h2"]) assert.equal((await api.settled("halt", id)).reason, "stopped");
  const stopped = await api.status("halt", "stopped");
  assert.deepEqual([stopped.run, stopped.next_wake_at, stopped.queued], [null, null, []]);
  const error = refused(await api.message("halt", "hello?", { request_id: "h3" }), 409, "agent_stopped");
  assert.equal(error.retryable, false);
  // What was accepted before is still told.
  assert.equal(ok(await api.message("halt", "halted", { request_id: "h1" })).submission.status, "unanswered");
  await api.stop("halt");
  assert.equal((await api.agent("halt")).status, "stopped");
  ok(await api.retry("halt"));
  assert.equal((await api.agent("halt")).status, "idle");
  assert.equal((await api.ask("halt", "hello?", { request_id: "h3" })).answer.text, "hello?");
  // Nothing left between the stop and the next message.
  assert.equal(world.gateway.requests().length, sent + 1);
});

test("a signal is stored once; a repeat changes nothing", async () => {
  await api.ask("signals", "hello");
  const before_ = (await api.agent("signals")).last_seq;
  for (let time = 0; time < 3; time++) ok(await api.call("POST", "/v1/agents/signals/signals/go", { value: { ok: true }, request_id: "s1" }));
  ok(await api.call("POST", "/v1/agents/signals/signals/go", { value: null, request_id: "s2" }));
  const agent = await api.agent("signals");
  assert.equal(agent.status, "idle");
  assert.equal(agent.last_seq, before_);
});

test("a configuration is in the next request; a tier that is not configured is refused", async () => {
  const name = "configured";
  ok(await api.configure(name, { system_prompt: "Prompt one.", tier: "haiku", tools: [] }));
  assert.equal((await api.ask(name, "configured first")).status, "done");
  ok(await api.configure(name, { system_prompt: "Prompt two.", tier: "opus", tools: ["calculate"], thinking: "high" }));
  assert.equal((await api.ask(name, "configured second")).status, "done");
  const [one, two] = asked("configured").map(({ body }) => body);
  const model = (body) => body.models?.[0] ?? body.model;
  assert.match(JSON.stringify(one.messages[0]), /Prompt one\./);
  assert.equal(one.tools, undefined);
  assert.match(model(one), /lightning/);
  assert.match(JSON.stringify(two.messages[0]), /Prompt two\./);
  assert.deepEqual(two.tools.map((tool) => tool.function.name), ["calculate"]);
  assert.match(model(two), /ultra/);
  for (const tier of ["fable", "", 1, null]) refused(await api.configure(name, { tier }), 400, "invalid_request");
  refused(await api.configure(name, { provider: "azure" }), 400, "invalid_request");
  refused(await api.configure(name, { tools: ["a", "a"] }), 400, "invalid_request");
  assert.equal((await api.agent(name)).status, "idle");
});

test("looking at an agent that never was makes none", async () => {
  for (const rest of ["", "/entries", "/events", "/submissions/x", "/submissions/x?wait=1"]) {
    for (let time = 0; time < 2; time++) refused(await api.get(`/v1/agents/unmade${rest}`), 404, "not_found");
  }
  assert.ok(!ok(await api.get("/v1/agents")).agents.some(({ id }) => id === "nobody"));
});

test("a deleted agent answers 410 on every route and is in no list; its run has ended", async () => {
  script("doomed", [{ hold: "doomed", text: "Never said." }]);
  await api.ask("doomed", "hello", { request_id: "d0" });
  await until("it is listed", async () => ok(await api.get("/v1/agents?status=idle")).agents.some(({ id }) => id === "doomed"));
  ok(await api.message("doomed", "doomed", { request_id: "d1" }), 202);
  await held("doomed");
  const waiting = api.get("/v1/agents/doomed/submissions/d1?wait=30");
  const watcher = api.events("doomed", { after: 0 });
  await watcher.until("the held call", ({ type, call }) => type === "call_started" && call === 1);
  ok(await api.remove("doomed"));
  assert.ok([200, 410].includes((await waiting).status));
  const calls = [
    ["GET", ""], ["GET", "/entries"], ["GET", "/events?after=0"], ["GET", "/submissions/d0"], ["GET", "/submissions/none?wait=1"],
    ["PUT", "", { system_prompt: "", tier: "haiku" }], ["POST", "/messages", { request_id: "d2", text: "hello?" }],
    ["POST", "/messages", { request_id: "d0", text: "hello" }], ["POST", "/stop"], ["POST", "/retry"], ["POST", "/interrupt"],
    ["POST", "/signals/go", { value: 1, request_id: "s" }],
  ];
  for (const [method, rest, body] of calls) refused(await api.call(method, `/v1/agents/doomed${rest}`, body), 410, "agent_deleted");
  assert.ok([200, 410].includes((await api.remove("doomed")).status));
  await until("no list has it", async () => !ok(await api.get("/v1/agents")).agents.some(({ id }) => id === "doomed"));
  watcher.vanish();
});

test("the index lists agents by status, in pages", async () => {
  script("listed", [{ hold: "listed", text: "Done." }]);
  ok(await api.message("list-working", "listed", { request_id: "l" }), 202);
  await held("listed");
  await api.ask("list-idle", "hello");
  await api.ask("list-stopped", "hello");
  ok(await api.stop("list-stopped"), 202);
  const listed = async (status) => ok(await api.get(`/v1/agents?status=${status}`)).agents;
  for (const status of ["working", "idle", "stopped"]) {
    const found = await until(`list-${status} is listed`, async () => (await listed(status)).find(({ id }) => id === `list-${status}`));
    assert.equal(found.status, status);
  }
  world.gateway.release("listed");
  await until("it is idle in the index too", async () => (await listed("idle")).some(({ id }) => id === "list-working"));
  assert.deepEqual((await listed("parked")), []);
  const all = ok(await api.get("/v1/agents")).agents.map(({ id }) => id);
  assert.deepEqual(all, [...all].sort());
  const from = ok(await api.get(`/v1/agents?cursor=${all[1]}`)).agents.map(({ id }) => id);
  assert.deepEqual(from, all.slice(2));
});

test("only a message or a configuration makes an agent", async () => {
  const calls = [
    ["POST", "/stop", {}], ["POST", "/interrupt", {}], ["POST", "/retry", {}],
    ["POST", "/signals/go", { value: 1, request_id: "s" }], ["DELETE", "", undefined], ["GET", "/export", undefined],
  ];
  for (const [method, rest, body] of calls) {
    refused(await api.call(method, `/v1/agents/unmade${rest}`, body), 404, "not_found");
  }
  assert.equal((await api.ask("unmade", "hello")).status, "done");
});

test("an export is the whole agent as JSON Lines", async () => {
  await api.configure("exported", { system_prompt: "You are exported." });
  for (const n of [1, 2, 3]) await api.ask("exported", `Line ${n}`, { request_id: `x-${n}` });
  const response = await api.get("/v1/agents/exported/export");
  assert.equal(response.status, 200);
  assert.match(response.headers["content-type"], /ndjson/);
  const lines = response.text.trim().split("\n").map((line) => JSON.parse(line));
  assert.equal(lines[0].type, "agent");
  assert.equal(lines[0].config.system_prompt, "You are exported.");
  const entries = lines.filter(({ type }) => type === "entry").map(({ entry }) => entry);
  assert.deepEqual(entries, (await api.entries("exported")).entries);
  const submissions = lines.filter(({ type }) => type === "submission").map(({ submission }) => submission);
  assert.deepEqual(submissions.map(({ request_id, status }) => [request_id, status]), [1, 2, 3].map((n) => [`x-${n}`, "done"]));
  assert.equal(lines.length, 1 + entries.length + submissions.length);
});

test("who watches an agent is told when it is deleted", async () => {
  await api.ask("watched", "hello");
  const stream = api.events("watched", { after: 0 });
  await stream.until("the run's end", ({ type }) => type === "run_ended");
  ok(await api.remove("watched"));
  await until("the stream ends", () => stream.ended);
});

test("nothing panicked", () => noPanic(world.server.output));
