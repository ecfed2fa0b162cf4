// Who may ask, and what a request that must not be carried out is told.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import path from "node:path";
import { ROOT } from "../../scripts/lib/serve.mjs";
import { noPanic, ok, openSocket, OTHER, READER, refused, send, startWorld, TOKEN, until, WRITER } from "./lib/api.mjs";

let world;
before(async () => {
  world = await startWorld();
});
after(() => world?.stop());

/** Every route of the table in src/http/route.rs: method, path with names filled in, scope. */
function routes() {
  const table = readFileSync(path.join(ROOT, "src/http/route.rs"), "utf8");
  const lines = [...table.matchAll(/^    line\("(\w+)", "([^"]+)", (\w+), /gm)];
  assert.ok(lines.length >= 14, "the table of routes was not found");
  return lines.map(([, method, template, scope]) => ({
    method,
    target: template.replace("{id}", "guarded").replace(/\{\w+\}/, "some"),
    scope: scope === "None" ? null : scope.toLowerCase(),
  }));
}

test("no token, a wrong one, or one sent in another way: 401 on every /v1 route, and on paths that do not exist", async () => {
  const targets = [...routes().filter(({ scope }) => scope), { method: "GET", target: "/v1/nothing" }, { method: "GET", target: "/" }];
  const hash = "Bearer 9b74c9897bac770ffc029102a200c5de";
  for (const { method, target } of targets) {
    for (const headers of [{}, { authorization: "Bearer wrong" }, { authorization: `Basic ${TOKEN}` }, { authorization: hash }]) {
      const response = await send(world.url, method, target, { headers });
      const error = refused(response, 401, "unauthorized");
      assert.equal(response.headers["www-authenticate"], "Bearer");
      assert.equal(error.retryable, false);
    }
  }
  // The protocol header carries a token for an upgrade only in that it is read; alone without agentdo.v1 it is none.
  const bare = await send(world.url, "GET", "/v1/agents", { headers: { "sec-websocket-protocol": `bearer.${TOKEN}` } });
  refused(bare, 401, "unauthorized");
});

test("the health check needs no token and says who answers", async () => {
  const health = ok(await send(world.url, "GET", "/healthz"));
  assert.equal(health.ok, true);
  assert.match(health.version, /^\d+\.\d+\.\d+/);
  assert.ok(health.instance.length > 8);
  assert.equal(ok(await send(world.url, "GET", "/healthz")).instance, health.instance);
});

test("a token without the scope: 403 naming it, and nothing happens", async () => {
  const scopes = { [READER]: ["read"], [WRITER]: ["write"] };
  for (const { method, target, scope } of routes().filter((route) => route.scope)) {
    for (const [token, has] of Object.entries(scopes)) {
      if (has.includes(scope)) continue;
      const error = refused(await send(world.url, method, target, { token, body: method === "GET" ? undefined : {} }), 403, "forbidden");
      assert.equal(error.details.scope, scope);
    }
  }
  refused(await world.client().get("/v1/agents/guarded"), 404, "not_found");
});

test("another tenant sees 404 and may have an agent of the same id", async () => {
  const [acme, umbrella] = [world.client(), world.client(OTHER)];
  await acme.ask("shared", "Acme speaks.", { request_id: "one" });
  for (const rest of ["", "/entries", "/events", "/submissions/one"]) refused(await umbrella.get(`/v1/agents/shared${rest}`), 404, "not_found");
  const theirs = await umbrella.ask("shared", "Umbrella speaks.", { request_id: "one" });
  assert.equal(theirs.answer.text, "Umbrella speaks.");
  assert.equal((await acme.submission("shared", "one")).answer.text, "Acme speaks.");
  ok(await umbrella.remove("shared"));
  refused(await umbrella.get("/v1/agents/shared"), 410, "agent_deleted");
  assert.equal((await acme.agent("shared")).status, "idle");
  await until("the lists are apart", async () => {
    const lists = await Promise.all([acme, umbrella].map(async (api) => ok(await api.get("/v1/agents")).agents.map(({ id }) => id)));
    return lists[0].includes("shared") && !lists[1].includes("shared");
  });
});

test("a browser's WebSocket sends its token as a subprotocol", async () => {
  await world.client().ask("socket", "hello");
  const stream = openSocket(world.url, TOKEN, "socket", { after: 0 });
  await stream.opened;
  assert.equal(stream.socket.protocol, "agentdo.v1");
  await stream.until("the run's end", ({ type }) => type === "run_ended");
  stream.vanish();
  for (const token of ["wrong", WRITER]) await assert.rejects(openSocket(world.url, token, "socket").opened);
  await assert.rejects(openSocket(world.url, OTHER, "socket").opened, "another tenant's agent");
});

test("each error's ref stands in the log with its code", async () => {
  const { ref } = refused(await world.client().get("/v1/agents/never-made"), 404, "not_found");
  await until("the log has the ref", () => new RegExp(`${ref} not_found`).test(world.server.output));
});

test("nothing panicked", () => noPanic(world.server.output));
