// Random requests, from a seed that is printed: no answer is a failure of ours, the wasm instance stays the same, and
// nothing panics. FUZZ_MS is how long (a minute), SEED which.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before, test } from "node:test";
import { hasErrorShape, noPanic, ok, send, startWorld, TOKEN } from "./lib/api.mjs";

const FUZZ_MS = Number(process.env.FUZZ_MS ?? 60_000);
const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000_000);
const AT_ONCE = 4;
const DOCUMENTED_503 = ["storage_unavailable", "agent_unavailable"];

let world;
before(async () => {
  world = await startWorld();
});
after(() => world?.stop());

/** A random source that can be repeated, and what is picked with it. */
function source(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
  const below = (limit) => Math.floor(next() * limit);
  return { next, below, chance: (part) => next() < part, pick: (list) => list[below(list.length)] };
}

const METHODS = ["GET", "GET", "POST", "POST", "PUT", "PATCH", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "get", "TRACE"];
const IDS = ["fuzz-new", "a".repeat(64), "a".repeat(65), "..", "%2e%2e", "%00", "%ff", "%", "%zz", "a%2Fb", "%F0%9F%A6%80", "", "*", "__proto__", "constructor", "'; DROP TABLE agent; --".replaceAll(" ", "%20")];
const RESTS = ["", "", "/messages", "/messages", "/messages", "/stop", "/interrupt", "/retry", "/signals/go", "/signals/%0a", "/signals/%F0%9F%A6%80", "/entries", "/events", "/submissions/r1", "/submissions/%2F", "/nothing", "/", "//", "/messages/../stop"];
const PATHS = ["/healthz", "/v1/agents", "/v1/extensions", "/v1/changes", "/v1/budget", "/", "/v1", "//v1/agents", "/healthz/", "/v1/agents/%2e%2e/%2e%2e/healthz", "/cdn-cgi", "/%", "/\\", "/v1/agents;x=1"];
const NUMBERS = ["0", "1", "-1", "1e9", "99999999999999999999999", "9007199254740991", "9007199254740992", "0x10", "NaN", "", "1.5", "%31", "٣", "+1", " 1"];
const WORDS = ["", "x", "ü🦀", "\u0000", "\ud800", "a".repeat(70_000), "\u202e", "<script>", "${x}", "\\", '"', "\r\n\r\nHTTP/1.1 200"];

/** What is right, to be made wrong in one place or another: method, rest of the path. */
const ROUTES = [
  ["GET", ""], ["PUT", ""], ["POST", "/messages"], ["POST", "/messages"], ["POST", "/messages"], ["POST", "/stop"], ["POST", "/retry"], ["POST", "/interrupt"],
  ["POST", "/signals/go"], ["GET", "/entries"], ["GET", "/events"], ["GET", "/submissions/r1"],
];

/** Mostly an agent that is there; a deletion comes now and then, and new ids take the place. */
function place(random, serial) {
  const id = () => (random.chance(0.8) ? `fuzz-${random.below(4) + Math.floor(serial / 400)}` : random.pick(IDS));
  if (random.chance(0.6)) {
    const [method, rest] = random.chance(0.02) ? ["DELETE", ""] : random.pick(ROUTES);
    return { method, path: query(random, `/v1/agents/${id()}${rest}`, 0.2) };
  }
  const path = random.chance(0.3) ? random.pick(PATHS) : `/v1/agents/${id()}${random.pick(RESTS)}`;
  const method = random.chance(0.7) ? random.pick(["GET", "POST"]) : random.pick(METHODS);
  return { method, path: query(random, path, 0.4) };
}

function query(random, path, part_) {
  if (!random.chance(part_)) return path;
  const names = ["after", "limit", "wait", "status", "cursor", "x", "%61fter", "", "after[]", "%"];
  const part = () => `${random.pick(names)}${random.pick(["=", "=", "", "=="])}${random.pick([...NUMBERS, "idle", "%00", "%ff", "&", "?", "#"])}`;
  return `${path}?${Array.from({ length: 1 + random.below(3) }, part).join("&")}`;
}

const VALID = [
  (random) => ({ request_id: `r${random.below(200)}`, text: random.pick(["hello", "again", "a longer text ".repeat(20)]), when_busy: random.pick(["steer", "follow_up", "reject"]) }),
  () => ({ request_id: "image", text: "", images: [{ type: "image", data: "iVBORw==", mime_type: "image/png" }] }),
  (random) => ({ system_prompt: "Be short.", tier: random.pick(["haiku", "sonnet", "opus"]), tools: random.pick([undefined, [], ["calculate"]]) }),
  () => ({ reason: "fuzz" }),
  () => ({ keep_queue: true }),
  () => ({}),
  (random) => ({ value: { n: [1, null, true] }, request_id: `s${random.below(50)}` }),
];

function anything(random, depth = 0) {
  const simple = () => random.pick([null, true, false, 0, -0, 1e308, -1, 2 ** 53, 0.1, ...WORDS]);
  if (depth > 3 || random.chance(0.5)) return simple();
  const many = Array.from({ length: random.below(5) }, () => anything(random, depth + 1));
  return random.chance(0.5) ? many : Object.fromEntries(many.map((value) => [random.pick(["request_id", "text", "images", "__proto__", "tier", ...WORDS.slice(0, 4)]), value]));
}

const FITTING = [[/messages$/, [0, 0, 0, 1]], [/stop$/, [3]], [/interrupt$/, [4]], [/retry$/, [5]], [/signals/, [6]], [/agents\/[^/]*$/, [2]]];

function body(random, path) {
  const fitting = FITTING.find(([pattern]) => pattern.test(path))?.[1];
  const valid = (fitting && random.chance(0.9) ? VALID[random.pick(fitting)] : random.pick(VALID))(random);
  const text = JSON.stringify(valid);
  if (random.chance(0.4)) return text;
  switch (random.below(12)) {
    case 0: {
      const bytes = Buffer.from(text);
      for (let n = 1 + random.below(4); n > 0 && bytes.length > 0; n--) bytes[random.below(bytes.length)] = random.below(256);
      return bytes;
    }
    case 1:
      return text.slice(0, random.below(text.length));
    case 2: {
      const keys = Object.keys(valid);
      if (keys.length > 0) valid[random.pick(keys)] = anything(random);
      return JSON.stringify(valid);
    }
    case 3:
      return JSON.stringify(anything(random));
    case 4: {
      const [open, close] = random.pick([["[", "]"], ['{"a":', "}"]]);
      const depth = random.pick([100, 127, 128, 129, 5_000, 150_000]);
      return `${open.repeat(depth)}1${close.repeat(depth)}`;
    }
    case 5:
      return text.replace("{", `{${text.slice(1, -1)}${text.length > 2 ? "," : ""}`);
    case 6:
      return `{"request_id":"n","text":"t","when_busy":${random.pick(["1e400", "-0", "1".repeat(5_000), "0.".padEnd(4_000, "3"), "1E-999", "00", "01"])}}`;
    case 7:
      return Buffer.from(Array.from({ length: random.below(300) }, () => random.below(256)));
    case 8:
      return `\ufeff${text}`;
    case 9:
      return "x".repeat(random.pick([1_048_575, 1_048_576, 1_048_577]));
    default:
      return text;
  }
}

function headers(random) {
  const found = {};
  const odd = [
    ["last-event-id", () => random.pick(NUMBERS.filter((text) => /^[\x20-\x7e]*$/.test(text)))],
    ["range", () => "bytes=0-10,5-"],
    ["content-type", () => random.pick(["text/plain", "application/json; charset=utf-16", "", "multipart/form-data"])],
    ["content-encoding", () => random.pick(["gzip", "br", "identity", "x"])],
    ["accept", () => random.pick(["text/event-stream", "*/*", "image/png;q=0"])],
    ["if-none-match", () => "*"],
    ["x-forwarded-for", () => "::1, \u00ff"],
    ["cookie", () => "a=b; ".repeat(200)],
    ["origin", () => "null"],
    ["x-http-method-override", () => "DELETE"],
    ["sec-websocket-protocol", () => random.pick(["agentdo.v1", `agentdo.v1, bearer.${TOKEN}`, ",,,", "\u00e9"])],
    ["upgrade", () => random.pick(["websocket", "WebSocket", "h2c", ""])],
    ["idempotency-key", () => "x".repeat(500)],
  ];
  for (const [name, value] of odd) if (random.chance(0.08)) found[name] = value();
  if (found.upgrade && random.chance(0.5)) Object.assign(found, { connection: "Upgrade", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13" });
  const odd_ = [`bearer  ${TOKEN}`, "Bearer", "\u00ff", `Bearer ${"x".repeat(5_000)}`, undefined];
  const authorization = random.chance(0.95) ? `Bearer ${TOKEN}` : random.pick(odd_);
  if (authorization !== undefined) found.authorization = authorization;
  return found;
}

/** One request on a socket of its own, byte for byte; the answer's head and what of its body comes within a moment. */
function exchange({ method, path, list, payload, chunked }) {
  const lines = [`${method} ${path} HTTP/1.1`, `Host: 127.0.0.1:${world.server.port}`];
  for (const [name, value] of Object.entries(list)) lines.push(`${name}: ${value}`);
  const bytes = payload === undefined ? undefined : Buffer.from(payload);
  if (bytes) lines.push(chunked ? "Transfer-Encoding: chunked" : `Content-Length: ${bytes.length}`);
  if (!list.connection) lines.push("Connection: close");
  const head = Buffer.from(`${lines.join("\r\n")}\r\n\r\n`, "latin1");
  const parts = [head];
  if (bytes && chunked) parts.push(Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from(bytes.length > 0 ? "\r\n0\r\n\r\n" : "\r\n"));
  else if (bytes) parts.push(bytes);
  return new Promise((resolve, reject) => {
    let got = "";
    const socket = net.connect(world.server.port, "127.0.0.1");
    const done = () => {
      clearTimeout(late);
      socket.destroy();
      resolve(parse(got));
    };
    const late = setTimeout(() => {
      socket.destroy();
      reject(new Error(`no answer in 30 s; got ${JSON.stringify(got.slice(0, 500))}`));
    }, 30_000);
    socket.setEncoding("utf8");
    socket.on("data", (text) => {
      got += text;
      // Streams do not end, and after an upgrade there is no HTTP any more.
      if (complete(got, method)) done();
    });
    socket.on("close", done);
    socket.on("error", done);
    socket.on("connect", () => socket.write(Buffer.concat(parts)));
  });
}

/** Whether all of the answer is there: a server need not close the connection, and streams do not end. */
function complete(got, method) {
  const end = got.indexOf("\r\n\r\n");
  if (end < 0) return false;
  const head = got.slice(0, end);
  if (method === "HEAD" || head.startsWith("HTTP/1.1 101") || /^content-type: text\/event-stream/im.test(head)) return true;
  if (/^transfer-encoding: chunked/im.test(head)) return got.endsWith("0\r\n\r\n");
  const length = /^content-length: (\d+)/im.exec(head)?.[1];
  return length !== undefined && Buffer.byteLength(got.slice(end + 4)) >= Number(length);
}

function parse(text) {
  const end = text.indexOf("\r\n\r\n");
  if (end < 0) return { status: 0, text };
  const [first, ...lines] = text.slice(0, end).split("\r\n");
  const found = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")).toLowerCase(), line.slice(line.indexOf(":") + 1).trim()]));
  let rest = text.slice(end + 4);
  if (found["transfer-encoding"] === "chunked") rest = rest.replace(/^[0-9a-f]+\r\n/gim, "").replace(/\r\n/g, "");
  let json;
  try {
    json = JSON.parse(rest);
  } catch {
    // Not JSON.
  }
  return { status: Number(first.split(" ")[1]), headers: found, text: rest, json, error: json?.error };
}

test(`${FUZZ_MS} ms of random requests`, async (t) => {
  t.diagnostic(`SEED=${SEED}`);
  const { instance } = ok(await send(world.url, "GET", "/healthz"));
  for (const id of ["fuzz-0", "fuzz-1", "fuzz-2", "fuzz-3"]) await world.client().ask(id, "hello");
  const until = Date.now() + FUZZ_MS;
  const counts = new Map();
  let number = 0;

  const worker = async () => {
    while (Date.now() < until) {
      // A seed for each request: one that failed can be sent again alone.
      const seed = SEED + number++;
      const random = source(seed);
      const { method, path } = place(random, seed - SEED);
      const withBody = !["GET", "HEAD"].includes(method) ? random.chance(0.9) : random.chance(0.05);
      const request = { method, path, list: headers(random), payload: withBody ? body(random, path) : undefined, chunked: random.chance(0.3) };
      request.path = request.path.replace(/[^\x21-\x7e]/g, (char) => (random.chance(0.5) ? encodeURIComponent(char) : ""));
      const told = () => `seed ${seed}: ${JSON.stringify({ ...request, payload: request.payload?.toString().slice(0, 300) })}`;
      const response = await exchange(request).catch((error) => assert.fail(`${error.message}\n${told()}`));
      counts.set(response.status, (counts.get(response.status) ?? 0) + 1);
      // What the server in front of us refuses as no HTTP, or answers itself, never reached us.
      if (response.status === 0 || !ours(response, request)) continue;
      try {
        if (response.status >= 500) assert.ok(response.status === 503 && DOCUMENTED_503.includes(response.error?.code), `${response.status} ${response.text}`);
        if (response.status >= 400 && request.method !== "HEAD") hasErrorShape(response);
      } catch (error) {
        error.message += `\n${told()}`;
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));

  t.diagnostic(`${number} requests: ${[...counts].sort(([a], [b]) => a - b).map(([status, count]) => `${status || "none"}: ${count}`).join(", ")}`);
  assert.ok((counts.get(0) ?? 0) < number / 4, "too many requests had no answer at all");
  assert.equal(ok(await send(world.url, "GET", "/healthz", { timeoutMs: 30_000 })).instance, instance, "the wasm instance was rebuilt");
  noPanic(world.server.output);
  // All is as usual afterwards.
  assert.equal((await world.client().ask("after-the-fuzz", "hello")).status, "done");
  assert.deepEqual(world.gateway.requests().filter(({ invalid }) => invalid), []);
});

/** Whether the Worker answered, and not Node or workerd in front of it. */
function ours({ headers: found, text, status }, request) {
  if (request.path.startsWith("/cdn-cgi")) return false;
  const bare = [400, 404, 426, 431, 501, 505].includes(status) && !found["content-type"]?.startsWith("application/json");
  return !(bare && text.length < 400);
}
