// What a turn looks like on the wire. Pure: a turn goes in, chunk objects come out; answer.mjs sends them, waits and
// breaks things. Field names and their order of arrival follow OpenRouter's stream.

import { randomBytes } from "node:crypto";

const CHUNK_CHARS = 16;
const BYTES_PER_TOKEN = 4;

export const newId = (prefix) => `${prefix}${randomBytes(12).toString("hex")}`;

/** Fixed for one response: who answers, and under which id. */
export function responseHead(turn, body) {
  const model = turn.model ?? body.models?.[0] ?? body.model;
  return { id: newId("gen-"), provider: turn.provider ?? "StandIn", model, created: Math.floor(Date.now() / 1000) };
}

/** Gives every call an id once, so that the stream and the plain form agree. An id of "" is a script's wish. */
export function withCallIds(turn) {
  if (!turn.tool_calls) return turn;
  return { ...turn, tool_calls: turn.tool_calls.map((call) => ({ ...call, id: call.id ?? newId("call_") })) };
}

/** Objects become JSON; a string goes out as it is, so that a script can cut or break it. */
function argumentsText({ arguments: value = {} }) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** By code points: half a surrogate pair cannot be sent. */
export function pieces(text, size) {
  const points = Array.from(text);
  const count = Math.ceil(points.length / size);
  return Array.from({ length: count }, (_, index) => points.slice(index * size, (index + 1) * size).join(""));
}

export function finishReason(turn) {
  return turn.finish_reason ?? (turn.tool_calls?.length > 0 ? "tool_calls" : "stop");
}

/** The scripted numbers over estimated ones; null when the script wants none. */
export function usageOf(turn, body) {
  if (turn.usage === false) return null;
  const calls = (turn.tool_calls ?? []).map((call) => call.name + argumentsText(call)).join("");
  const said = (turn.text ?? "") + (turn.reasoning ?? "") + calls;
  const tokens = (text) => Math.ceil(Buffer.byteLength(text) / BYTES_PER_TOKEN);
  const given = turn.usage ?? {};
  const prompt = given.prompt_tokens ?? tokens(JSON.stringify(body.messages));
  const completion = given.completion_tokens ?? tokens(said);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    cost: 0,
    is_byok: false,
    prompt_tokens_details: { cached_tokens: 0, cache_write_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: tokens(turn.reasoning ?? "") },
    cost_details: { upstream_inference_cost: null },
    ...given,
  };
}

/** A chunk around one delta. */
export function chunkOf(head, delta, finish = null, native = null) {
  const choice = { index: 0, delta, finish_reason: finish, native_finish_reason: native };
  const { id, provider, model, created } = head;
  return { id, provider, model, object: "chat.completion.chunk", created, choices: [choice] };
}

function* reasoningDeltas(turn, size) {
  for (const text of pieces(turn.reasoning ?? "", size)) {
    // A script's own details replace the ones that only repeat the text.
    const details = turn.reasoning_details ? {} : { reasoning_details: [{ type: "reasoning.text", text, format: "unknown", index: 0 }] };
    yield { content: "", reasoning: text, ...details };
  }
  if (turn.reasoning_details?.length === 0) yield { content: "", reasoning_details: [] };
  for (const detail of turn.reasoning_details ?? []) yield { content: "", reasoning_details: [detail] };
}

function* callDeltas(calls, size) {
  for (const [index, call] of calls.entries()) {
    const named = { index, id: call.id, type: "function", function: { name: call.name, arguments: "" } };
    yield { tool_calls: [named] };
    for (const text of pieces(argumentsText(call), size)) yield { tool_calls: [{ index, function: { arguments: text } }] };
  }
}

/**
 * The frames of a turn: `{phase: "body"|"finish"|"usage"|"end", data}` with `data` an object, or raw bytes as `raw`.
 * The last one is always `end`, so that whoever waits for a frame has a last place to do it.
 */
export function* framesOf(turn, head, body, routing = null) {
  const end = { phase: "end", raw: turn.done === false || turn.raw ? null : "data: [DONE]\n\n" };
  if (turn.raw) {
    for (const raw of [turn.raw].flat()) yield { phase: "body", raw };
    return yield end;
  }
  const size = turn.chunk_chars ?? CHUNK_CHARS;
  const usage = usageOf(turn, body);
  const everywhere = usage && turn.usage_at === "every" ? { usage } : {};
  const frame = (delta) => ({ phase: "body", data: { ...chunkOf(head, delta), ...everywhere } });
  yield frame({ role: "assistant", content: "" });
  for (const delta of reasoningDeltas(turn, size)) yield frame(delta);
  for (const text of pieces(turn.text ?? "", size)) yield frame({ content: text });
  for (const delta of callDeltas(turn.tool_calls ?? [], size)) yield frame(delta);

  const reason = finishReason(turn);
  const finish = chunkOf(head, { content: "" }, reason, turn.native_finish_reason ?? reason);
  const atEnd = (turn.usage_at ?? "end") === "end";
  yield { phase: "finish", data: { ...finish, ...(usage && !atEnd ? { usage } : {}) } };
  const { id, provider, model, object, created } = finish;
  const extra = routing ? { openrouter_metadata: routing } : {};
  if (usage && atEnd) yield { phase: "usage", data: { id, provider, model, object, created, choices: [], usage, ...extra } };
  yield end;
}

/** The same turn for a client that did not ask for a stream. */
export function completionOf(turn, head, body, routing = null) {
  const reason = finishReason(turn);
  const calls = turn.tool_calls?.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: argumentsText(call) } }));
  const message = { role: "assistant", content: turn.text ?? null, refusal: null, reasoning: turn.reasoning ?? null };
  if (turn.reasoning_details) message.reasoning_details = turn.reasoning_details;
  if (calls?.length > 0) message.tool_calls = calls;
  const choice = { index: 0, message, finish_reason: reason, native_finish_reason: turn.native_finish_reason ?? reason, logprobs: null };
  const usage = usageOf(turn, body);
  const { id, provider, model, created } = head;
  const answer = { id, provider, model, object: "chat.completion", created, choices: [choice] };
  if (usage) answer.usage = usage;
  if (routing) answer.openrouter_metadata = routing;
  return answer;
}
