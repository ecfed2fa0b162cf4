// The stand-in for Cloudflare AI Gateway in front of OpenRouter: strict as the real ones, scripted by scenarios,
// with a control side for tests. See README.md. Parts: validate (what is refused), scenario (what is said next),
// stream (how it looks), answer and exchange (how it is sent), journal (what happened), control (the tests' side).

import { readdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { play } from "./answer.mjs";
import { control, counter } from "./control.mjs";
import { gatewayError, openrouterError, refusalBody } from "./errors.mjs";
import { Exchange } from "./exchange.mjs";
import { Holds } from "./holds.mjs";
import { Journal } from "./journal.mjs";
import { attemptKey, Attempts, compileScenario, conversationOf, echoTurn, selectTurn, turnForAttempt } from "./scenario.mjs";
import { Tokens } from "./tokens.mjs";
import { flags, refusals } from "./validate.mjs";

const BODY_BYTES_MAX = 32 * 1024 * 1024;
// An upload over the limit is read on so that its sender gets to see the 413; past this it is cut.
const DRAIN_BYTES_MAX = 2 * BODY_BYTES_MAX;
const COMMENT_INTERVAL_MS = 1000;
// Node's own 5 s would close an idle connection just as a busy client takes it up again: a fault nobody scripted.
const KEEP_ALIVE_MS = 600_000;
const GATEWAY_PATH = /^\/v1\/[^/]+\/[^/]+\/openrouter\/(?:v1\/)?chat\/completions$/;
const PLAIN_PATH = /^(?:\/v1)?\/chat\/completions$/;

class Gateway {
  journal = new Journal();
  holds = new Holds();
  attempts = new Attempts();
  tokens = new Tokens();
  live = new Set();
  #initial;

  constructor({ scenarios = [], log = () => {}, requireAuth = false, token = null, commentIntervalMs = COMMENT_INTERVAL_MS }) {
    Object.assign(this, { log, requireAuth, token, commentIntervalMs });
    this.#initial = scenarios.map(compileScenario);
    this.scenarios = this.#initial;
  }

  /** Takes up where an earlier process stopped. */
  async resume(path) {
    await this.journal.open(path, (line) => {
      if (line.type === "request" && line.record.scenario) this.attempts.next(attemptKey(line.record));
      if (line.type === "scenario") this.#insert(compileScenario(line.source));
      if (line.type === "release") this.holds.release(line.name, { all: true });
      if (line.type === "token") this.tokens.configure(line.config);
    });
  }

  /** The newest stands first, so that a test can lay its own over a shared file; the same name replaces. */
  #insert(compiled) {
    this.scenarios = [compiled, ...this.scenarios.filter(({ name }) => name !== compiled.name)];
  }

  addScenarios(source) {
    const list = (source.scenarios ?? [source].flat()).map(compileScenario);
    for (const compiled of list) {
      this.#insert(compiled);
      this.journal.write({ type: "scenario", source: compiled.source });
    }
    return list.map(({ name }) => name);
  }

  configureToken(config) {
    this.tokens.configure(config);
    this.journal.write({ type: "token", config });
    return config;
  }

  release(name, options = {}) {
    if (options.all) this.journal.write({ type: "release", name });
    return this.holds.release(name, options);
  }

  /** As after the start: what is still being answered is cut, or an old test's hold would reach into the next one. */
  reset() {
    this.abandon("reset");
    this.holds.clear();
    this.attempts.clear();
    this.tokens.clear();
    this.scenarios = this.#initial;
    this.journal.reset();
    return { reset: true };
  }

  abandon(fault) {
    for (const exchange of this.live) exchange.cut(fault);
  }

  exchange(res, record = null) {
    return new Exchange({ res, record, holds: this.holds, journal: this.journal, live: this.live });
  }

  async handle(req, res) {
    const url = new URL(req.url, "http://stand-in");
    const upload = await readBody(req);
    if (upload === null) return; // The sender broke off.
    const text = upload.bytes?.toString("utf8") ?? "";
    const answer = control(this, req.method, url, text);
    if (answer) return this.exchange(res).whole(answer.status, {}, answer.body);
    if (await counter(this, req.method, url, () => this.exchange(res))) return;
    if (url.pathname === "/token" && req.method === "POST") return this.#token(req, res, url, text);
    const throughGateway = GATEWAY_PATH.test(url.pathname);
    if (req.method === "POST" && (throughGateway || PLAIN_PATH.test(url.pathname))) return this.#chat(req, res, url, upload, throughGateway);
    this.#refuse(req, res, url, { status: 404, body: openrouterError(404, "Not Found") }, ["no such path"], text || null);
  }

  #record(req, url, fields, bytes) {
    const record = this.journal.add({ method: req.method, path: url.pathname, headers: req.headers, ...fields }, bytes);
    this.log(`${record.seq} ${req.method} ${url.pathname} ${fields.scenario ?? "-"}:${fields.turn ?? "-"}${fields.invalid ? ` refused: ${fields.invalid[0]}` : ""}`);
    return record;
  }

  #refuse(req, res, url, { status, body: answer }, invalid, body, more = {}) {
    const record = this.#record(req, url, { body, invalid, ...more }, JSON.stringify(body)?.length ?? 0);
    this.exchange(res, record).whole(status, {}, answer);
  }

  async #token(req, res, url, text) {
    const form = Object.fromEntries(new URLSearchParams(text));
    const record = this.#record(req, url, { body: parseJson(text).value ?? form }, text.length);
    const exchange = this.exchange(res, record);
    const { hold } = this.tokens.config;
    if (hold && !(await exchange.hold(hold))) return;
    const { status, body } = this.tokens.issue();
    exchange.whole(status, {}, body);
  }

  async #chat(req, res, url, upload, throughGateway) {
    const refuse = (answer, invalid, body = null, more = {}) => this.#refuse(req, res, url, answer, invalid, body, more);
    if (upload.bytes === null) {
      return refuse({ status: 413, body: openrouterError(413, "Payload too large", { error_type: "payload_too_large" }) }, ["the body is over 32 MB"]);
    }
    const parsed = parseBody(upload.bytes);
    const body = parsed.value ?? null;
    if (throughGateway && !this.#gatewayAuth(req.headers)) return refuse(gatewayError(2009), ["cf-aig-authorization is missing or wrong"], body);
    if (!this.tokens.accepts(req.headers.authorization)) {
      return refuse({ status: 401, body: openrouterError(401, "No auth credentials found", { error_type: "authentication" }) }, ["the bearer is unknown or has ended"], body);
    }
    const reasons = parsed.error ? [{ by: "platform", text: parsed.error }] : refusals(body);
    const flagged = flags(body, req.headers);
    const more = flagged.length > 0 ? { flags: flagged } : {};
    if (reasons.length > 0) return refuse({ status: 400, body: refusalBody(reasons) }, reasons.map(({ text }) => text), body ?? upload.bytes.toString("utf8"), more);

    const { turn, fields } = this.#next(body, req.headers);
    const record = this.#record(req, url, { body, ...more, ...fields }, upload.bytes.length);
    const context = { body, headers: req.headers, throughGateway, comment_interval_ms: this.commentIntervalMs };
    await play(this.exchange(res, record), turn, context);
  }

  #gatewayAuth(headers) {
    if (!this.requireAuth) return true;
    const [, given] = /^Bearer (\S+)$/.exec(headers["cf-aig-authorization"] ?? "") ?? [];
    return given !== undefined && (this.token === null || given === this.token);
  }

  /** The turn to play and what the record says about it. A scenario that has run out of turns gives way to the echo. */
  #next(body, headers) {
    const conversation = conversationOf(body, headers);
    const found = selectTurn(this.scenarios, body, headers);
    if (!found) return { turn: echoTurn(body), fields: { scenario: null, conversation } };
    const { scenario, turn, ordinal: question } = found;
    const place = { scenario: scenario.name, conversation, question, turn };
    const attempt = this.attempts.next(attemptKey(place));
    const scripted = scenario.turns[turn];
    const over = scripted ? {} : { turns_over: true };
    return { turn: scripted ? turnForAttempt(scripted, attempt) : echoTurn(body), fields: { ...place, attempt, ...over } };
  }
}

/** `{bytes}`, `{bytes: null}` when over the limit, null when the sender left. */
async function readBody(req) {
  const parts = [];
  let size = 0;
  try {
    for await (const part of req) {
      size += part.length;
      if (size > DRAIN_BYTES_MAX) return req.destroy() && null;
      if (size <= BODY_BYTES_MAX) parts.push(part);
      else parts.length = 0;
    }
  } catch {
    return null;
  }
  return { bytes: size > BODY_BYTES_MAX ? null : Buffer.concat(parts) };
}

function parseJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `Request body is not JSON: ${error.message}` };
  }
}

function parseBody(bytes) {
  try {
    return parseJson(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    return { error: "Request body is not UTF-8" };
  }
}

/**
 * Starts it. Options: `port`, `host`, `scenarios` (objects), `log` (called with a line per request), `logFile`,
 * `requireAuth` (refuse a missing cf-aig-authorization on the gateway's path), `token` (the only one accepted),
 * `commentIntervalMs`.
 */
export async function startGateway({ port = 0, host = "127.0.0.1", logFile = null, ...options } = {}) {
  const gateway = new Gateway(options);
  if (logFile) await gateway.resume(logFile);
  const server = createServer({ keepAliveTimeout: KEEP_ALIVE_MS }, (req, res) => {
    gateway.handle(req, res).catch((error) => {
      console.error(`gateway: internal error: ${error.stack}`);
      if (res.headersSent) res.destroy();
      else res.writeHead(500, { "content-type": "application/json" }).end(JSON.stringify(openrouterError(500, `stand-in: ${error.message}`)));
    });
  });
  await new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, resolve);
  });
  const actual = server.address().port;
  return {
    url: `http://${host.includes(":") ? `[${host}]` : host}:${actual}`,
    port: actual,
    requests: () => gateway.journal.records(),
    holds: () => gateway.holds.waiting(),
    release: (name, releaseOptions) => gateway.release(name, releaseOptions),
    scenario: (source) => gateway.addScenarios(source),
    token: (config) => gateway.configureToken(config),
    reset: () => gateway.reset(),
    get counters() {
      return gateway.journal.counters();
    },
    async close() {
      gateway.abandon("gateway_closed");
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
      gateway.journal.close();
    },
  };
}

/** Scenarios of a file, or of every .json file of a folder in the order of their names. */
export function readScenarios(path) {
  const files = statSync(path).isDirectory() ? readdirSync(path).filter((name) => name.endsWith(".json")).sort().map((name) => join(path, name)) : [path];
  return files.flatMap((file) => {
    const content = JSON.parse(readFileSync(file, "utf8"));
    return content.scenarios ?? [content].flat();
  });
}

async function main() {
  const { values } = parseArgs({
    options: {
      port: { type: "string", default: "0" },
      host: { type: "string", default: "127.0.0.1" },
      scenarios: { type: "string" },
      log: { type: "string" },
      "require-auth": { type: "boolean", default: false },
      token: { type: "string" },
      "comment-interval-ms": { type: "string" },
      verbose: { type: "boolean", default: false },
    },
  });
  const gateway = await startGateway({
    port: Number(values.port),
    host: values.host,
    scenarios: values.scenarios ? readScenarios(values.scenarios) : [],
    logFile: values.log ?? null,
    requireAuth: values["require-auth"] || values.token !== undefined,
    token: values.token ?? null,
    ...(values["comment-interval-ms"] ? { commentIntervalMs: Number(values["comment-interval-ms"]) } : {}),
    ...(values.verbose ? { log: (line) => console.error(line) } : {}),
  });
  console.log(`gateway listening on ${gateway.url}`);
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => gateway.close().then(() => process.exit(0)));
}

// Asked through realpath: a path through a symbolic link is this file too.
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  main().catch((error) => {
    console.error(`gateway: ${error.message}`);
    process.exit(1);
  });
}
