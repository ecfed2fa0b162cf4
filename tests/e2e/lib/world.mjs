// What the end-to-end tests share: a Worker under real workerd, the stand-in gateway and a flag server in this process,
// and waiting for conditions. Verdicts come from the stand-in's log and counters; the API of the Worker is asked only to
// start things and, after the verdict, to see that it says the same.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { serve } from "../../../scripts/lib/serve.mjs";
import { apiTokens, DEV_TOKEN } from "../../../scripts/lib/vars.mjs";
import { startGateway } from "../../gateway/server.mjs";

/** Ends a test that can never pass; no verdict hangs on how long something takes. */
export const LIMIT_MS = 60_000;

/** Waits until `condition` gives something true, and gives it. */
export async function until(condition, what, limitMs = LIMIT_MS) {
  const start = Date.now();
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() - start > limitMs) throw new Error(`still waiting for ${typeof what === "function" ? what() : what}`);
    await pause(20);
  }
}

/** Signs of a wasm instance that died, in what workerd prints. */
const BAD_SIGNS = /Critical error|would never generate a response|panicked at|RuntimeError: unreachable|Uncaught \(|internal error; reference/gi;

/** What `before_agent_request` of the test Worker reads: who asked, and whether it may go on. */
async function startFlags() {
  const asked = [];
  const up = new Set();
  const server = createServer((request, response) => {
    const query = Object.fromEntries(new URL(request.url, "http://flags").searchParams);
    const answer = { up: up.has(query.agent) };
    asked.push({ ...query, ...answer });
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(answer));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    raise: (agent) => up.add(agent),
    lower: (agent) => up.delete(agent),
    /** Readings of an agent's hook. */
    readings: (agent) => asked.filter((reading) => reading.agent === agent),
    /** Invocations of an agent's hook. */
    invocations: (agent) => [...new Set(asked.filter((reading) => reading.agent === agent).map((reading) => reading.asked))],
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

/** Short deadlines, so that nobody waits; long ones where a test holds something. */
const VARS = {
  ALARM_AHEAD_MS: "1500",
  HOOK_PENDING_MS: "300",
  HOOK_TIMEOUT_MS: "1000",
  STOP_GRACE_MS: "700",
  STREAM_BATCH_MS: "50",
  RETRY_BASE_MS: "200",
};

/**
 * A Worker with everything around it. `options`: `workerDir`, `vars` (or a function of the gateway that gives them).
 * `close()` ends all of it and fails when workerd printed a sign of a dead instance, unless `mayDie`.
 */
export async function startWorld({ workerDir = "tests/worker", vars = {}, mayDie = false } = {}) {
  const stateDir = mkdtempSync(path.join(tmpdir(), "agentdo-e2e-"));
  const gateway = await startGateway({ commentIntervalMs: 200 });
  const flags = await startFlags();
  const options = {
    workerDir,
    stateDir,
    vars: {
      API_TOKENS: apiTokens({ token: DEV_TOKEN }),
      AI_GATEWAY_BASE_URL: `${gateway.url}/v1/acct/gw`,
      EXT_COUNTER_URL: gateway.url,
      EXT_FLAG_URL: flags.url,
      ...VARS,
      ...(typeof vars === "function" ? vars(gateway) : vars),
    },
  };
  const outputs = [];
  const watchers = new Set();
  let server = await serve(options);

  const world = {
    gateway,
    flags,
    get url() {
      return server.url;
    },
    /** All that workerd and wrangler printed. */
    get output() {
      return [...outputs, server.output].join("\n");
    },
    /** SIGKILL to all of wrangler and workerd, and a start on the same state. Nothing is asked of any agent. */
    async kill9() {
      await server.kill9();
      outputs.push(server.output);
      server = await serve(options);
    },
    async ask(method, route, body) {
      // When a wasm instance dies, requests in it hang or get a text of workerd's: with `mayDie` that is an answer too.
      const died = (status, message) => {
        if (!mayDie) throw new Error(`${method} ${route}: ${status} ${message}`);
        return { status, body: { error: { code: "died", message } } };
      };
      let response;
      let text;
      try {
        response = await fetch(`${server.url}${route}`, {
          method,
          headers: { authorization: `Bearer ${DEV_TOKEN}`, "content-type": "application/json" },
          body: body === undefined ? undefined : JSON.stringify(body),
          signal: AbortSignal.timeout(mayDie ? 3_000 : LIMIT_MS),
        });
        text = await response.text();
      } catch (error) {
        return died(0, error.message);
      }
      try {
        return { status: response.status, body: JSON.parse(text) };
      } catch {
        return died(response.status, text.slice(0, 500));
      }
    },
    /** Makes the scenario of an agent: what is said when its messages are the last or later. */
    script(agent, ...turns) {
      gateway.scenario({ name: agent, match: { contains: `[${agent}]`, in: "any" }, turns });
    },
    /** Sends an agent a message that can be told from those to others. */
    async send(agent, text, { requestId = crypto.randomUUID(), whenBusy } = {}) {
      const body = { request_id: requestId, text: `[${agent}] ${text}`, when_busy: whenBusy };
      const { status, body: answer } = await world.ask("POST", `/v1/agents/${agent}/messages`, body);
      assert.equal(status, 202, JSON.stringify(answer));
      return requestId;
    },
    async agent(agent) {
      const { status, body } = await world.ask("GET", `/v1/agents/${agent}`);
      assert.equal(status, 200, JSON.stringify(body));
      return body.agent;
    },
    async settled(agent, requestId) {
      return until(async () => {
        const { body } = await world.ask("GET", `/v1/agents/${agent}/submissions/${requestId}?wait=20`);
        return ["done", "unanswered"].includes(body.submission?.status) && body.submission;
      }, `${agent}'s ${requestId} to settle`);
    },
    async status(agent, wanted) {
      let last;
      return until(
        async () => {
          last = await world.ask("GET", `/v1/agents/${agent}`);
          if (!mayDie) assert.equal(last.status, 200, JSON.stringify(last.body));
          return last.body.agent?.status === wanted && last.body.agent;
        },
        () => `${agent} to be ${wanted}; last: ${JSON.stringify(last)}`,
      );
    },
    /** The model requests of an agent that reached the stand-in. */
    requests(agent) {
      return gateway.requests().filter((record) => record.path.endsWith("/chat/completions") && JSON.stringify(record.body).includes(`[${agent}]`));
    },
    /** Waits until so many model requests of an agent have ended well. */
    async finished(agent, count) {
      return until(
        () => {
          const found = world.requests(agent);
          assert.ok(found.length <= count, `${agent} sent more than ${count} requests: ${summary(found)}`);
          return found.length === count && found.at(-1).state === "done" && found;
        },
        () => `${count} requests of ${agent}; there are ${summary(world.requests(agent))}`,
      );
    },
    /** Watches an agent's events; `seen(test)` resolves with the first that fits. */
    watch(agent) {
      const watcher = watch(server.url, agent);
      watchers.add(watcher);
      return watcher;
    },
    /** A request of another agent arrives: whatever was on its way before has arrived as well. */
    async marker() {
      const agent = `marker-${crypto.randomUUID().slice(0, 8)}`;
      await world.send(agent, "still there?");
      await world.finished(agent, 1);
    },
    async close() {
      for (const watcher of watchers) watcher.stop();
      await server.stop();
      outputs.push(server.output);
      await gateway.close();
      await flags.close();
      rmSync(stateDir, { recursive: true, force: true });
      const signs = mayDie ? [] : [...new Set(outputs.join("\n").match(BAD_SIGNS) ?? [])];
      assert.deepEqual(signs, [], `workerd printed signs of a dead instance:\n${outputs.join("\n").slice(-4_000)}`);
    },
  };
  return world;
}

const summary = (records) => JSON.stringify(records.map(({ seq, turn, state, status, invalid }) => ({ seq, turn, state, status, invalid })));

/** Reads an agent's event stream until it breaks or is stopped; starts again while the agent is not there yet. */
function watch(url, agent) {
  const controller = new AbortController();
  const events = [];
  const waiting = new Set();
  const take = (event) => {
    events.push(event);
    for (const check of [...waiting]) check();
  };
  const read = async () => {
    let buffer = "";
    const decoder = new TextDecoder();
    while (!controller.signal.aborted) {
      const response = await fetch(`${url}/v1/agents/${agent}/events?after=0`, {
        headers: { authorization: `Bearer ${DEV_TOKEN}` },
        signal: controller.signal,
      });
      if (response.status === 404) {
        await response.arrayBuffer();
        await pause(20);
        continue;
      }
      for await (const bytes of response.body) {
        buffer += decoder.decode(bytes, { stream: true });
        const blocks = buffer.split("\n\n");
        buffer = blocks.pop();
        for (const block of blocks) {
          const data = block.split("\n").find((line) => line.startsWith("data: "));
          if (data) take(JSON.parse(data.slice(6)));
        }
      }
      return;
    }
  };
  const ended = read().catch(() => {}); // The Worker was killed, or the test is over.
  return {
    events,
    ended,
    async seen(test, what) {
      await until(() => events.some(test), () => `${what} on the stream of ${agent}; seen: ${events.map(({ type }) => type).join(" ")}`);
      return events.find(test);
    },
    stop: () => controller.abort(),
  };
}

/** Every request was one that the real services accept, and the last one ended well. */
export function valid(records) {
  for (const record of records) {
    assert.deepEqual(record.invalid ?? [], [], `request ${record.seq} is refused: ${JSON.stringify(record.body)}`);
    assert.deepEqual(record.flags ?? [], [], `request ${record.seq} is flagged`);
  }
  assert.equal(records.at(-1)?.state, "done");
}

/** A counter of the stand-in: how often, and under how many keys. */
export function counted(world, name) {
  const { count = 0, keys = [] } = world.gateway.counters[name] ?? {};
  return { count, keys: new Set(keys).size };
}

/** Roles and texts of a request's messages, without the system prompt. */
export function conversation(record) {
  return record.body.messages
    .filter(({ role }) => role !== "system")
    .map((message) => {
      const text = typeof message.content === "string" ? message.content : (message.content ?? []).map((part) => part.text).join("");
      return [message.role, message.tool_calls ? message.tool_calls.map((call) => call.function.name).join(",") : text];
    });
}
