import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { readScenarios } from "./server.mjs";
import { ask, called, get, look, post, readStream, result, said, started, stream, THROUGH_GATEWAY, until, user } from "./testing.mjs";

const script = (turn, more = {}) => ({ name: "s", turns: [turn], ...more });
const here = (path) => fileURLToPath(new URL(path, import.meta.url));

// ---- what a client gets -------------------------------------------------------------------------------------------

test("without a scenario it says back what the user said last", async (t) => {
  const gateway = await started(t);
  const answer = await stream(gateway, { messages: [user("one"), said("1"), user([{ type: "text", text: "two €😀" }])] });
  assert.equal(answer.content, "two €😀");
  assert.equal(answer.finish, "stop");
  assert.ok(answer.done);
  assert.ok(answer.comments >= 1);
});

test("a stream has the real one's parts in their order", async (t) => {
  const turn = { reasoning: "hm", text: "Let me look.", tool_calls: [{ name: "look", arguments: { p: 1 } }], usage: { prompt_tokens: 10, completion_tokens: 5 }, chunk_chars: 5 };
  const gateway = await started(t, { scenarios: [script(turn)] });
  const response = await ask(gateway, { tools: [look] }, { path: THROUGH_GATEWAY, headers: { "cf-aig-event-id": "e1", "x-openrouter-metadata": "enabled" } });
  assert.equal(response.headers.get("content-type"), "text/event-stream");
  assert.equal(response.headers.get("cf-aig-event-id"), "e1");
  for (const name of ["cf-aig-log-id", "cf-aig-request-id", "x-generation-id"]) assert.ok(response.headers.get(name), name);
  const answer = await readStream(response);
  assert.deepEqual(answer.chunks[0].choices[0].delta, { role: "assistant", content: "" });
  assert.deepEqual(answer.chunks[1].choices[0].delta.reasoning_details, [{ type: "reasoning.text", text: "hm", format: "unknown", index: 0 }]);
  assert.equal(answer.reasoning, "hm");
  assert.equal(answer.content, "Let me look.");
  assert.deepEqual(answer.calls.map(({ name, arguments: text }) => [name, text]), [["look", "{\"p\":1}"]]);
  assert.match(answer.calls[0].id, /^call_\w+$/);
  assert.equal(answer.finish, "tool_calls");
  const last = answer.chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.total_tokens, 15);
  assert.equal(last.openrouter_metadata.requested[0], "m:free");
  assert.equal(answer.usage.length, 1);
  assert.ok(answer.done);
});

test("stream false gets one JSON completion", async (t) => {
  const gateway = await started(t, { scenarios: [script({ tool_calls: [{ id: "c1", name: "look", arguments: {} }] })] });
  const body = await (await ask(gateway, { stream: false, tools: [look] })).json();
  assert.equal(body.choices[0].message.content, null);
  assert.equal(body.choices[0].message.tool_calls[0].id, "c1");
  assert.equal(body.choices[0].finish_reason, "tool_calls");
  assert.ok(body.usage.prompt_tokens > 0);
});

test("options of a turn: usage places, no [DONE], raw bytes, split bytes, cut arguments", async (t) => {
  const gateway = await started(t);
  const played = (turn) => {
    gateway.scenario(script(turn));
    return stream(gateway, {});
  };
  assert.equal((await played({ text: "a", usage: false })).usage.length, 0);
  const onFinish = await played({ text: "a", usage_at: "finish" });
  assert.equal(onFinish.chunks.at(-1).choices[0].finish_reason, "stop");
  assert.ok(onFinish.chunks.at(-1).usage);
  const every = await played({ text: "a", usage_at: "every" });
  assert.equal(every.usage.length, every.chunks.length);
  assert.equal((await played({ text: "a", done: false })).done, false);
  assert.equal((await played({ raw: ["data: {\"choices\":[]}\n\n", ": x\n\n"], comments: false })).text, "data: {\"choices\":[]}\n\n: x\n\n");
  assert.equal((await played({ text: "€😀".repeat(5), split_bytes: 1 })).content, "€😀".repeat(5));
  const cut = await played({ tool_calls: [{ name: "look", arguments: "{\"p\":1" }], finish_reason: "length" });
  assert.deepEqual([cut.finish, cut.calls[0].arguments], ["length", "{\"p\":1"]);
  const details = await played({ text: "a", reasoning_details: [{ type: "reasoning.encrypted", data: "x" }], model: "other", provider: "P" });
  assert.equal(details.chunks[1].choices[0].delta.reasoning_details[0].data, "x");
  assert.deepEqual([details.chunks[0].model, details.chunks[0].provider], ["other", "P"]);
});

// ---- which turn ---------------------------------------------------------------------------------------------------

test("the turn is read from the request, and a turn past the script is an echo", async (t) => {
  const scenarios = [{ name: "s", match: { contains: "go" }, turns: [{ tool_calls: [{ id: "c1", name: "look" }] }, { text: "end" }] }];
  const gateway = await started(t, { scenarios });
  const messages = [user("before"), said("x"), user("go")];
  assert.equal((await stream(gateway, { messages, tools: [look] })).calls[0].id, "c1");
  messages.push(called("c1"), result("c1"));
  for (const attempt of [1, 2]) {
    assert.equal((await stream(gateway, { messages, tools: [look] })).content, "end");
    assert.equal(gateway.requests().at(-1).attempt, attempt);
  }
  messages.push(said("end"));
  assert.equal((await stream(gateway, { messages, tools: [look] })).content, "go");
  assert.deepEqual(gateway.requests().map(({ turn }) => turn), [0, 1, 1, 2]);
  assert.ok(gateway.requests().at(-1).turns_over);
});

test("matching: place, regex, model, header, tool; the newest first", async (t) => {
  const named = (name, match) => ({ name, match, turns: [{ text: name }, { text: `${name}2` }] });
  const gateway = await started(t);
  const heard = async (body, headers) => (await stream(gateway, body, { headers })).content;
  const messages = [user("alpha"), said("x"), user("beta")];
  gateway.scenario(named("first", { contains: "alpha", in: "first" }));
  assert.equal(await heard({ messages }), "first2");
  gateway.scenario(named("last", { regex: "^BETA$", flags: "gi" }));
  assert.equal(await heard({ messages }), "last");
  assert.equal(await heard({ messages }), "last");
  assert.equal(await heard({ messages: [user("alpha"), said("x"), user("more")] }), "first2");
  gateway.scenario(named("any", { contains: "alpha", in: "any" }));
  assert.equal(await heard({ messages }), "any2");
  gateway.scenario(named("model", { model: "opus" }));
  assert.equal(await heard({ model: undefined, models: ["a", "big-opus"] }), "model");
  gateway.scenario(named("header", { header: { "CF-AIG-Metadata": "\"tier\":\"free\"" } }));
  assert.equal(await heard({}, { "cf-aig-metadata": "{\"tier\":\"free\"}" }), "header");
  gateway.scenario(named("tool", { tool: "look" }));
  assert.equal(await heard({ tools: [look] }), "tool");
  gateway.scenario({ name: "tool", turns: [{ text: "replaced" }] });
  assert.equal(await heard({}), "replaced");
});

test("attempts are counted per conversation and lie over the turn", async (t) => {
  const turn = { text: "fine", attempts: [{ fault: { kind: "http", status: 503 } }, { text: "second" }] };
  const gateway = await started(t, { scenarios: [script(turn)] });
  const asRun = (run) => ask(gateway, {}, { headers: { "cf-aig-metadata": JSON.stringify({ run }) } });
  assert.equal((await asRun("r1")).status, 503);
  assert.equal((await asRun("r2")).status, 503);
  assert.equal((await readStream(await asRun("r1"))).content, "second");
  assert.equal((await readStream(await asRun("r1"))).content, "fine");
  assert.deepEqual(gateway.requests().map(({ conversation, attempt }) => [conversation, attempt]), [["r1", 1], ["r2", 1], ["r1", 2], ["r1", 3]]);
});

test("a scenario with a typo is refused", async (t) => {
  const gateway = await started(t);
  const bad = [{ turns: [{}] }, script({ txet: "" }), script({ fault: { kind: "boom" } }), script({ fault: { kind: "cut", after: 1 } }),
    script({}, { match: { text: "x" } }), script({}, { match: { in: "middle" } }), script({}, { match: { regex: "(" } }), { name: "x", turns: [] },
    script({ attempts: [{ x: 1 }] }), script({ hold: { at: "head" } }), script({ usage_at: "x" }), script({ tool_calls: [{}] })];
  for (const source of bad) assert.equal((await post(gateway, "/control/scenario", source)).status, 400, JSON.stringify(source));
  assert.deepEqual((await get(gateway, "/control/scenarios")).scenarios, []);
});

// ---- faults -------------------------------------------------------------------------------------------------------

test("faults in a stream", async (t) => {
  const gateway = await started(t);
  const broken = async (fault, text = "abcdef") => {
    gateway.scenario(script({ text, chunk_chars: 1, fault }));
    const answer = await stream(gateway, {});
    assert.equal(gateway.requests().at(-1).state, "fault");
    assert.equal(gateway.requests().at(-1).fault, fault.kind);
    return answer;
  };
  const cut = await broken({ kind: "cut", after_chunks: 3 });
  assert.deepEqual([cut.broken, cut.content, gateway.requests().at(-1).chunks], [true, "ab", 3]);
  assert.deepEqual((await broken({ kind: "cut", after_chunks: 0 })).chunks, []);
  const eof = await broken({ kind: "eof" });
  assert.deepEqual([eof.broken, eof.content, eof.finish, eof.done], [false, "abcdef", undefined, false]);
  const late = await broken({ kind: "eof", after_chunks: 1000 });
  assert.deepEqual([late.finish, late.usage.length, late.done], ["stop", 1, false]);
  const error = await broken({ kind: "stream_error", after_chunks: 2, code: 429, message: "m", done: true });
  assert.deepEqual([error.content, error.chunks.at(-1).error.code, error.finish, error.done], ["a", 429, "error", true]);
  assert.deepEqual((await broken({ kind: "stream_error", choices: [] })).chunks.at(-1).choices, []);
});

test("a cut before the head leaves no response at all", async (t) => {
  const gateway = await started(t, { scenarios: [script({ fault: { kind: "cut", before_head: true } })] });
  await assert.rejects(ask(gateway, {}));
});

test("faults in place of a response", async (t) => {
  const gateway = await started(t);
  const broken = async (fault) => {
    gateway.scenario(script({ text: "plain", fault }));
    const response = await ask(gateway, {});
    const text = await response.text();
    const kind = response.headers.get("content-type").split(";")[0];
    return { status: response.status, kind, retry: response.headers.get("retry-after"), text, json: kind === "application/json" ? JSON.parse(text) : null };
  };
  const limited = await broken({ kind: "http", status: 429, retry_after: 7, metadata: { limit_source: "x" } });
  assert.deepEqual([limited.status, limited.retry, limited.json.error.code, limited.json.error.metadata.limit_source], [429, "7", 429, "x"]);
  assert.equal((await broken({ kind: "http", status: 429 })).retry, null);
  assert.deepEqual((await broken({ kind: "http", status: 402, body: { error: { code: "x" } } })).json, { error: { code: "x" } });
  assert.equal((await broken({ kind: "http", status: 500, body: "oops" })).text, "oops");
  const page = await broken({ kind: "html", status: 521 });
  assert.deepEqual([page.status, page.kind, page.text.startsWith("<!DOCTYPE html>")], [521, "text/html", true]);
  const empty = await broken({ kind: "empty" });
  assert.deepEqual([empty.status, empty.text], [200, ""]);
  const error = await broken({ kind: "json_error", code: 400, message: "m" });
  assert.deepEqual([error.status, error.json.error.code], [200, 400]);
  assert.equal((await broken({ kind: "json_completion" })).json.choices[0].message.content, "plain");
  for (const [code, status] of [[2003, 429], [2005, 400], [2009, 401], [2021, 402], [2045, 429]]) {
    const envelope = await broken({ kind: "gateway", code });
    assert.deepEqual([envelope.status, envelope.json.error[0].code, envelope.json.httpCode], [status, code, status]);
  }
});

test("stall and comments last until the client leaves", async (t) => {
  for (const kind of ["stall", "comments"]) {
    const gateway = await started(t, { scenarios: [script({ text: "abc", chunk_chars: 1, fault: { kind, after_chunks: 2 } })] });
    const controller = new AbortController();
    const response = await ask(gateway, {}, { signal: controller.signal });
    const reading = readStream(response);
    await until(() => gateway.requests()[0].state === "fault", "the fault");
    assert.equal(gateway.requests()[0].client_gone, undefined);
    controller.abort();
    await reading;
    const record = await until(() => gateway.requests()[0].client_gone && gateway.requests()[0], "the client's leaving");
    assert.deepEqual([record.state, record.fault, record.chunks], ["fault", kind, 2]);
  }
});

test("stream faults have a plain form", async (t) => {
  const gateway = await started(t);
  gateway.scenario(script({ text: "abc", fault: { kind: "stream_error" } }));
  const body = await (await ask(gateway, { stream: false })).json();
  assert.deepEqual([body.choices[0].finish_reason, body.choices[0].error.code], ["error", 502]);
  gateway.scenario(script({ text: "abc", fault: { kind: "cut" } }));
  await assert.rejects(ask(gateway, { stream: false }));
});

// ---- holds --------------------------------------------------------------------------------------------------------

test("a hold stands before the first byte, at the first chunk or behind a chunk", async (t) => {
  const gateway = await started(t);
  const waiting = (name) => until(async () => (await get(gateway, "/control/holds")).holds[name], `hold ${name}`);
  gateway.scenario(script({ text: "abc", chunk_chars: 1, hold: ["head", { name: "first", at: "first_chunk" }, { name: "mid", after_chunks: 2 }] }));
  let headCame = false;
  const answer = ask(gateway, {}).then((response) => ((headCame = true), readStream(response)));
  await waiting("head");
  assert.deepEqual([headCame, gateway.requests()[0].state, gateway.requests()[0].hold], [false, "held", "head"]);
  assert.deepEqual(await post(gateway, "/control/release/head"), { status: 200, released: 1 });
  await waiting("first");
  await until(() => headCame, "the head");
  await post(gateway, "/control/release/first");
  await waiting("mid");
  assert.equal(gateway.requests()[0].chunks, 2);
  assert.equal(gateway.release("mid"), 1);
  const heard = await answer;
  assert.equal(heard.content, "abc");
  assert.ok(heard.comments >= 2);
  assert.deepEqual([gateway.requests()[0].state, gateway.requests()[0].hold], ["done", undefined]);
});

test("release: the oldest n, later arrivals, nobody", async (t) => {
  const gateway = await started(t, { scenarios: [script({ text: "x", hold: "h" })] });
  assert.equal((await post(gateway, "/control/release/h")).released, 0);
  const answers = [stream(gateway, {}), stream(gateway, {}), stream(gateway, {})];
  await until(() => gateway.holds().h === 3, "three held");
  assert.equal((await post(gateway, "/control/release/h?count=1")).released, 1);
  await until(() => gateway.requests().filter(({ state }) => state === "done").length === 1, "the first");
  assert.equal(gateway.holds().h, 2);
  assert.equal((await post(gateway, "/control/release/h?all=true")).released, 2);
  await Promise.all(answers);
  assert.equal((await stream(gateway, {})).content, "x");
  assert.equal((await post(gateway, "/control/release/h?count=x")).status, 400);
});

test("a hold ends when the client leaves", async (t) => {
  const gateway = await started(t, { scenarios: [script({ hold: "h" })] });
  const controller = new AbortController();
  const answer = ask(gateway, {}, { signal: controller.signal }).catch((error) => error.name);
  await until(() => gateway.holds().h, "the hold");
  controller.abort();
  assert.equal(await answer, "AbortError");
  await until(() => gateway.requests()[0].state === "aborted_by_client", "the abort");
  assert.deepEqual(gateway.holds(), {});
});

test("a client that leaves in the middle of a stream is seen", async (t) => {
  const gateway = await started(t, { scenarios: [script({ text: "x".repeat(100), chunk_chars: 1, delay_ms: 60_000 })] });
  const controller = new AbortController();
  const reading = readStream(await ask(gateway, {}, { signal: controller.signal }));
  await until(() => gateway.requests()[0].chunks === 1, "a chunk");
  controller.abort();
  await reading;
  await until(() => gateway.requests()[0].state === "aborted_by_client", "the abort");
});

// ---- refusals -----------------------------------------------------------------------------------------------------

const withTool = (definition) => ({ tools: [{ type: "function", function: definition }] });
const inHistory = (...messages) => ({ messages: [user("a"), ...messages], tools: [look] });
const callWith = (change) => inHistory({ ...called("c"), tool_calls: [{ ...called("c").tool_calls[0], ...change }] }, result("c"));
const schema = (parameters) => withTool({ name: "f", parameters });

const REFUSED = {
  "four models": { models: ["a", "b", "c", "d"] },
  "no model": { model: undefined },
  "an empty model": { model: "" },
  "models not a list": { models: "a" },
  "no messages": { messages: [] },
  "an unknown role": { messages: [{ role: "function", content: "x" }] },
  "an empty user message": { messages: [user("")] },
  "a blank user message": { messages: [user(" \n")] },
  "no parts": { messages: [user([])] },
  "an empty part": { messages: [user([{ type: "text", text: "" }])] },
  "an unknown part": { messages: [user([{ type: "toString", x: 1 }])] },
  "an image without address": { messages: [user([{ type: "image_url", image_url: {} }])] },
  "an empty system prompt": { messages: [{ role: "system", content: "" }, user("a")] },
  "an empty assistant message": { messages: [user("a"), said(""), user("b")] },
  "a null assistant message": { messages: [user("a"), said(null), user("b")] },
  "an empty list of calls": { messages: [user("a"), { ...said("x"), tool_calls: [] }, user("b")] },
  "an orphan result": inHistory(result("c")),
  "a result after another's call": inHistory(called("c"), result("c"), said("x"), result("c")),
  "a result of no call beside it": inHistory(called("c"), result("c"), result("d")),
  "two results": inHistory(called("c"), result("c"), result("c")),
  "a missing result": inHistory(called("c", "d"), result("c"), user("x")),
  "a missing result at the end": inHistory(called("c")),
  "a result not directly after": inHistory(called("c"), user("x"), result("c")),
  "a repeated call id": inHistory(called("c"), result("c"), said("x"), called("c"), result("c")),
  "a repeated call id in one message": inHistory(called("c", "c"), result("c"), result("c")),
  "a result that is no text": inHistory(called("c"), result("c", [{ type: "image_url", image_url: { url: "data:" } }])),
  "a result of null": inHistory(called("c"), result("c", null)),
  "a result as object": inHistory(called("c"), result("c", { a: 1 })),
  "a call without id": callWith({ id: "" }),
  "a call without type": callWith({ type: undefined }),
  "a call with a bad name": callWith({ function: { name: "a b", arguments: "{}" } }),
  "empty arguments": callWith({ function: { name: "look", arguments: "" } }),
  "arguments as object": callWith({ function: { name: "look", arguments: {} } }),
  "cut arguments": callWith({ function: { name: "look", arguments: "{\"a\"" } }),
  "arguments that are a list": callWith({ function: { name: "look", arguments: "[]" } }),
  "calls but no tools": { messages: [user("a"), called("c"), result("c")] },
  "an empty list of tools": { tools: [] },
  "tool_choice but no tools": { tool_choice: "auto" },
  "a choice of no tool": { tools: [look], tool_choice: { type: "function", function: { name: "x" } } },
  "a tool without type": { tools: [{ function: look.function }] },
  "a tool name with a dot": withTool({ name: "a.b" }),
  "a tool name too long": withTool({ name: "a".repeat(65) }),
  "a name used twice": { tools: [look, look] },
  "parameters without type": schema({ properties: {} }),
  "parameters of type string": schema({ type: "string" }),
  "an array without items": schema({ type: "object", properties: { a: { type: "array" } } }),
  "required without property": schema({ type: "object", properties: {}, required: ["a"] }),
  "max_tokens of zero": { max_tokens: 0 },
  "a session id too long": { session_id: "s".repeat(257) },
  "an unknown effort": { reasoning: { effort: "huge" } },
  "half a surrogate": { messages: [user("\ud83d")] },
};

test("what the real services refuse is refused", async (t) => {
  const gateway = await started(t);
  for (const [what, body] of Object.entries(REFUSED)) {
    const response = await ask(gateway, body);
    const { error } = await response.json();
    assert.equal(response.status, 400, what);
    assert.equal(error.code, 400, what);
    const record = gateway.requests().at(-1);
    assert.ok(record.invalid.length > 0, what);
    assert.deepEqual(error.metadata.stand_in_reasons, record.invalid, what);
  }
});

test("who refuses: OpenRouter in its own words, an upstream in metadata.raw", async (t) => {
  const gateway = await started(t);
  const four = await (await ask(gateway, REFUSED["four models"])).json();
  assert.equal(four.error.message, "'models' array must have 3 items or fewer.");
  const orphan = await (await ask(gateway, REFUSED["an orphan result"])).json();
  assert.equal(orphan.error.message, "Provider returned error");
  assert.match(JSON.parse(orphan.error.metadata.raw).error.message, /has no call/);
});

test("what they accept is accepted", async (t) => {
  const gateway = await started(t);
  const accepted = {
    "an assistant message last": { messages: [user("a"), said("b")] },
    "three models": { model: undefined, models: ["a", "b", "c"] },
    "parallel calls in any order": inHistory(called("c", "d"), result("d"), result("c")),
    "a result in text parts": inHistory(called("c"), result("c", [{ type: "text", text: "x" }])),
    "text beside calls": inHistory({ ...called("c"), content: "x" }, result("c")),
    "an image": { messages: [user([{ type: "text", text: "a" }, { type: "image_url", image_url: { url: "data:image/png;base64,AA" } }])] },
    "a tool without parameters": withTool({ name: "f" }),
    "all of it": { session_id: "s", provider: { only: ["x"] }, reasoning: { effort: "low" }, plugins: [], max_tokens: 5, temperature: 0, usage: { include: true } },
    "a pair of surrogates": { messages: [user("😀")] },
  };
  for (const [what, body] of Object.entries(accepted)) {
    const answer = await stream(gateway, body);
    assert.ok(answer.done, what);
    assert.equal(gateway.requests().at(-1).invalid, undefined, what);
  }
});

test("bodies that are no JSON, no object, no UTF-8, or too large", async (t) => {
  const gateway = await started(t);
  for (const raw of ["{", "", "[]", "null", new Uint8Array([0x7b, 0xff, 0x7d])]) {
    const response = await ask(gateway, {}, { raw });
    assert.equal(response.status, 400);
    await response.text();
  }
  const large = await ask(gateway, {}, { raw: new Uint8Array(32 * 1024 * 1024 + 1) });
  assert.equal(large.status, 413);
  assert.deepEqual(gateway.requests().at(-1).invalid, ["the body is over 32 MB"]);
});

test("the gateway's own authorization is asked for on its path only", async (t) => {
  const gateway = await started(t, { requireAuth: true, token: "T" });
  const through = (headers) => ask(gateway, {}, { path: THROUGH_GATEWAY, headers });
  for (const headers of [{}, { "cf-aig-authorization": "Bearer X" }, { "cf-aig-authorization": "T" }, { authorization: "Bearer T" }]) {
    const response = await through(headers);
    assert.equal(response.status, 401);
    assert.equal((await response.json()).error[0].code, 2009);
    assert.equal(gateway.requests().at(-1).invalid.length, 1);
  }
  assert.ok((await readStream(await through({ "cf-aig-authorization": "Bearer T" }))).done);
  assert.ok((await stream(gateway, {})).done);
});

test("what the real services swallow is flagged", async (t) => {
  const gateway = await started(t);
  const flagsOf = async (metadata, body = {}) => {
    await stream(gateway, body, { headers: { "cf-aig-metadata": metadata } });
    return gateway.requests().at(-1).flags;
  };
  assert.match((await flagsOf("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1}"))[0], /6 entries/);
  assert.match((await flagsOf("{\"a\":null,\"b\":{}}"))[0], /not a scalar: a, b/);
  assert.match((await flagsOf("{"))[0], /not JSON/);
  assert.equal(await flagsOf("{\"a\":\"run:1\",\"b\":2,\"c\":true}"), undefined);
  assert.equal((await flagsOf("{}", inHistory({ ...called("list:0"), content: "" }, result("list:0", "")))).length, 3);
});

// ---- tokens, counters, control ------------------------------------------------------------------------------------

test("tokens differ, can be held, can fail, and can be demanded", async (t) => {
  const gateway = await started(t);
  const first = await post(gateway, "/token", { grant_type: "x" });
  const second = await post(gateway, "/token");
  assert.notEqual(first.access_token, second.access_token);
  assert.equal(first.expires_in, 3600);
  assert.equal(gateway.requests()[0].body.grant_type, "x");
  await post(gateway, "/control/token", { expires_in: 0, enforce: true });
  const ended = await post(gateway, "/token");
  const asked = (token) => ask(gateway, {}, { headers: { authorization: `Bearer ${token}` } });
  assert.equal((await asked(ended.access_token)).status, 401);
  assert.equal((await asked("unknown")).status, 401);
  assert.ok((await readStream(await asked(first.access_token))).done);
  gateway.token({ hold: "t" });
  const held = post(gateway, "/token");
  await until(() => gateway.holds().t, "the held token");
  gateway.release("t");
  assert.ok((await held).access_token);
  gateway.token({ status: 503 });
  assert.equal((await post(gateway, "/token")).status, 503);
  assert.equal((await post(gateway, "/control/token", { expires: 1 })).status, 400);
});

test("counters count every call and list the keys", async (t) => {
  const gateway = await started(t);
  assert.equal((await post(gateway, "/counter/mail?key=k1")).count, 1);
  assert.equal((await post(gateway, "/counter/mail?key=k1")).count, 2);
  const held = post(gateway, "/counter/mail?hold=c");
  await until(() => gateway.holds().c, "the held counter");
  assert.equal(gateway.counters.mail.count, 3);
  gateway.release("c");
  assert.equal((await held).count, 3);
  assert.deepEqual((await get(gateway, "/counter")).counters, { mail: { count: 3, keys: ["k1", "k1"] } });
});

test("records tell what was asked, page by page", async (t) => {
  const gateway = await started(t);
  for (const text of ["a", "b", "c"]) await stream(gateway, { messages: [user(text)] }, { headers: { "X-Mine": "1" } });
  const page = await get(gateway, "/control/requests?after=1&limit=1");
  assert.deepEqual([page.requests.length, page.requests[0].seq, page.last_seq, page.more], [1, 2, 3, true]);
  const [record] = page.requests;
  assert.deepEqual([record.headers["x-mine"], record.body.messages[0].content, record.path, record.state], ["1", "b", "/v1/chat/completions", "done"]);
  assert.ok(record.at && record.ended_at && record.chunks > 0);
  assert.equal((await get(gateway, "/control/requests?body=false")).requests[0].body, undefined);
});

test("reset forgets all and cuts what is held, the numbering goes on", async (t) => {
  const gateway = await started(t, { scenarios: [script({ text: "kept" })] });
  await post(gateway, "/control/scenario", { name: "posted", turns: [{ hold: "h" }] });
  const held = assert.rejects(ask(gateway, {}));
  await until(() => gateway.holds().h, "the hold");
  await post(gateway, "/counter/c");
  await post(gateway, "/control/reset");
  await held;
  assert.deepEqual([gateway.requests(), gateway.counters], [[], {}]);
  await until(() => gateway.holds().h === undefined, "the hold's end");
  assert.equal((await stream(gateway, {})).content, "kept");
  assert.deepEqual([gateway.requests()[0].seq, gateway.requests()[0].attempt], [2, 1]);
});

test("health, and paths that do not exist", async (t) => {
  const gateway = await started(t);
  assert.deepEqual(await get(gateway, "/health"), { ok: true });
  const wrong = await fetch(`${gateway.url}/v1/acct/gw/openrouter/v2/x`, { method: "POST", body: "x" });
  assert.equal(wrong.status, 404);
  assert.deepEqual(gateway.requests()[0].invalid, ["no such path"]);
});

// ---- the log and the command --------------------------------------------------------------------------------------

function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "gateway-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

async function command(t, args) {
  const child = spawn(process.execPath, [here("./server.mjs"), ...args], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  const [line] = await once(child.stdout, "data");
  const url = /^gateway listening on (http:\/\/127\.0\.0\.1:\d+)\n$/.exec(String(line))?.[1];
  assert.ok(url, String(line));
  return { child, url };
}

test("a killed process goes on from its log", async (t) => {
  const log = join(folder(t), "log.jsonl");
  const before = await command(t, ["--log", log, "--scenarios", here("./scenarios")]);
  await post(before, "/control/scenario", { name: "tries", match: { contains: "try" }, turns: [{ text: "ok", attempts: [{ fault: { kind: "http", status: 500 } }] }] });
  await post(before, "/control/scenario", { name: "held", match: { contains: "hold" }, turns: [{ text: "ok", hold: "h" }] });
  assert.equal((await ask(before, { messages: [user("try")] })).status, 500);
  await post(before, "/counter/c?key=k");
  const broken = assert.rejects(ask(before, { messages: [user("hold")] }));
  await until(async () => (await get(before, "/control/holds")).holds.h, "the hold");
  before.child.kill("SIGKILL");
  await broken;
  appendFileSync(log, "{\"type\":\"requ");

  const after = await command(t, ["--log", log, "--scenarios", here("./scenarios")]);
  const { requests } = await get(after, "/control/requests");
  assert.deepEqual(requests.map(({ seq, state, fault }) => [seq, state, fault]), [[1, "fault", "http"], [2, "fault", "gateway_restarted"]]);
  assert.equal(requests[0].status, 500);
  assert.deepEqual((await get(after, "/counter")).counters.c, { count: 1, keys: ["k"] });
  assert.equal((await stream(after, { messages: [user("try")] })).content, "ok");
  const [, , third] = (await get(after, "/control/requests")).requests;
  assert.deepEqual([third.seq, third.attempt, third.state], [3, 2, "done"]);
  after.child.kill("SIGTERM");
  assert.deepEqual(await once(after.child, "exit"), [0, null]);
  for (const line of readFileSync(log, "utf8").trim().split("\n")) {
    if (!line.startsWith("{\"type\":\"requ") || line.length > 20) JSON.parse(line);
  }
});

test("the demo's scenarios play through", async (t) => {
  const quick = readScenarios(here("./scenarios")).map((scenario) => ({ ...scenario, turns: scenario.turns.map((turn) => ({ ...turn, delay_ms: 0 })) }));
  const gateway = await started(t, { scenarios: quick });
  const tools = ["current_time", "calculate"].map((name) => ({ type: "function", function: { name, parameters: { type: "object", properties: {} } } }));
  const play = async (question) => {
    const messages = [user(question)];
    const turns = [];
    do {
      turns.push(await stream(gateway, { messages, tools }));
      const { content, calls } = turns.at(-1);
      messages.push({ role: "assistant", content: content || null, ...(calls.length > 0 ? { tool_calls: calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })) } : {}) });
      for (const { id } of calls) messages.push(result(id));
    } while (turns.at(-1).finish === "tool_calls");
    return turns;
  };
  const words = ({ content }) => content.split(/\s+/).length;
  const minutes = await play("How many minutes does a week have?");
  assert.deepEqual(minutes.map(({ finish }) => finish), ["tool_calls", "tool_calls", "stop"]);
  assert.equal(minutes[0].content, "Let me look at the clock first.");
  assert.deepEqual(minutes.map(({ calls }) => calls[0]?.arguments), ["{}", "{\"expression\":\"7*24*60\"}", undefined]);
  assert.ok(words(minutes[2]) > 30 && words(minutes[2]) < 70);
  const long = await play("Write a long text on the order of operations.");
  assert.deepEqual(long[0].calls.map((call) => call.arguments), ["{}", "{\"expression\":\"2*(3+4)\"}"]);
  assert.ok(words(long[1]) > 150 && long[1].chunks.length > 100);
});
