// The side that tests talk to: what was asked, what waits, scripts, counters. Nothing here is part of the services
// the gateway stands in for.

const REQUESTS_LIMIT = 1000;
const REQUESTS_LIMIT_MAX = 10_000;

const ok = (body) => ({ status: 200, body });
const bad = (message) => ({ status: 400, body: { error: message } });

/** Answers `{status, body}` for a control path, null for any other. `gateway` is what server.mjs keeps. */
export function control(gateway, method, url, body) {
  const { pathname, searchParams: query } = url;
  const route = `${method} ${pathname}`;
  if (route === "GET /health") return ok({ ok: true });
  if (route === "GET /control/requests") return ok(listRequests(gateway.journal, query));
  if (route === "GET /control/holds") return ok({ holds: gateway.holds.waiting() });
  if (route === "GET /control/scenarios") return ok({ scenarios: gateway.scenarios.map(({ source }) => source) });
  if (route === "GET /counter") return ok({ counters: gateway.journal.counters() });
  if (route === "POST /control/reset") return ok(gateway.reset());
  if (route === "POST /control/scenario") return attempt(body, (source) => ({ added: gateway.addScenarios(source) }));
  if (route === "POST /control/token") return attempt(body, (config) => ({ token: gateway.configureToken(config) }));
  const release = /^\/control\/release\/([^/]+)$/.exec(pathname);
  if (method === "POST" && release) return releaseHold(gateway, release[1], query);
  return null;
}

function attempt(text, act) {
  try {
    return ok(act(JSON.parse(text || "{}")));
  } catch (error) {
    return bad(error.message);
  }
}

function releaseHold(gateway, name, query) {
  const count = query.has("count") ? Number(query.get("count")) : Infinity;
  if (!(count >= 1)) return bad("count must be a number of at least 1");
  const all = query.get("all") === "true";
  return ok({ released: gateway.release(decodeURIComponent(name), { all, count }) });
}

function listRequests(journal, query) {
  const after = Number(query.get("after") ?? 0);
  const limit = Math.min(Number(query.get("limit") ?? REQUESTS_LIMIT), REQUESTS_LIMIT_MAX);
  const later = journal.records().filter((record) => record.seq > after);
  const page = later.slice(0, limit).map((record) => (query.get("body") === "false" ? { ...record, body: undefined } : record));
  return { requests: page, last_seq: journal.lastSeq, more: later.length > page.length };
}

/** `POST /counter/{name}`: null for any other path. The count is taken before a hold: the deed is done, the answer is not. */
export async function counter(gateway, method, url, exchange) {
  const match = /^\/counter\/([^/]+)$/.exec(url.pathname);
  if (method !== "POST" || !match) return false;
  const count = gateway.journal.count(decodeURIComponent(match[1]), url.searchParams.get("key") ?? undefined);
  const hold = url.searchParams.get("hold");
  const open = exchange();
  if (hold && !(await open.hold(hold))) return true;
  if (count === null) open.whole(429, {}, { error: "too many counters" });
  else open.whole(200, {}, { count });
  return true;
}
