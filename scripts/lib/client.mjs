// A small client of the HTTP API, for the scripts: requests, and the events of an agent as they come.

import { setTimeout as sleep } from "node:timers/promises";

/** Asks the API; an answer that is no 2xx is an error unless it stands in `allow`. */
export async function api(base, token, method, path, body, { allow = [] } = {}) {
  const response = await fetch(base + path, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(90_000),
  });
  const text = await response.text();
  if (!response.ok && !allow.includes(response.status)) {
    throw new Error(`${method} ${path} answered ${response.status}: ${text.slice(0, 500)}`);
  }
  return { status: response.status, ...JSON.parse(text) };
}

/** What the stand-in gateway says of itself. */
export async function control(gateway, method, path, body) {
  const response = await fetch(`${gateway.url}${path}`, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`stand-in: ${method} ${path} answered ${response.status}: ${text.slice(0, 500)}`);
  return JSON.parse(text);
}

/** The model requests the stand-in got after `seq`, oldest first. */
export async function requestsAfter(gateway, seq = 0, { body = true } = {}) {
  const found = [];
  for (;;) {
    const page = await control(gateway, "GET", `/control/requests?after=${seq}&limit=2000&body=${body}`);
    found.push(...page.requests);
    if (!page.more || page.requests.length === 0) return found;
    seq = page.requests.at(-1).seq;
  }
}

/** Waits until `look` gives something true, and gives that. */
export async function until(look, what, { ms = 60_000, every = 20 } = {}) {
  const deadline = Date.now() + ms;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`waited ${ms / 1000} s in vain for ${what}`);
    await sleep(every);
  }
}

/**
 * Follows the events of an agent after number `after`. Each event goes to `see`; `ended` resolves when the connection is
 * over, however it ended.
 */
export async function follow({ base, token, agent, after, see }) {
  const aborter = new AbortController();
  const response = await fetch(`${base}/v1/agents/${agent}/events`, {
    headers: { authorization: `Bearer ${token}`, accept: "text/event-stream", "last-event-id": String(after) },
    signal: aborter.signal,
  });
  if (response.status !== 200) throw new Error(`the events answered ${response.status}: ${await response.text()}`);
  const read = async () => {
    const decoder = new TextDecoder();
    let text = "";
    try {
      for await (const bytes of response.body) {
        text += decoder.decode(bytes, { stream: true });
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
          const event = parse(text.slice(0, end));
          text = text.slice(end + 2);
          if (event) see(event);
        }
      }
    } catch (error) {
      // The server was killed, or we left. What it was said by then counts.
      if (!aborter.signal.aborted && error.name !== "TypeError" && error.name !== "AbortError") throw error;
    }
  };
  const ended = read();
  ended.catch(() => {}); // Its reader may come later.
  return {
    ended,
    async close() {
      aborter.abort();
      await ended;
    },
  };
}

function parse(block) {
  const fields = { data: [] };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
    if (name === "data") fields.data.push(value);
    else if (name) fields[name] = value;
  }
  if (fields.data.length === 0) return undefined; // A comment.
  return { id: fields.id === undefined ? undefined : Number(fields.id), ...JSON.parse(fields.data.join("\n")) };
}
