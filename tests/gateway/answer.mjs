// Plays one turn to one client: holds, delays, frames, and the faults a script asks for.

import { STATUS_CODES } from "node:http";
import { gatewayError, openrouterError } from "./errors.mjs";
import { holdsOf, WHOLE_FAULTS } from "./scenario.mjs";
import { completionOf, framesOf, newId, responseHead, withCallIds } from "./stream.mjs";

/** `context`: `{body, headers, throughGateway, comment_interval_ms}` of the request. */
export async function play(exchange, scripted, context) {
  const turn = withCallIds(scripted);
  const holds = holdsOf(turn);
  const job = { turn, holds, fault: turn.fault ?? null, ...context, head: responseHead(turn, context.body) };
  for (const hold of holds.filter(isBeforeHead)) {
    if (!(await exchange.hold(hold.name))) return;
  }
  if (job.fault?.kind === "cut" && job.fault.before_head) return exchange.cut("cut");
  if (WHOLE_FAULTS.has(job.fault?.kind)) return playWhole(exchange, job);
  return context.body.stream === true ? playStream(exchange, job) : playPlain(exchange, job);
}

/** A hold that names no other place stands before the status line: the client has not one byte. */
const isBeforeHead = ({ at, after_chunks }) => after_chunks === undefined && at !== "first_chunk";
const placeOf = (hold) => (isBeforeHead(hold) ? null : (hold.after_chunks ?? 0));

function responseHeaders({ turn, head, headers, throughGateway }) {
  const own = { "x-generation-id": head.id, ...turn.headers };
  if (!throughGateway) return own;
  return {
    "cf-aig-log-id": newId("01"),
    "cf-aig-request-id": newId(""),
    "cf-aig-event-id": headers["cf-aig-event-id"] ?? newId(""),
    "cf-aig-cache-status": "MISS",
    "cf-aig-step": "0",
    ...own,
  };
}

/** What `X-OpenRouter-Metadata: enabled` asks for. */
function routingOf({ body, head, headers }) {
  if (headers["x-openrouter-metadata"] !== "enabled") return null;
  const requested = body.models ?? [body.model];
  const attempts = [{ model: head.model, provider: head.provider, status: 200 }];
  return { requested, strategy: "stand-in", region: "local", attempt: 1, attempts, endpoints: [], pipeline: [] };
}

async function playWhole(exchange, job) {
  const { fault, turn } = job;
  await exchange.sleep(turn.first_delay_ms ?? 0);
  const { status, body, headers = {} } = wholeAnswer(job);
  const retry = fault.retry_after === undefined ? {} : { "retry-after": String(fault.retry_after) };
  const all = { ...responseHeaders(job), ...headers, ...retry, ...fault.headers };
  exchange.whole(status, all, body, { state: "fault", fault: fault.kind });
}

function wholeAnswer(job) {
  const { fault, turn, head, body } = job;
  switch (fault.kind) {
    case "html":
      return htmlPage(fault);
    case "empty":
      return { status: fault.status ?? 200, body: "", headers: { "content-type": "text/event-stream" } };
    case "json_error":
      return { status: fault.status ?? 200, body: openrouterError(fault.code ?? 502, fault.message ?? "Provider returned error", fault.metadata) };
    case "json_completion":
      return { status: 200, body: completionOf(turn, head, body, routingOf(job)) };
    case "gateway":
      return gatewayError(fault.code ?? 2005, fault);
    default:
      return httpError(fault);
  }
}

function httpError({ status = 500, body, message, metadata }) {
  return { status, body: body ?? openrouterError(status, message ?? STATUS_CODES[status] ?? "Error", metadata) };
}

function htmlPage({ status = 502, title }) {
  const heading = title ?? `${status}: ${STATUS_CODES[status] ?? "Web server is down"}`;
  const ray = newId("").slice(0, 16);
  const body = `<!DOCTYPE html>\n<html><head><title>${heading}</title></head><body><h1>${heading}</h1><p>Ray ID: ${ray}</p></body></html>\n`;
  return { status, body, headers: { "content-type": "text/html; charset=UTF-8", "cf-ray": ray } };
}

async function playPlain(exchange, job) {
  const { turn, fault, head, body, holds } = job;
  for (const hold of holds.filter((one) => !isBeforeHead(one))) {
    if (!(await exchange.hold(hold.name))) return;
  }
  await exchange.sleep(turn.first_delay_ms ?? 0);
  const headers = responseHeaders(job);
  const answer = completionOf(turn, head, body, routingOf(job));
  switch (fault?.kind) {
    case undefined:
      return exchange.whole(200, headers, answer);
    case "cut":
      return exchange.cut("cut");
    case "eof":
      return exchange.whole(200, { "content-type": "application/json", ...headers }, "", { state: "fault", fault: "eof" });
    case "stream_error":
      Object.assign(answer.choices[0], { error: inStreamError(fault), finish_reason: "error" });
      return exchange.whole(200, headers, answer, { state: "fault", fault: "stream_error" });
    default:
      return exchange.stall(fault.kind);
  }
}

async function playStream(exchange, job) {
  const { turn, head, body } = job;
  const comments = { comments: turn.comments !== false, every_ms: job.comment_interval_ms };
  exchange.head(200, { "content-type": "text/event-stream", "cache-control": "no-cache", ...responseHeaders(job) });
  if (comments.comments) exchange.comment();
  await exchange.sleep(turn.first_delay_ms ?? 0, comments);
  let sent = 0;
  for (const frame of framesOf(turn, head, body, routingOf(job))) {
    for (const hold of job.holds.filter((one) => isDue(placeOf(one), sent, frame))) {
      // Comments come while an upstream is being found, not in the middle of its words.
      if (!(await exchange.hold(hold.name, sent === 0 ? comments : {}))) return;
    }
    if (job.fault && isDue(placeOfFault(job), sent, frame)) return strike(exchange, job, comments);
    if (sent > 0 && frame.phase !== "end") await exchange.sleep(turn.delay_ms ?? 0);
    if (exchange.gone) return;
    await sendFrame(exchange, frame, turn.split_bytes);
    if (frame.phase === "end") continue;
    sent += 1;
    exchange.countChunk();
  }
  exchange.finish();
}

/** True once per place: at its chunk, or at the end when the turn is shorter than that. */
function isDue(place, sent, { phase }) {
  if (place === null) return false;
  if (place === "finish") return phase === "finish";
  if (place === "end") return phase === "end";
  return place === sent || (phase === "end" && place > sent);
}

/** A fault that names no place strikes when all is said and only the finish is missing. */
function placeOfFault({ fault, turn }) {
  if (fault.after_chunks !== undefined) return fault.after_chunks;
  if (fault.kind === "comments") return 0;
  return turn.raw ? "end" : "finish";
}

async function sendFrame(exchange, { data, raw }, splitBytes) {
  if (data !== undefined) return exchange.write(`data: ${JSON.stringify(data)}\n\n`, splitBytes);
  if (raw) return exchange.write(raw, splitBytes);
}

const inStreamError = ({ code = 502, message = "Provider disconnected", metadata = { error_type: "provider_unavailable" } }) => ({ code, message, metadata });

async function strike(exchange, { fault, head, turn }, comments) {
  switch (fault.kind) {
    case "cut":
      return exchange.cut("cut");
    case "eof":
      return exchange.finish({ state: "fault", fault: "eof" });
    case "stream_error": {
      const choices = fault.choices ?? [{ index: 0, delta: { content: "" }, finish_reason: "error" }];
      const { id, provider, model, created } = head;
      const data = { id, provider, model, object: "chat.completion.chunk", created, error: inStreamError(fault), choices };
      await sendFrame(exchange, { data }, turn.split_bytes);
      exchange.countChunk();
      if (fault.done) await exchange.write("data: [DONE]\n\n");
      return exchange.finish({ state: "fault", fault: "stream_error" });
    }
    case "comments":
      return exchange.stall("comments", { ...comments, comments: true });
    default:
      return exchange.stall(fault.kind);
  }
}
