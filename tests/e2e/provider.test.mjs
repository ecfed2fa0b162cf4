// What goes wrong at the provider, through the whole stack; and a server that is asked without a gateway.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { noPanic, ok, startWorld, until } from "./lib/api.mjs";

let world;
let api;
before(async () => {
  world = await startWorld();
  api = world.client();
});
after(() => world?.stop());

const script = (name, turns, gateway = world.gateway) => gateway.scenario({ name, match: { contains: name, in: "last" }, turns });
const asked = (name, gateway = world.gateway) => gateway.requests().filter(({ scenario }) => scenario === name);
const answerOf = async (id) => (await api.entries(id)).entries.filter(({ kind }) => kind === "assistant");

/** Long enough that a fault strikes in the middle. */
const wellOf = (name) => `Well: ${name}. ${"And more of it. ".repeat(8)}`;

/** Faults of the first tries, then an answer. */
function faulty(name, faults) {
  const text = wellOf(name);
  script(name, [{ text, attempts: faults.map((fault) => (fault ? { fault } : {})) }]);
  return api.ask(name, name);
}

test("429 with Retry-After is waited out, then answered", async () => {
  const done = await faulty("limited", [{ kind: "http", status: 429, retry_after: 1 }]);
  assert.equal(done.answer?.text, wellOf("limited"), JSON.stringify(done));
  const [first, second] = asked("limited").map(({ at }) => Date.parse(at));
  assert.ok(second - first >= 950, `it waited ${second - first} ms`);
});

const RETRIED = {
  "an answer cut by the end of the stream": { kind: "eof", after_chunks: 3 },
  "a connection cut in the middle": { kind: "cut", after_chunks: 3 },
  "a connection cut before the head": { kind: "cut", before_head: true },
  "an error inside a 200": { kind: "stream_error", after_chunks: 2, code: 502, message: "Upstream broke" },
  "an error as JSON with 200": { kind: "json_error", code: 503, message: "No provider" },
  "a web server's error page": { kind: "html", status: 502 },
  "an empty 503": { kind: "empty", status: 503 },
  "the gateway's own failure, sent as 400": { kind: "gateway", code: 2005 },
};
for (const [what, fault] of Object.entries(RETRIED)) {
  test(`${what} is asked again, and what came of it is not in the answer`, async () => {
    const name = `again-${Object.keys(RETRIED).indexOf(what)}`;
    const done = await faulty(name, [fault]);
    assert.equal(done.answer?.text, wellOf(name), JSON.stringify(done));
    const tries = asked(name);
    assert.equal(tries.length, 2);
    assert.deepEqual(tries[0].body, tries[1].body, "the same request");
    const whole = (await answerOf(name)).filter(({ message }) => !message.aborted && !message.error);
    assert.equal(whole.length, 1);
  });
}

test("5xx again and again: unanswered with model_error after three retries, and the reason is told", async () => {
  const fault = { kind: "http", status: 502, message: "upstream is down" };
  script("down", [{ text: "Never.", fault }]);
  const done = await api.ask("down", "down");
  assert.deepEqual([done.status, done.reason, done.answer], ["unanswered", "model_error", null]);
  assert.equal(asked("down").length, 4);
  const agent = await api.agent("down");
  assert.deepEqual([agent.status, agent.next_wake_at], ["idle", null]);
});

for (const status of [401, 403]) {
  test(`${status} is a matter of configuration and is not tried again`, async () => {
    const name = `refused-${status}`;
    script(name, [{ text: "Never.", fault: { kind: "http", status, message: "No auth credentials found" } }]);
    const done = await api.ask(name, name);
    assert.deepEqual([done.status, done.reason], ["unanswered", "config"]);
    assert.equal(asked(name).length, 1);
  });
}

test("the gateway's refusal of its token is a matter of configuration", async () => {
  script("gateway-auth", [{ text: "Never.", fault: { kind: "gateway", code: 2009 } }]);
  const done = await api.ask("gateway-auth", "gateway-auth");
  assert.deepEqual([done.status, done.reason], ["unanswered", "config"]);
});

test("three failures of one kind in a row park the agent; retry clears it and what waits is answered", async () => {
  script("breaker", [{ text: "Never.", fault: { kind: "http", status: 401, message: "bad key" } }]);
  for (const n of [1, 2, 3]) assert.equal((await api.ask("breaker", `breaker ${n}`)).reason, "config");
  const parked = await api.status("breaker", "parked");
  assert.equal(parked.parked.reason, "repeated_failure");
  assert.match(parked.parked.since, /^\d{4}-/);
  assert.equal(parked.next_wake_at, null);
  const sent = world.gateway.requests().length;
  ok(await api.message("breaker", "waits for somebody", { request_id: "w" }), 202);
  assert.equal((await api.submission("breaker", "w", 1)).status, "queued");
  assert.equal(world.gateway.requests().length, sent);
  await until("the index says so", async () => ok(await api.get("/v1/agents?status=parked")).agents.some(({ id }) => id === "breaker"));
  ok(await api.retry("breaker"));
  assert.equal((await api.settled("breaker", "w")).status, "done");
  assert.deepEqual([(await api.agent("breaker")).parked, (await api.agent("breaker")).status], [null, "idle"]);
});

test("an answer in between clears the count", async () => {
  script("flaky", [{ text: "Never.", fault: { kind: "http", status: 401, message: "bad key" } }]);
  for (const text of ["flaky", "flaky", "fine", "flaky", "flaky"]) await api.ask("flakes", text);
  assert.equal((await api.agent("flakes")).status, "idle");
});

test("through the gateway: its headers are there, no caching, no retries of its own, and no key unless one is set", async () => {
  await api.ask("headers", "headers please");
  const { headers, path: target } = world.gateway.requests().at(-1);
  assert.equal(target, "/v1/acct/gw/openrouter/v1/chat/completions");
  assert.equal(headers["cf-aig-skip-cache"], "true");
  assert.equal(headers["cf-aig-max-attempts"], "1");
  assert.ok(headers["cf-aig-request-timeout"] && headers["cf-aig-event-id"]);
  const metadata = JSON.parse(headers["cf-aig-metadata"]);
  assert.ok(Object.keys(metadata).length <= 5 && metadata.run);
  assert.equal(headers.authorization, undefined);
  assert.equal(world.gateway.requests().filter(({ flags }) => flags).length, 0);
});

test("any chat-completions server: no gateway headers, its key, no [DONE], no usage", async (t) => {
  const plain = await startWorld({ plain: true, vars: { OPENROUTER_API_KEY: "sk-plain-0123456789" } });
  t.after(() => plain.stop());
  const client = plain.client();
  plain.gateway.scenario({
    name: "local", match: { contains: "local", in: "any" },
    turns: [
      { text: "I count.", tool_calls: [{ name: "calculate", arguments: { expression: "3*3" } }], done: false, usage: false, comments: false },
      { text: "Nine.", done: false, usage: false, comments: false, attempts: [{ fault: { kind: "eof", after_chunks: 1 } }] },
    ],
  });
  const done = await client.ask("local", "local");
  assert.equal(done.answer?.text, "Nine.", JSON.stringify(done));
  const requests = plain.gateway.requests();
  assert.equal(requests.length, 3);
  for (const { headers, path: target, body, invalid } of requests) {
    assert.equal(target, "/v1/chat/completions");
    assert.equal(invalid, undefined);
    assert.equal(headers.authorization, "Bearer sk-plain-0123456789");
    assert.deepEqual(Object.keys(headers).filter((name) => name.startsWith("cf-aig")), []);
    assert.equal(body.stream, true);
  }
  assert.equal((await client.agent("local")).usage.estimated, true);
  noPanic(plain.server.output);
});

test("nothing was sent that a real provider refuses, and nothing panicked", () => {
  assert.deepEqual(world.gateway.requests().filter(({ invalid }) => invalid), []);
  noPanic(world.server.output);
});
