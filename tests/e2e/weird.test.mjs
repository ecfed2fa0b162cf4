// Extensions and models that misbehave: every call is answered, the next request is one that the real services accept, the
// run ends, and the wasm instance is the same as before.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { KINDS } from "../worker/extensions/weird.js";
import { conversation, startWorld, valid } from "./lib/world.mjs";

let world;
const healthz = async () => (await (await fetch(`${world.url}/healthz`)).json()).instance;
before(async () => {
  world = await startWorld({ vars: { MAX_CALLS_PER_RUN: "6,6,6" } });
});
after(() => world.close());

/** Runs one conversation whose first answer is `turn`; gives what the model was told about its calls. */
async function told(agent, turn, requests = 2) {
  const instance = await healthz();
  world.script(agent, turn, { text: "All right." });
  const requestId = await world.send(agent, "go");
  const records = await world.finished(agent, requests);
  valid(records);
  const settled = await world.settled(agent, requestId);
  assert.equal(settled.answer?.text, "All right.", JSON.stringify(settled));
  assert.equal(await healthz(), instance, "the wasm instance was rebuilt");
  assert.ok(JSON.stringify(records.at(-1).body).length < 600_000, "what an extension gives is bounded");
  return conversation(records.at(-1)).filter(([role]) => role === "tool").map(([, text]) => text);
}

const WELL = {
  "gives-thenable": "then",
  "gives-deep": null,
  "gives-nul": "a\0b",
  "gives-is-error-text": "x",
  "memo-surrogate": null,
  "update-anything": "undefined",
  "uses-ctx-late": "later",
  "breaks-ctx": "broken",
  "gives-large": "The tool ended, but its result of 2400056 bytes is above 524288 and was not kept.",
};
for (const kind of KINDS) {
  test(`a tool that ${kind}`, async () => {
    const found = await told(`weird-${kind}`, { tool_calls: [{ name: "weird", arguments: { kind } }] });
    assert.equal(found.length, 1);
    if (WELL[kind]) assert.equal(found[0], WELL[kind]);
  });
}

const HANDLERS = {
  "input-gone": /failed/,
  "input-null": /failed/,
  "input-cyclic": /failed/,
  "input-bigint": /failed/,
  "input-undefined": /do not fit/,
  "input-deep": /./,
  "input-frozen": /^$|./,
  "input-getter": /failed/,
  "returns-text": /failed/,
  "returns-true": /failed/,
  "returns-block-text": /failed/,
  "returns-reason-number": /failed/,
  "returns-reason-empty": /Blocked/,
  "returns-cyclic": /failed/,
};
for (const [kind, wanted] of Object.entries(HANDLERS)) {
  test(`a handler whose ${kind}`, async () => {
    const [found] = await told(`weird-${kind}`, { tool_calls: [{ name: "weird", arguments: { kind: "gives-nul" } }] });
    assert.match(found, wanted);
  });
}

const call = (name, argument, id) => ({ name, arguments: argument, ...(id ? { id } : {}) });
const count = (name) => ({ name });
const MODELS = {
  "unknown tool": [call("nothing", {})],
  "a name of another shape": [call("rm -rf / ü", {})],
  "a very long name": [call("x".repeat(300), {})],
  "the same id twice": [call("count_safe", count("twice-a"), "same"), call("count_safe", count("twice-b"), "same")],
  "an empty id": [call("count_safe", count("empty"), "")],
  "a long id of odd characters": [call("count_safe", count("odd"), `${"ü".repeat(100)} \n`)],
  "arguments cut short": [call("count_safe", '{"name": "cut')],
  "arguments that are empty": [call("count_safe", "")],
  "arguments that are a list": [call("count_safe", "[1]")],
  "arguments that are null": [call("count_safe", "null")],
  "arguments with a key twice": [call("count_safe", '{"name":"a","name":"b"}')],
  "arguments with a lone surrogate": [call("count_safe", '{"name":"a\\ud800"}')],
  "arguments that do not fit": [call("count_safe", { name: 7 })],
  "arguments nested deep": [call("weird", `{"kind":"gives-null","x":${"[".repeat(3_000)}${"]".repeat(3_000)}}`)],
  "arguments nested too deep to be kept": [call("weird", `{"kind":"gives-null","x":${"[".repeat(120)}${"]".repeat(120)}}`)],
  "a hundred calls": Array.from({ length: 100 }, (_, index) => call("count_safe", count(`hundred-${index}`))),
};
for (const [kind, calls] of Object.entries(MODELS)) {
  test(`a model that gives ${kind}`, async () => {
    const agent = `model-${kind.replaceAll(" ", "-")}`.slice(0, 64);
    const found = await told(agent, { tool_calls: calls });
    assert.equal(found.length, calls.length);
  });
}

/** What is no answer at all: the call goes out again. */
const ONCE = {
  "nothing": { text: "" },
  "blanks only": { text: " \n " },
  "a call without a name": { tool_calls: [call("", {})] },
};
for (const [kind, attempt] of Object.entries(ONCE)) {
  test(`a model that says ${kind}, once`, async () => {
    const agent = `says-${kind.replaceAll(" ", "-")}`;
    world.script(agent, { text: "Better.", attempts: [attempt] });
    const requestId = await world.send(agent, "go");
    valid(await world.finished(agent, 2));
    assert.equal((await world.settled(agent, requestId)).answer?.text, "Better.");
  });
}
