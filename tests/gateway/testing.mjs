// What the tests share: asking, reading a stream, waiting for a condition.

import { setTimeout as pause } from "node:timers/promises";
import { startGateway } from "./server.mjs";

export const THROUGH_GATEWAY = "/v1/acct/gw/openrouter/v1/chat/completions";
export const PLAIN = "/v1/chat/completions";

export const user = (content) => ({ role: "user", content });
export const said = (content) => ({ role: "assistant", content });
export const called = (...ids) => ({
  role: "assistant",
  content: null,
  tool_calls: ids.map((id) => ({ id, type: "function", function: { name: "look", arguments: "{}" } })),
});
export const result = (id, content = "seen") => ({ role: "tool", tool_call_id: id, content });
export const look = { type: "function", function: { name: "look", description: "Looks.", parameters: { type: "object", properties: {} } } };

/** Starts one that ends with the test. */
export async function started(t, options = {}) {
  const gateway = await startGateway({ commentIntervalMs: 5, ...options });
  t.after(() => gateway.close());
  return gateway;
}

export function ask(gateway, body, { path = PLAIN, headers = {}, signal, raw } = {}) {
  const full = { model: "m:free", stream: true, messages: [user("hi")], ...body };
  return fetch(gateway.url + path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: raw ?? JSON.stringify(full),
    signal,
  });
}

/** The events of a stream: parsed objects, "[DONE]", and how it ended. */
export async function readStream(response) {
  let text = "";
  let broken = false;
  const decoder = new TextDecoder();
  try {
    for await (const bytes of response.body) text += decoder.decode(bytes, { stream: true });
  } catch {
    broken = true;
  }
  const blocks = text.split("\n\n").filter((block) => block !== "");
  const data = blocks.filter((block) => block.startsWith("data: ")).map((block) => block.slice(6));
  const chunks = data.filter((one) => one !== "[DONE]").map((one) => JSON.parse(one));
  const deltas = chunks.map((chunk) => chunk.choices[0]?.delta ?? {});
  return {
    broken,
    text,
    chunks,
    comments: blocks.filter((block) => block.startsWith(":")).length,
    done: data.at(-1) === "[DONE]",
    content: deltas.map((delta) => delta.content ?? "").join(""),
    reasoning: deltas.map((delta) => delta.reasoning ?? "").join(""),
    finish: chunks.map((chunk) => chunk.choices[0]?.finish_reason).find((reason) => reason != null),
    usage: chunks.map((chunk) => chunk.usage).filter(Boolean),
    calls: joinCalls(deltas),
  };
}

function joinCalls(deltas) {
  const calls = [];
  for (const part of deltas.flatMap((delta) => delta.tool_calls ?? [])) {
    const call = (calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" });
    call.arguments += part.function.arguments;
  }
  return calls;
}

export const stream = async (...args) => readStream(await ask(...args));

export async function post(gateway, path, body) {
  const response = await fetch(gateway.url + path, { method: "POST", body: body === undefined ? undefined : JSON.stringify(body) });
  return { status: response.status, ...(await response.json()) };
}

export const get = async (gateway, path) => (await fetch(gateway.url + path)).json();

/** Waits until `condition` gives something true; the limit only ends a test that can never pass. */
export async function until(condition, what, limitMs = 10_000) {
  const start = Date.now();
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() - start > limitMs) throw new Error(`still waiting for ${what}`);
    await pause(2);
  }
}
