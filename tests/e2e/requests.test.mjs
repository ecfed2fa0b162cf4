// What a request may look like: sizes, fields, ids, queries, methods.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { noPanic, ok, refused, send, startWorld, TOKEN } from "./lib/api.mjs";

let world;
let api;
before(async () => {
  world = await startWorld();
  api = world.client();
});
after(() => world?.stop());

const MESSAGES = "/v1/agents/edge/messages";

test("a body of 2 MB: 413, declared or in chunks, and the Worker goes on", async () => {
  const body = JSON.stringify({ request_id: "big", text: "x".repeat(2_000_000) });
  for (const chunked of [false, true]) {
    const error = refused(await send(world.url, "POST", MESSAGES, { token: TOKEN, body, chunked }), 413, "too_large");
    assert.ok(error.details.limit < 2_000_000);
  }
  const long = await api.message("edge", "y".repeat(600_000));
  assert.equal(refused(long, 413, "too_large").details.field, "text");
  refused(await api.get("/v1/agents/edge"), 404, "not_found");
});

test("an unknown field: 400 that names it, wherever it stands", async () => {
  const cases = [
    ["POST", MESSAGES, { request_id: "r", text: "t", txet: 1 }, "txet"],
    ["POST", MESSAGES, { request_id: "r", text: "t", images: [{ data: "AAAA", mime_type: "image/png", alt: "" }] }, "images[0].alt"],
    ["PUT", "/v1/agents/edge", { system_prompt: "", tier: "haiku", temperature: 1 }, "temperature"],
    ["POST", "/v1/agents/edge/stop", { why: "" }, "why"],
    ["POST", "/v1/agents/edge/interrupt", { keep: true }, "keep"],
    ["POST", "/v1/agents/edge/retry", { now: true }, "now"],
    ["POST", "/v1/agents/edge/signals/go", { value: 1, request_id: "r", to: "x" }, "to"],
  ];
  for (const [method, target, body, field] of cases) {
    const error = refused(await api.call(method, target, body), 400, "unknown_field");
    assert.equal(error.details.field, field);
    assert.ok(error.message.includes(field), error.message);
  }
  refused(await api.get("/v1/agents/edge"), 404, "not_found");
});

test("what is no JSON, or of another type, is refused and names the place", async () => {
  const raw = (body) => send(world.url, "POST", MESSAGES, { token: TOKEN, body });
  const deep = `{"request_id":"r","text":${"[".repeat(100_000)}${"]".repeat(100_000)}}`;
  const invalid = ["", " ", "{", "null", "[]", "7", '"text"', "{}", '{"request_id":"r","text":"t"} x', deep, Buffer.from([0xff, 0xfe, 0x7b])];
  invalid.push(Buffer.concat([Buffer.from('{"request_id":"r","text":"'), Buffer.from([0xc3, 0x28]), Buffer.from('"}')]));
  invalid.push('{"request_id":"r","text":"a","text":"b"}', '{"request_id":"r","text":"\\ud800"}', '{"request_id":1e999,"text":"t"}');
  for (const body of invalid) refused(await raw(body), 400, "invalid_request");
  const longId = refused(await raw(JSON.stringify({ request_id: "x".repeat(129), text: "t" })), 413, "too_large");
  assert.deepEqual([longId.details.field, longId.details.limit], ["request_id", 128]);
  const typed = [
    [{ request_id: 1, text: "t" }, "request_id"],
    [{ request_id: "", text: "t" }, "request_id"],
    [{ request_id: "a\u0000b", text: "t" }, "request_id"],
    [{ request_id: "r" }, "text"],
    [{ request_id: "r", text: null }, "text"],
    [{ request_id: "r", text: "" }, "text"],
    [{ request_id: "r", text: ["t"] }, "text"],
    [{ request_id: "r", text: "t", when_busy: "later" }, "when_busy"],
    [{ request_id: "r", text: "t", images: {} }, "images"],
    [{ request_id: "r", text: "t", images: [{ data: "%%%", mime_type: "image/png" }] }, "images[0].data"],
    [{ request_id: "r", text: "t", images: [{ data: "AAAA", mime_type: "text/html" }] }, "images[0].mime_type"],
  ];
  for (const [body, field] of typed) {
    const error = refused(await raw(JSON.stringify(body)), 400, "invalid_request");
    assert.equal(error.details.field, field, error.message);
  }
  for (const [rest, body] of [["/stop", { reason: 7 }], ["/interrupt", { keep_queue: "no" }], ["/signals/go", { request_id: "r" }]]) {
    refused(await api.call("POST", `/v1/agents/edge${rest}`, body), 400, "invalid_request");
  }
  refused(await api.get("/v1/agents/edge"), 404, "not_found");
});

test("ids outside the alphabet: 400, and none reaches an object", async () => {
  for (const id of ["a%20b", "%C3%A4", "a%2Fb", "a%00b", "x".repeat(65), "a:b", "a%25b", "%F0%9F%A6%80", "a@b", "a+b", "~", "a%0Ab"]) {
    for (const [method, rest, body] of [["GET", ""], ["POST", "/messages", { request_id: "r", text: "t" }], ["DELETE", ""]]) {
      const error = refused(await api.call(method, `/v1/agents/${id}${rest}`, body), 400, "invalid_request");
      assert.equal(error.details.field, "id");
    }
  }
  for (const id of ["a%zz", "a%", "a%2", "a%ff"]) refused(await api.get(`/v1/agents/${id}`), 400, "invalid_request");
  const longest = "A.b_c-9".padEnd(64, "z");
  ok(await api.message(longest, "hello"), 202);
});

test("a query that is not known, twice there, or out of range: 400 that names it", async () => {
  ok(await api.message("queried", "hello"), 202);
  const unknown = { "/v1/agents/queried?verbose=1": "verbose", "/v1/agents/queried/entries?page=2": "page", "/healthz?x=1": "x", "/v1/agents?tenant=umbrella": "tenant" };
  for (const [target, field] of Object.entries(unknown)) assert.equal(refused(await api.get(target), 400, "unknown_field").details.field, field);
  const bad = {
    "/v1/agents/queried/entries?after=-1": "after",
    "/v1/agents/queried/entries?after=1&after=2": "after",
    "/v1/agents/queried/entries?after=99999999999999999999": "after",
    "/v1/agents/queried/entries?after=1e3": "after",
    "/v1/agents/queried/entries?limit=0": "limit",
    "/v1/agents/queried/entries?limit=1001": "limit",
    "/v1/agents/queried/submissions/x?wait=61": "wait",
    "/v1/agents/queried/submissions/x?wait=": "wait",
    "/v1/agents/queried/events?after=now": "after",
    "/v1/agents?status=asleep": "status",
  };
  for (const [target, field] of Object.entries(bad)) assert.equal(refused(await api.get(target), 400, "invalid_request").details.field, field, target);
  refused(await api.get("/v1/agents/queried/events", { headers: { "last-event-id": "abc" } }), 400, "invalid_request");
});

test("a method that a path does not have: 405 with Allow, also for methods nobody knows", async () => {
  const allow = { "/healthz": "GET", "/v1/agents": "GET", "/v1/agents/edge": "GET, PUT, DELETE", [MESSAGES]: "POST", "/v1/agents/edge/entries": "GET" };
  for (const [target, methods] of Object.entries(allow)) {
    for (const method of ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "GET"]) {
      if (methods.includes(method)) continue;
      const response = await send(world.url, method, target, { token: TOKEN });
      refused(response, 405, "method_not_allowed");
      assert.equal(response.headers.allow, methods);
    }
  }
  assert.equal((await send(world.url, "HEAD", "/v1/agents/edge", { token: TOKEN })).status, 405);
});

test("paths that do not exist: 404", async () => {
  for (const target of ["/v1", "/v1/", "/v1/agents/", "/v1/agents/edge/", "/v1//agents", "/v2/agents", "/v1/agents/edge/messages/x", "/V1/agents", "/v1/agents/edge/events/1"]) {
    refused(await api.get(target), 404, "not_found");
  }
});

test("nothing panicked", () => noPanic(world.server.output));
