// What the tests of the HTTP edge share: a Worker with a stand-in gateway, a client for the API, event streams, polling.

import { randomUUID } from "node:crypto";
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { serve } from "../../../scripts/lib/serve.mjs";
import { apiTokens } from "../../../scripts/lib/vars.mjs";
import { startGateway } from "../../gateway/server.mjs";

export const TOKEN = "tok-acme-all-4f1d";
export const READER = "tok-acme-read-77c2";
export const WRITER = "tok-acme-write-90ab";
export const OTHER = "tok-umbrella-all-1c3e";

export const API_TOKENS = apiTokens(
  { token: TOKEN, tenant: "acme" },
  { token: READER, tenant: "acme", scopes: ["read"] },
  { token: WRITER, tenant: "acme", scopes: ["write"] },
  { token: OTHER, tenant: "umbrella" },
);

const POLL_MS = 40;
const FINAL = ["done", "unanswered"];

/** Waits until `look` gives something truthy, and gives that. Throws what it saw last when the time is over. */
export async function until(what, look, ms = 20_000) {
  const deadline = Date.now() + ms;
  let seen;
  for (;;) {
    try {
      const found = await look();
      if (found) return found;
      seen = found;
    } catch (error) {
      seen = error;
    }
    if (Date.now() > deadline) throw new Error(`not within ${ms} ms: ${what}; last: ${seen?.stack ?? JSON.stringify(seen)}`);
    await sleep(POLL_MS);
  }
}

/** A folder that goes away with the test's process. */
export function temporaryFolder() {
  const folder = mkdtempSync(path.join(tmpdir(), "agentdo-api-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/**
 * The Worker, and the stand-in gateway in this process. `vars` lie over quick deadlines; `plain` goes by
 * OPENROUTER_BASE_URL instead of the gateway's path; `gateway` are options of the stand-in.
 */
export async function startWorld({ vars = {}, plain = false, gateway: options = {}, stateDir = temporaryFolder() } = {}) {
  const gateway = await startGateway({ commentIntervalMs: 200, ...options });
  const address = plain ? { OPENROUTER_BASE_URL: `${gateway.url}/v1` } : { AI_GATEWAY_BASE_URL: `${gateway.url}/v1/acct/gw` };
  let server;
  try {
    server = await serve({
      stateDir,
      workerDir: ".",
      vars: { API_TOKENS, RETRY_BASE_MS: "20", RETRY_MAX_MS: "100", ...address, ...vars },
    });
  } catch (error) {
    await gateway.close();
    throw error;
  }
  return {
    server,
    gateway,
    stateDir,
    url: server.url,
    client: (token = TOKEN) => client(server.url, token),
    async stop() {
      await server.stop();
      await gateway.close();
    },
  };
}

/** A request by `node:http`, which sends methods, paths, headers and bodies as they are given. */
export function send(base, method, target, { token, headers = {}, body, chunked = false, timeoutMs = 90_000 } = {}) {
  const bytes = body === undefined ? undefined : Buffer.isBuffer(body) || typeof body === "string" ? Buffer.from(body) : Buffer.from(JSON.stringify(body));
  const all = { ...headers };
  if (token !== undefined) all.authorization = `Bearer ${token}`;
  if (bytes !== undefined && !chunked) all["content-length"] ??= bytes.length;
  const { hostname, port } = new URL(base);
  return new Promise((resolve, reject) => {
    const request = http.request({ hostname, port, method, path: target, headers: all, agent: false, timeout: timeoutMs }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("error", reject);
      response.on("end", () => resolve(answer(response, Buffer.concat(parts).toString())));
    });
    request.on("timeout", () => request.destroy(new Error(`${method} ${target}: no answer in ${timeoutMs} ms`)));
    // A server that refuses a body may close before all of it is sent; its answer counts.
    request.on("error", reject);
    if (bytes === undefined) return request.end();
    if (!chunked) return request.end(bytes);
    for (let at = 0; at < bytes.length; at += 65_536) request.write(bytes.subarray(at, at + 65_536));
    request.end();
  });
}

function answer(response, text) {
  let json;
  try {
    json = JSON.parse(text);
  } catch {
    // Not JSON.
  }
  return { status: response.statusCode, headers: response.headers, text, json, error: json?.error };
}

/** The error has the shape of the contract, its status and code are those expected, and its text is returned. */
export function refused(response, status, code) {
  assert.equal(response.status, status, `${response.text}`);
  hasErrorShape(response);
  assert.equal(response.error.code, code, response.text);
  return response.error;
}

export function hasErrorShape(response) {
  assert.match(response.headers["content-type"] ?? "", /^application\/json/, response.text);
  const { error } = response.json ?? {};
  assert.ok(error, `no error object: ${response.text}`);
  assert.deepEqual(Object.keys(response.json), ["error"], response.text);
  assert.deepEqual(Object.keys(error).sort(), ["code", "details", "hint", "message", "ref", "retryable"], response.text);
  for (const name of ["code", "message", "hint", "ref"]) assert.ok(typeof error[name] === "string" && error[name] !== "", `${name}: ${response.text}`);
  assert.equal(typeof error.retryable, "boolean");
  assert.ok(error.details !== null && typeof error.details === "object" && !Array.isArray(error.details));
}

export function ok(response, status = 200) {
  assert.equal(response.status, status, response.text);
  return response.json;
}

/** The API with a token. */
export function client(base, token) {
  const call = (method, target, body, options = {}) => send(base, method, target, { token, body, ...options });
  const at = (id, rest = "") => `/v1/agents/${id}${rest}`;
  const api = {
    call,
    get: (target, options) => call("GET", target, undefined, options),
    agent: async (id) => ok(await call("GET", at(id))).agent,
    configure: (id, settings) => call("PUT", at(id), { system_prompt: "You are a test.", tier: "haiku", ...settings }),
    message: (id, text, more = {}) => call("POST", at(id, "/messages"), { request_id: randomUUID(), text, ...more }),
    stop: (id, body) => call("POST", at(id, "/stop"), body),
    retry: (id) => call("POST", at(id, "/retry")),
    interrupt: (id, body) => call("POST", at(id, "/interrupt"), body),
    remove: (id) => call("DELETE", at(id)),
    submission: async (id, requestId, wait = 0) => ok(await call("GET", at(id, `/submissions/${encodeURIComponent(requestId)}?wait=${wait}`))).submission,
    entries: async (id, query = "") => ok(await call("GET", at(id, `/entries${query}`))),
    /** Sends a message and gives its submission once it has settled. */
    async ask(id, text, more = {}) {
      const { submission } = ok(await api.message(id, text, more), 202);
      return api.settled(id, submission.request_id);
    },
    settled: (id, requestId, ms = 40_000) =>
      until(`${id}/${requestId} settles`, async () => {
        const submission = await api.submission(id, requestId, 10);
        return FINAL.includes(submission.status) && submission;
      }, ms),
    status: (id, wanted, ms = 20_000) =>
      until(`${id} is ${wanted}`, async () => {
        const agent = await api.agent(id);
        return agent.status === wanted && agent;
      }, ms),
    events: (id, options) => openEvents(base, token, id, options),
  };
  return api;
}

/** A stream of server-sent events. `events` grows; each is `{id, event, data}` as it stood in the frame. */
export function openEvents(base, token, id, { after, lastEventId, onEvent } = {}) {
  const { hostname, port } = new URL(base);
  const headers = { authorization: `Bearer ${token}`, accept: "text/event-stream" };
  if (lastEventId !== undefined) headers["last-event-id"] = String(lastEventId);
  const query = after === undefined ? "" : `?after=${after}`;
  const stream = { events: [], ended: false, error: null };
  let request;
  stream.opened = new Promise((resolve, reject) => {
    request = http.get({ hostname, port, path: `/v1/agents/${id}/events${query}`, headers, agent: false }, (response) => {
      if (response.statusCode !== 200) {
        const parts = [];
        response.on("data", (part) => parts.push(part));
        response.on("end", () => reject(new Error(`events: ${response.statusCode} ${Buffer.concat(parts)}`)));
        return;
      }
      stream.headers = response.headers;
      let rest = "";
      response.setEncoding("utf8");
      response.on("data", (text) => {
        const frames = (rest + text).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          const event = parseFrame(frame);
          if (!event || stream.closed) continue;
          stream.events.push(event);
          onEvent?.(event, stream);
        }
      });
      const end = (error) => {
        stream.ended = true;
        stream.error ??= error ?? null;
      };
      response.on("end", () => end()).on("error", end).on("close", () => end());
      resolve(stream);
    });
    request.on("error", (error) => {
      stream.ended = true;
      stream.error = error;
      reject(error);
    });
  });
  stream.opened.catch(() => {});
  /** Cuts the connection as a client that vanishes does. */
  stream.vanish = () => {
    stream.closed = true;
    request.destroy();
  };
  stream.data = () => stream.events.map(({ data }) => data);
  stream.durable = () => stream.data().filter(({ seq }) => seq !== undefined);
  stream.until = (what, fits, ms) => until(`event: ${what}`, () => stream.data().find(fits), ms);
  return stream;
}

function parseFrame(frame) {
  const event = { id: undefined, event: undefined, data: "" };
  let said = false;
  for (const line of frame.split("\n")) {
    if (line.startsWith(":") || line === "") continue;
    const [, name, value] = /^(\w+): (.*)$/.exec(line) ?? assert.fail(`a line that is no field: ${JSON.stringify(line)}`);
    said = true;
    if (name === "data") event.data += value;
    else event[name] = value;
  }
  if (!said) return null;
  event.data = JSON.parse(event.data);
  return event;
}

/** The same events by WebSocket, as a browser opens it. */
export function openSocket(base, token, id, { after, onEvent } = {}) {
  const query = after === undefined ? "" : `?after=${after}`;
  const socket = new WebSocket(`${base.replace("http", "ws")}/v1/agents/${id}/events${query}`, ["agentdo.v1", `bearer.${token}`]);
  const stream = { events: [], socket, closed: false };
  stream.opened = new Promise((resolve, reject) => {
    socket.addEventListener("open", () => resolve(stream));
    socket.addEventListener("error", (event) => reject(event.error ?? new Error("the socket failed")));
  });
  stream.opened.catch(() => {});
  socket.addEventListener("message", ({ data }) => {
    if (stream.closed) return;
    const event = JSON.parse(data);
    stream.events.push({ data: event });
    onEvent?.({ data: event }, stream);
  });
  stream.vanish = () => {
    stream.closed = true;
    socket.close();
  };
  stream.data = () => stream.events.map(({ data }) => data);
  stream.durable = () => stream.data().filter(({ seq }) => seq !== undefined);
  stream.until = (what, fits, ms) => until(`event: ${what}`, () => stream.data().find(fits), ms);
  return stream;
}

/** Nothing in the Worker's output that must never be there. */
export function noPanic(output) {
  const found = /.*(panicked|Critical error|unreachable executed|RuntimeError).*/i.exec(output);
  assert.equal(found, null, `in the Worker's output: ${found?.[0]}`);
}
