// `make demo`: an agent works, its process is killed in the middle of an answer, and the same run finishes. Exits 0 only if
// all of it was really so, by our own API and by what the stand-in gateway wrote down.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { api, follow, requestsAfter, until } from "./lib/client.mjs";
import { command } from "./lib/command.mjs";
import { checks, transcript } from "./lib/demo.mjs";
import { startGateway } from "./lib/gateway.mjs";
import { ROOT, serve, UserError } from "./lib/serve.mjs";
import { apiTokens, DEV_TOKEN } from "./lib/vars.mjs";

const AGENT = "demo";
const SCRIPT = "tests/gateway/scenarios/demo.json";
const FIRST = "How many minutes does a week have? Look at the clock, too.";
const SECOND = "Write a long answer: what is two times the sum of 3 and 4, and why?";
/** The kill comes after this many pieces of the answer, and not before some of it must have been stored. */
const KILL_AFTER_DELTAS = 25;
const KILL_AFTER_MS = 1_500;
/** While work is in flight the alarm stands this far ahead. 30 s by default: the demo need not show the wait. */
const ALARM_AHEAD_MS = 3_000;

await command(async ({ atEnd }) => {
  const quiet = process.env.VERBOSE !== "1";
  const port = Number(process.env.PORT || 0);
  if (!Number.isInteger(port)) throw new UserError(`PORT=${process.env.PORT} is not a number`);
  const kept = process.env.STATE_DIR && path.resolve(ROOT, process.env.STATE_DIR);
  const stateDir = kept || mkdtempSync(path.join(tmpdir(), "agentdo-demo-"));
  if (!kept) atEnd(() => rmSync(stateDir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
  const show = transcript(process.stdout);
  const began = Date.now();

  show.title("AgentDO: an agent that survives the death of its process");
  for (const name of ["AI_GATEWAY_BASE_URL", "OPENROUTER_BASE_URL"].filter((name) => process.env[name])) {
    show.note(`${name} is set; the demo does not use it. For a real model: make dev`);
  }

  show.step("Start");
  const gateway = await startGateway({ quiet });
  atEnd(() => gateway.stop());
  const vars = {
    AI_GATEWAY_BASE_URL: gateway.baseUrl,
    API_TOKENS: apiTokens({ token: DEV_TOKEN }),
    ALARM_AHEAD_MS: String(ALARM_AHEAD_MS),
  };
  let server = await serve({ port, stateDir, vars, quiet });
  atEnd(() => server.stop());
  show.fact("model", `a stand-in for the AI Gateway, ${gateway.url}`);
  show.note("It answers by script and costs nothing; it checks and logs every request.");
  show.fact("worker", `${server.url}, state in ${stateDir}`);

  const ask = (method, where, body, options) =>
    api(server.url, DEV_TOKEN, method, `/v1/agents/${AGENT}${where}`, body, options);
  const send = (request) => ask("POST", "/messages", { request_id: request.id, text: request.text });
  const unique = Date.now().toString(36);
  const first = { id: `first-${unique}`, text: FIRST };
  const second = { id: `second-${unique}`, text: SECOND };
  // With STATE_DIR the agent may have a past, which is not shown again.
  const before = await ask("GET", "", undefined, { allow: [404] });
  const from = before.agent?.last_seq ?? 0;

  /** All durable events, in the order in which they came, over both connections. */
  const events = [];
  const live = { deltas: 0, firstDeltaAt: 0 };
  const see = (event) => {
    if (event.seq !== undefined) events.push(event);
    if (event.type === "delta") {
      if (live.deltas === 0) live.firstDeltaAt = Date.now();
      live.deltas += 1;
    }
    if (event.type === "call_started") live.deltas = 0;
    show.event(event);
  };
  const lastSeen = () => events.at(-1)?.seq ?? from;
  const settled = (request) => events.some((e) => e.type === "submission" && e.request_id === request.id);
  const runEnded = (id) => events.some((e) => e.type === "run_ended" && e.run_id === id);
  const runOf = (request) => {
    // The run that placed the message: its entry comes with the run's id.
    const entry = events.find((e) => e.entry?.kind === "user" && textOf(e.entry.message) === request.text);
    return entry?.entry.run_id;
  };
  const idle = () => events.at(-1)?.type === "status" && events.at(-1).status === "idle";

  show.step("A message that needs two rounds of tools");
  await send(first);
  let stream = await follow({ base: server.url, token: DEV_TOKEN, agent: AGENT, after: from, see });
  await until(() => settled(first) && runEnded(runOf(first)) && idle(), "the first answer");

  show.step("A second message, and a kill -9 in the middle of its answer");
  const firstEvents = events.length;
  await send(second);
  await until(
    () => {
      const answering = events.slice(firstEvents).some((e) => e.type === "call_started" && e.call === 2);
      const streamed = live.deltas >= KILL_AFTER_DELTAS && Date.now() - live.firstDeltaAt >= KILL_AFTER_MS;
      return answering && streamed;
    },
    "the middle of the second answer",
  );
  const killed = { pid: server.pid, lastSeq: lastSeen(), text: show.streamed(), run: runOf(second) };
  await server.kill9();
  await stream.ended;
  const logged = (await requestsAfter(gateway)).at(-1).seq;
  show.loud(`kill -9: process group ${killed.pid} is dead (wrangler and workerd)`);
  await sleep(300);

  show.step("The same state again; nobody asks for anything");
  const restarted = Date.now();
  server = await serve({ port, stateDir, vars, quiet });
  show.fact("worker", `${server.url}, same state; no client is connected`);
  // Only the stand-in is watched: a request to the object would wake it.
  const [resumed] = await until(
    async () => {
      const found = await requestsAfter(gateway, logged, { body: false });
      return found.length > 0 && found;
    },
    "the run to go on by itself",
    { ms: 30_000 },
  );
  const seconds = ((Date.parse(resumed.at) - restarted) / 1000).toFixed(1);
  show.loud(`its alarm woke it: ${seconds} s after the start it asked the model again`);
  show.fact("client", `connects again, with Last-Event-ID: ${killed.lastSeq}`);
  stream = await follow({ base: server.url, token: DEV_TOKEN, agent: AGENT, after: killed.lastSeq, see });
  await until(() => settled(second) && runEnded(runOf(second)) && idle(), "the second answer");
  await stream.close();

  show.step("Was it really so?");
  const submissions = {};
  for (const request of [first, second]) submissions[request.id] = (await ask("GET", `/submissions/${request.id}`)).submission;
  const { agent } = await ask("GET", "");
  const replay = [];
  const again = await follow({
    base: server.url, token: DEV_TOKEN, agent: AGENT, after: from, see: (event) => event.seq !== undefined && replay.push(event),
  });
  await until(() => (replay.at(-1)?.seq ?? 0) >= agent.last_seq, "the replay");
  await again.close();
  const results = checks({
    from, events, replay, agent, first, second, submissions, killed,
    requests: await requestsAfter(gateway),
    script: JSON.parse(readFileSync(path.join(ROOT, SCRIPT), "utf8")).scenarios,
  });
  for (const { what, wrong } of results) show.check(what, wrong);

  const failed = results.filter(({ wrong }) => wrong !== undefined).length;
  show.end(
    failed === 0
      ? `All ${results.length} are so (${Math.round((Date.now() - began) / 1000)} s).`
      : `${failed} of ${results.length} are NOT so.`,
    failed === 0,
  );
  if (kept) show.note(`The state is kept in ${stateDir}`);
  if (failed > 0 && quiet) show.note("VERBOSE=1 shows the logs.");
  return failed === 0 ? 0 : 1;
});

function textOf(message) {
  return message.content.map((block) => block.text ?? "").join("");
}
