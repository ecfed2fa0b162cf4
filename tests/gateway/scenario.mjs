// A scenario scripts what the model says in one kind of conversation. Which turn is next is read from the request
// alone (how many assistant messages follow the user message that matched), so a request issued again after a crash
// gets the same turn. Only the number of the try is counted here, because no request can tell it.

import { createHash } from "node:crypto";
import { isObject } from "./validate.mjs";

const ATTEMPTS_KEPT_MAX = 100_000;

/** Kind of fault to the keys it takes besides `kind`. Those of `WHOLE_FAULTS` replace the whole response. */
export const FAULTS = {
  cut: ["after_chunks", "before_head"],
  eof: ["after_chunks"],
  stall: ["after_chunks"],
  comments: ["after_chunks"],
  stream_error: ["after_chunks", "code", "message", "metadata", "choices", "done"],
  http: ["status", "headers", "body", "message", "metadata", "retry_after"],
  html: ["status", "headers", "title"],
  empty: ["status", "headers"],
  json_error: ["status", "headers", "code", "message", "metadata"],
  json_completion: ["headers"],
  gateway: ["code", "status", "message", "headers"],
};
export const WHOLE_FAULTS = new Set(["http", "html", "empty", "json_error", "json_completion", "gateway"]);

const TURN_KEYS = new Set([
  "text", "reasoning", "reasoning_details", "tool_calls", "finish_reason", "native_finish_reason", "usage", "usage_at",
  "model", "provider", "headers", "chunk_chars", "delay_ms", "first_delay_ms", "split_bytes", "done", "raw", "hold",
  "comments", "fault", "attempts",
]);
const SCENARIO_KEYS = new Set(["name", "about", "match", "turns"]);
const MATCH_KEYS = new Set(["in", "contains", "regex", "flags", "model", "header", "tool"]);
const HOLD_KEYS = new Set(["name", "at", "after_chunks"]);

/** Refuses a typo at once: a scenario that silently does something else costs an afternoon. */
export function compileScenario(source) {
  if (!isObject(source)) throw new Error("a scenario is an object");
  const { name, match = {}, turns } = source;
  if (typeof name !== "string" || name === "") throw new Error("a scenario needs a name");
  const at = `scenario ${name}`;
  onlyKeys(source, SCENARIO_KEYS, at);
  onlyKeys(match, MATCH_KEYS, `${at}.match`);
  if (!["first", "last", "any", undefined].includes(match.in)) throw new Error(`${at}.match.in is first, last or any`);
  if (!Array.isArray(turns) || turns.length === 0) throw new Error(`${at} needs turns`);
  turns.forEach((turn, index) => checkTurn(turn, `${at}.turns[${index}]`));
  return { name, source, turns, where: match.in ?? "last", matches: textTest(match), suits: requestTest(match) };
}

function onlyKeys(value, known, at) {
  if (!isObject(value)) throw new Error(`${at} must be an object`);
  const unknown = Object.keys(value).filter((key) => !known.has(key));
  if (unknown.length > 0) throw new Error(`${at} has unknown keys: ${unknown.join(", ")}`);
}

function checkTurn(turn, at) {
  onlyKeys(turn, TURN_KEYS, at);
  for (const call of turn.tool_calls ?? []) {
    if (typeof call?.name !== "string") throw new Error(`${at}: a tool call needs a name`);
  }
  for (const hold of holdsOf(turn)) {
    onlyKeys(hold, HOLD_KEYS, `${at}.hold`);
    if (typeof hold.name !== "string" || hold.name === "") throw new Error(`${at}: a hold needs a name`);
  }
  if (turn.fault) {
    const keys = Object.hasOwn(FAULTS, turn.fault.kind) ? FAULTS[turn.fault.kind] : null;
    if (!keys) throw new Error(`${at}: unknown fault ${JSON.stringify(turn.fault.kind)}; known: ${Object.keys(FAULTS).join(", ")}`);
    onlyKeys(turn.fault, new Set(["kind", ...keys]), `${at}.fault`);
  }
  if (!["end", "finish", "every", undefined].includes(turn.usage_at)) throw new Error(`${at}.usage_at is end, finish or every`);
  (turn.attempts ?? []).forEach((attempt, index) => checkTurn(attempt, `${at}.attempts[${index}]`));
}

/** The holds of a turn in one form: a bare name stands before the first byte. */
export function holdsOf({ hold }) {
  if (hold === undefined || hold === null) return [];
  return [hold].flat().map((one) => (typeof one === "string" ? { name: one } : one));
}

function textTest({ contains, regex, flags = "" }) {
  const pattern = regex === undefined ? null : new RegExp(regex, flags);
  // String.search ignores lastIndex, so a "g" flag cannot make every second request miss.
  return (text) => (contains === undefined || text.includes(contains)) && (!pattern || text.search(pattern) >= 0);
}

function requestTest({ model, header = {}, tool }) {
  return (body, headers) => {
    const models = [body.model, ...(body.models ?? [])];
    const modelFits = model === undefined || models.some((id) => id?.includes(model));
    const headersFit = Object.entries(header).every(([key, part]) => headers[key.toLowerCase()]?.includes(part));
    const toolFits = tool === undefined || (body.tools ?? []).some((one) => one.function.name === tool);
    return modelFits && headersFit && toolFits;
  };
}

/** The text of a message, parts joined by line ends. */
export function textOf({ content }) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}

const usersOf = (messages) => messages.flatMap((message, index) => (message.role === "user" ? [index] : []));

/** `{scenario, base, turn}`: the first that matches, `base` being the index of the user message it matched. */
export function selectTurn(scenarios, body, headers) {
  const users = usersOf(body.messages);
  for (const scenario of scenarios) {
    if (!scenario.suits(body, headers)) continue;
    const candidates = { first: users.slice(0, 1), last: users.slice(-1), any: [...users].reverse() }[scenario.where];
    const base = candidates.find((index) => scenario.matches(textOf(body.messages[index])));
    if (base === undefined) continue;
    const turn = body.messages.slice(base).filter((message) => message.role === "assistant").length;
    return { scenario, base, turn, ordinal: users.indexOf(base) };
  }
  return null;
}

/** What the user said last: the answer when nothing is scripted. */
export function echoTurn(body) {
  const last = usersOf(body.messages).at(-1);
  const text = last === undefined ? "" : textOf(body.messages[last]);
  return { text: text || "Hello from the stand-in gateway." };
}

/** Names the conversation across a crash: the client's own run id where it sends one, else what was said first. */
export function conversationOf(body, headers) {
  return body.session_id ?? headers["x-session-id"] ?? runOf(headers["cf-aig-metadata"]) ?? firstWords(body);
}

function runOf(metadata) {
  try {
    return JSON.parse(metadata).run;
  } catch {
    return undefined;
  }
}

function firstWords({ messages }) {
  const first = usersOf(messages)[0];
  const text = first === undefined ? "" : textOf(messages[first]);
  return `text:${createHash("sha256").update(text).digest("hex").slice(0, 16)}`;
}

/** The turn as this try sees it: entry n of `attempts` lies over it; past the list the turn stands as written. */
export function turnForAttempt(turn, attempt) {
  const { attempts = [], ...base } = turn;
  return { ...base, ...(attempts[attempt - 1] ?? {}) };
}

/** Counts tries per (scenario, conversation, question, turn), the oldest forgotten first. */
export class Attempts {
  #counts = new Map();

  next(key) {
    const count = (this.#counts.get(key) ?? 0) + 1;
    this.#counts.delete(key);
    this.#counts.set(key, count);
    if (this.#counts.size > ATTEMPTS_KEPT_MAX) this.#counts.delete(this.#counts.keys().next().value);
    return count;
  }

  clear() {
    this.#counts.clear();
  }
}

export const attemptKey = ({ scenario, conversation, question, turn }) => JSON.stringify([scenario, conversation, question, turn]);
