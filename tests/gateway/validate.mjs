// What the real services refuse, the strictest upstream counted for all of them: a history that passes here passes
// everywhere. Each refusal says who makes it: `platform` (OpenRouter itself) or `upstream` (a model's provider).
// Flags are things the real services swallow in silence (or only some refuse): recorded, never answered with an error.

import { checkToolCalls, checkTools } from "./validate_tools.mjs";

const ROLES = new Set(["system", "developer", "user", "assistant", "tool"]);
const MEDIA_PARTS = { image_url: "image_url", input_audio: "input_audio", file: "file", video_url: "video_url" };
const EFFORTS = new Set(["max", "xhigh", "high", "medium", "low", "minimal", "none"]);
// OpenAI-style upstreams take at most 40 characters, Anthropic only this alphabet.
const PORTABLE_CALL_ID = /^[A-Za-z0-9_-]{1,40}$/;
const METADATA_ENTRIES_MAX = 5;

const platform = (text) => ({ by: "platform", text });
const upstream = (text) => ({ by: "upstream", text });
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Every reason to refuse this body, in the order found; empty when it is fine. */
export function refusals(body) {
  if (!isObject(body)) return [platform("Request body must be a JSON object")];
  const reasons = [...checkModels(body), ...checkParameters(body), ...checkTools(body).map(upstream)];
  if (!Array.isArray(body.messages) || body.messages.length === 0) {
    return [...reasons, platform("Input required: specify \"messages\"")];
  }
  const shapes = body.messages.flatMap(checkMessage);
  // Pairs are only meaningful between messages that have their shape.
  const pairs = shapes.length === 0 ? checkPairs(body.messages).map(upstream) : [];
  return [...reasons, ...shapes, ...pairs, ...checkToolsPresent(body), ...checkSurrogates(body)];
}

function checkModels({ model, models }) {
  const reasons = [];
  if (models !== undefined && !Array.isArray(models)) reasons.push(platform("'models' must be an array"));
  if (Array.isArray(models)) {
    if (models.length > 3) reasons.push(platform("'models' array must have 3 items or fewer."));
    if (!models.every(isName)) reasons.push(platform("'models' must hold non-empty strings"));
  }
  if (model !== undefined && !isName(model)) reasons.push(platform("'model' must be a non-empty string"));
  if (model === undefined && !(Array.isArray(models) && models.length > 0)) reasons.push(platform("No models provided"));
  return reasons;
}

const isName = (value) => typeof value === "string" && value.length > 0;
const between = (low, high) => (value) => typeof value === "number" && value >= low && value <= high;
const positive = (value) => Number.isInteger(value) && value >= 1;
const flag = (value) => typeof value === "boolean";

const PARAMETERS = {
  stream: [flag, "must be a boolean"],
  max_tokens: [positive, "must be a positive integer"],
  max_completion_tokens: [positive, "must be a positive integer"],
  temperature: [between(0, 2), "must be between 0 and 2"],
  top_p: [between(0, 1), "must be between 0 and 1"],
  parallel_tool_calls: [flag, "must be a boolean"],
  provider: [isObject, "must be an object"],
  session_id: [(value) => isName(value) && value.length <= 256, "must be a string of 1 to 256 characters"],
  stop: [(value) => typeof value === "string" || (Array.isArray(value) && value.length <= 4), "takes at most 4 entries"],
  reasoning: [(value) => isObject(value) && (value.effort == null || EFFORTS.has(value.effort)), "is not valid"],
  metadata: [isMetadata, "takes at most 16 pairs of strings (key 64, value 512 characters)"],
};

function isMetadata(value) {
  const fits = ([key, text]) => key.length <= 64 && typeof text === "string" && text.length <= 512;
  return isObject(value) && Object.keys(value).length <= 16 && Object.entries(value).every(fits);
}

function checkParameters(body) {
  return Object.entries(PARAMETERS)
    .filter(([name, [accepts]]) => body[name] !== undefined && body[name] !== null && !accepts(body[name]))
    .map(([name, [, text]]) => platform(`'${name}' ${text}`));
}

function checkMessage(message, index) {
  const at = `messages[${index}]`;
  if (!isObject(message)) return [platform(`${at} must be an object`)];
  if (!ROLES.has(message.role)) return [platform(`${at}.role is unknown: ${JSON.stringify(message.role)}`)];
  if (message.role === "assistant") return checkAssistant(message, at);
  if (message.role === "tool") return checkToolResult(message, at).map(upstream);
  if (message.tool_calls !== undefined) return [upstream(`${at}.tool_calls belongs to an assistant message only`)];
  return checkContent(message.content, at, message.role === "user").map(upstream);
}

function checkAssistant(message, at) {
  const reasons = checkToolCalls(message.tool_calls, at);
  const bare = message.content === null || message.content === undefined || message.content === "";
  if (bare && !message.tool_calls) reasons.push(`${at} must have non-empty content or tool calls`);
  if (!bare) reasons.push(...checkContent(message.content, at, false));
  return reasons.map(upstream);
}

function checkToolResult({ content, tool_call_id: id }, at) {
  const reasons = [];
  if (!isName(id)) reasons.push(`${at}.tool_call_id is missing`);
  const isText = (part) => isObject(part) && part.type === "text" && typeof part.text === "string";
  const text = typeof content === "string" || (Array.isArray(content) && content.every(isText));
  if (!text) reasons.push(`${at}.content of a tool message must be text`);
  return reasons;
}

/** Text or parts, never empty. Whitespace alone counts as empty, as one large upstream has it. */
function checkContent(content, at, mediaAllowed) {
  if (typeof content === "string") return content.trim() === "" ? [`${at}.content must not be empty`] : [];
  if (!Array.isArray(content)) return [`${at}.content must be a string or an array of parts`];
  if (content.length === 0) return [`${at}.content must not be empty`];
  return content.flatMap((part, index) => checkPart(part, `${at}.content[${index}]`, mediaAllowed));
}

function checkPart(part, at, mediaAllowed) {
  if (!isObject(part)) return [`${at} must be an object`];
  if (part.type === "text") {
    return typeof part.text === "string" && part.text.trim() !== "" ? [] : [`${at}.text must not be empty`];
  }
  const key = Object.hasOwn(MEDIA_PARTS, part.type) ? MEDIA_PARTS[part.type] : null;
  if (!key || !mediaAllowed) return [`${at}.type is not allowed here: ${JSON.stringify(part.type)}`];
  if (!isObject(part[key])) return [`${at}.${key} is missing`];
  return key === "image_url" && !isName(part.image_url.url) ? [`${at}.image_url.url is missing`] : [];
}

/** Calls and results: ids unique in the whole request, each call answered once and directly after its message. */
function checkPairs(messages) {
  const reasons = [];
  const seen = new Set();
  let open = null;
  const close = () => {
    if (open?.waiting.size > 0) {
      reasons.push(`messages[${open.index}]: tool calls without a result directly after: ${[...open.waiting].join(", ")}`);
    }
    open = null;
  };
  messages.forEach((message, index) => {
    if (message.role === "tool") {
      const id = message.tool_call_id;
      if (!open?.all.has(id)) reasons.push(`messages[${index}]: tool result ${id} has no call in the preceding assistant message`);
      else if (!open.waiting.delete(id)) reasons.push(`messages[${index}]: a second result for tool call ${id}`);
      return;
    }
    close();
    if (message.role !== "assistant" || !message.tool_calls) return;
    const ids = message.tool_calls.map((call) => call.id);
    for (const id of ids) {
      if (seen.has(id)) reasons.push(`messages[${index}]: tool call id ${id} is repeated`);
      seen.add(id);
    }
    open = { index, all: new Set(ids), waiting: new Set(ids) };
  });
  close();
  return reasons;
}

function checkToolsPresent({ messages, tools }) {
  const used = messages.some((message) => isObject(message) && (message.role === "tool" || message.tool_calls));
  return used && tools === undefined ? [upstream("'tools' is required while the messages hold tool calls")] : [];
}

/** Half a surrogate pair cannot be written as UTF-8; upstreams answer 400 "no low surrogate in string". */
function checkSurrogates(body) {
  return hasLoneSurrogate(body) ? [upstream("the body holds a lone surrogate: no low surrogate in string")] : [];
}

function hasLoneSurrogate(value) {
  if (typeof value === "string") return !value.isWellFormed();
  if (Array.isArray(value)) return value.some(hasLoneSurrogate);
  return isObject(value) && Object.entries(value).some(([key, inner]) => !key.isWellFormed() || hasLoneSurrogate(inner));
}

/** What the real services would swallow: worth a test's look, no error. */
export function flags(body, headers) {
  const messages = isObject(body) && Array.isArray(body.messages) ? body.messages.filter(isObject) : [];
  return [...flagMetadata(headers["cf-aig-metadata"]), ...flagHeaders(headers), ...flagMessages(messages)];
}

function flagMetadata(header) {
  if (header === undefined) return [];
  let metadata;
  try {
    metadata = JSON.parse(header);
  } catch {
    return ["cf-aig-metadata is not JSON"];
  }
  if (!isObject(metadata)) return ["cf-aig-metadata is not an object"];
  const found = [];
  const count = Object.keys(metadata).length;
  if (count > METADATA_ENTRIES_MAX) found.push(`cf-aig-metadata has ${count} entries: those after the fifth are dropped`);
  const scalar = (value) => ["string", "number", "boolean"].includes(typeof value);
  const odd = Object.keys(metadata).filter((key) => !scalar(metadata[key]));
  if (odd.length > 0) found.push(`cf-aig-metadata is dropped whole: not a scalar: ${odd.join(", ")}`);
  return found;
}

function flagHeaders(headers) {
  const found = [];
  if (Number(headers["cf-aig-max-attempts"] ?? 1) > 5) found.push("cf-aig-max-attempts is over 5");
  if (Number(headers["cf-aig-retry-delay"] ?? 0) > 5000) found.push("cf-aig-retry-delay is over 5000");
  return found;
}

function flagMessages(messages) {
  const found = [];
  const first = messages.find((message) => message.role !== "system" && message.role !== "developer");
  if (first && first.role !== "user") found.push("the first message after the system prompt is not from the user");
  messages.forEach((message, index) => {
    const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
    if (calls.length > 0 && message.content === "") found.push(`messages[${index}].content is "" beside tool calls: send null`);
    if (message.role === "tool" && message.content === "") found.push(`messages[${index}]: an empty tool result`);
    const odd = calls.map((call) => call?.id).filter((id) => typeof id === "string" && !PORTABLE_CALL_ID.test(id));
    if (odd.length > 0) found.push(`messages[${index}]: tool call ids not every upstream takes: ${odd.join(", ")}`);
  });
  return found;
}
