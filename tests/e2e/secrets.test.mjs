// No credential shows up anywhere: not in the log, an answer, an event, an entry or an error, even when the provider says
// it back.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { apiTokens } from "../../scripts/lib/vars.mjs";
import { noPanic, openEvents, refused, send, startWorld } from "./lib/api.mjs";

// Without a form that gives them away: what is taken out must be taken out because it is configured.
const SECRETS = {
  OPENROUTER_API_KEY: "QmlhZGhvcnNlS2V5Nzc3",
  AI_GATEWAY_TOKEN: "ZGF5dGltZS1nYXRld2F5LTk5",
  WORKERS_AI_TOKEN: "Y2xhc3NpZmllci10b2tlbi01NQ",
};
const API_TOKEN = "YXBpLXRva2VuLWZvci10ZXN0cw";
const ALL = [...Object.values(SECRETS), API_TOKEN];

let world;
const seen = [];
before(async () => {
  world = await startWorld({ vars: { ...SECRETS, API_TOKENS: apiTokens({ token: API_TOKEN, tenant: "acme" }) }, gateway: { token: SECRETS.AI_GATEWAY_TOKEN, requireAuth: true } });
});
after(() => world?.stop());

function clean(text, where) {
  for (const secret of ALL) assert.ok(!text.includes(secret), `${where} has ${secret.slice(0, 4)}…: ${text.slice(Math.max(0, text.indexOf(secret) - 200), text.indexOf(secret) + 60)}`);
}

const echo = `key ${SECRETS.OPENROUTER_API_KEY} and gateway ${SECRETS.AI_GATEWAY_TOKEN} were refused`;
const FAULTS = {
  unauthorized: { kind: "http", status: 401, message: echo },
  bearer: { kind: "http", status: 400, message: `Authorization: Bearer ${SECRETS.OPENROUTER_API_KEY}` },
  upstream: { kind: "http", status: 502, message: "Provider returned error", metadata: { raw: JSON.stringify({ error: { message: echo } }) } },
  stream: { kind: "stream_error", after_chunks: 2, code: 401, message: echo },
  whole: { kind: "json_error", code: 401, message: echo },
  page: { kind: "html", status: 403, title: echo },
  gateway: { kind: "gateway", code: 2009, message: echo },
};

test("errors that say a credential back", async () => {
  const api = world.client(API_TOKEN);
  for (const [name, fault] of Object.entries(FAULTS)) {
    world.gateway.scenario({ name, match: { contains: `case ${name}` }, turns: [{ text: "Never.", fault }] });
    const submission = await api.ask(name, `case ${name}`);
    assert.equal(submission.status, "unanswered", name);
    clean(JSON.stringify(submission), `${name}: the submission`);
    for (const rest of ["", "/entries"]) clean((await api.get(`/v1/agents/${name}${rest}`)).text, `${name}: GET ${rest}`);
    const stream = openEvents(world.url, API_TOKEN, name, { after: 0 });
    await stream.until("the run's end", ({ type }) => type === "run_ended");
    clean(JSON.stringify(stream.data()), `${name}: the events`);
    stream.vanish();
    seen.push(name);
  }
  assert.equal(seen.length, Object.keys(FAULTS).length);
});

test("the credentials are really used, each where it belongs", () => {
  const requests = world.gateway.requests();
  assert.ok(requests.length > 0);
  for (const { headers, body } of requests) {
    assert.equal(headers.authorization, `Bearer ${SECRETS.OPENROUTER_API_KEY}`);
    assert.equal(headers["cf-aig-authorization"], `Bearer ${SECRETS.AI_GATEWAY_TOKEN}`);
    clean(JSON.stringify(body), "a request's body");
  }
});

test("refusals do not repeat a token, wherever it was put", async () => {
  const responses = [
    await send(world.url, "GET", "/v1/agents", { headers: { authorization: `Basic ${API_TOKEN}` } }),
    await send(world.url, "GET", "/v1/agents", { headers: { authorization: `Bearer ${API_TOKEN} ${API_TOKEN}` } }),
    await send(world.url, "GET", "/v1/agents/x", { token: API_TOKEN, headers: { "last-event-id": "x" } }),
  ];
  for (const response of responses) clean(response.text, "a refusal");
  refused(responses[0], 401, "unauthorized");
});

test("the log has none of them", () => {
  clean(world.server.output, "the log");
  noPanic(world.server.output);
});
