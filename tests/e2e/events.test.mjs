// Event streams: replay and live, each durable event once and in order, and clients that vanish pin nothing.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { noPanic, ok, openEvents, openSocket, startWorld, TOKEN, until } from "./lib/api.mjs";

let world;
let api;
before(async () => {
  world = await startWorld({ vars: { KEEP_ALIVE_MS: "1000" } });
  api = world.client();
});
after(() => world?.stop());

const script = (name, turns) => world.gateway.scenario({ name, match: { contains: name, in: "any" }, turns });
const held = (name) => until(`a request is held at ${name}`, () => world.gateway.holds()[name] > 0);
const open = (id, options) => openEvents(world.url, TOKEN, id, options);
const ended = ({ type }) => type === "run_ended";

/** Numbers without a gap or a repeat, from the one after `after`. */
function unbroken(events, after_ = 0) {
  const numbers = events.map(({ seq }) => seq);
  assert.deepEqual(numbers, numbers.map((_, index) => after_ + 1 + index));
}

/** The text of each block of each operation, put together from deltas; what was reset is void. */
function streamed(events) {
  const texts = new Map();
  for (const event of events) {
    if (event.type === "reset_delta") for (const key of [...texts.keys()]) if (key.startsWith(`${event.call}/`)) texts.delete(key);
    if (event.type !== "delta") continue;
    for (const name of ["call", "block", "offset", "text"]) assert.ok(name in event, name);
    assert.equal(event.seq, undefined, "a delta has no seq");
    const key = `${event.call}/${event.block}`;
    const before_ = texts.get(key) ?? "";
    assert.equal(event.offset, before_.length, `the next piece of ${key} begins where the last ended`);
    texts.set(key, before_ + event.text);
  }
  return texts;
}

test("the stream replays and goes live; id is the seq, event the type", async () => {
  await api.ask("live", "one");
  const stream = open("live", { after: 0 });
  await stream.opened;
  assert.match(stream.headers["content-type"], /^text\/event-stream/);
  await stream.until("the first run's end", ended);
  const { submission } = ok(await api.message("live", "two"), 202);
  await api.settled("live", submission.request_id);
  await stream.until("the second run's end", ({ type, seq }) => type === "status" && seq === stream.durable().at(-1).seq && stream.durable().filter(ended).length === 2);
  for (const { id, event, data } of stream.events) {
    assert.equal(event, data.type);
    assert.equal(id, data.seq === undefined ? undefined : String(data.seq));
  }
  unbroken(stream.durable());
  const types = new Set(stream.data().map(({ type }) => type));
  for (const type of ["entry", "call_started", "call_ended", "run_started", "run_ended", "status"]) assert.ok(types.has(type), type);
  // What the stream shows is what the routes show.
  const { entries } = await api.entries("live");
  assert.deepEqual(stream.data().filter(({ type }) => type === "entry").map(({ seq, entry }) => [seq, entry.id]), entries.map(({ seq, id }) => [seq, id]));
  assert.equal((await api.agent("live")).last_seq, stream.durable().at(-1).seq);
  stream.vanish();

  const last = entries.at(-1).seq;
  const later = open("live", { after: last });
  await later.until("what follows", ended);
  unbroken(later.durable(), last);
  later.vanish();
  // The later of both places counts.
  const both = open("live", { after: 1, lastEventId: last });
  await both.until("what follows", ended);
  unbroken(both.durable(), last);
  both.vanish();
});

test("a tool's start and end are shown", async () => {
  script("tooled", [{ tool_calls: [{ name: "calculate", arguments: { expression: "2+2" } }] }, { text: "Four." }]);
  const settled = await api.ask("tooled", "tooled");
  assert.equal(settled.answer.text, "Four.");
  const stream = open("tooled");
  await stream.until("the end", ended);
  const types = stream.durable().map(({ type }) => type);
  assert.ok(types.indexOf("tool_started") > 0 && types.indexOf("tool_started") < types.indexOf("tool_ended"), types.join(" "));
  stream.vanish();
});

test("who connects during a call gets the text from offset 0 first; the deltas add up to the answer", async () => {
  const text = Array.from({ length: 60 }, (_, n) => `piece ${n} with a crab 🦀 and ümlauts; `).join("");
  script("midway", [{ text, reasoning: "I think. ".repeat(10), chunk_chars: 11, hold: { name: "midway", after_chunks: 80 } }]);
  await api.ask("midway", "hello");
  const early = open("midway", { after: 0 });
  await early.opened;
  ok(await api.message("midway", "midway", { request_id: "m" }), 202);
  await held("midway");
  await early.until("some text", ({ type, kind }) => type === "delta" && kind === "text");
  const late = [open("midway", { after: 0 }), open("midway", { after: 1_000_000 })];
  for (const stream of late) {
    const first = await stream.until("the first delta", ({ type }) => type === "delta");
    assert.equal(first.offset, 0);
    assert.ok(first.text.length > 20);
  }
  const socket = openSocket(world.url, TOKEN, "midway", { after: 0 });
  assert.equal((await socket.until("the first delta", ({ type }) => type === "delta")).offset, 0);
  world.gateway.release("midway");
  const done = await api.settled("midway", "m");
  assert.equal(done.answer.text, text);
  for (const stream of [early, socket, late[0]]) {
    await stream.until("the end", ({ type, seq }) => type === "run_ended" && seq > done.entry);
    const blocks = [...streamed(stream.data().slice(stream.data().findIndex(({ seq }) => seq === done.entry) + 1))];
    assert.equal(blocks.at(-1)[1], text);
    unbroken(stream.durable());
    stream.vanish();
  }
  assert.equal([...streamed(late[1].data())].at(-1)[1], text);
  late[1].vanish();
});

/** Connects again and again from the last seq seen, cutting at random moments, until the run has ended. */
async function reconnecting(connect, times, random) {
  const seen = [];
  for (let round = 0; ; round++) {
    const lastSeq = seen.at(-1)?.seq ?? 0;
    const cutAfter = 1 + Math.floor(random() * 4);
    let pieces = 0;
    const stream = connect(lastSeq, (event, self) => {
      if (event.data.seq !== undefined) seen.push(event.data);
      if (++pieces >= cutAfter && round < times && !self.closed) self.vanish();
    });
    await stream.opened.catch((error) => {
      if (!stream.closed) throw error;
    });
    if (round < times) {
      const until_ = Date.now() + Math.floor(random() * 60);
      await until("a cut", () => stream.closed || Date.now() >= until_);
      stream.vanish();
      continue;
    }
    await until("the run's end", () => seen.some(ended) && seen.at(-1).type === "status");
    stream.vanish();
    return seen;
  }
}

/** A random source that can be repeated. */
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

test("a hundred reconnects during a stream, by SSE and by WebSocket at once: each durable event once and in order", async (t) => {
  const seed = Number(process.env.SEED ?? Date.now() % 1_000_000);
  t.diagnostic(`SEED=${seed}`);
  // Rounds of tools make durable events all through the stream; the last turn waits until both have reconnected enough.
  const round = (n) => ({ text: `Round ${n}: ${"words and words ".repeat(12)}`, chunk_chars: 24, delay_ms: 12, tool_calls: [{ name: "calculate", arguments: { expression: `${n}+${n}` } }] });
  script("reconnects", [...Array.from({ length: 12 }, (_, n) => round(n)), { text: "The end, after long text. ".repeat(20), delay_ms: 5, hold: { name: "reconnects", after_chunks: 4 } }]);
  ok(await api.message("reconnects", "reconnects", { request_id: "r" }), 202);
  const random = [seeded(seed), seeded(seed + 1)];
  const bySse = reconnecting((seq, onEvent) => open("reconnects", { lastEventId: seq, onEvent }), 100, random[0]);
  const bySocket = reconnecting((seq, onEvent) => openSocket(world.url, TOKEN, "reconnects", { after: seq, onEvent }), 100, random[1]);
  const release = until("the last turn is held", () => world.gateway.holds().reconnects > 0, 40_000).then(async () => {
    await sleep(300); // Some of the reconnects fall into this silence; nothing is decided by it.
    world.gateway.release("reconnects", { all: true });
  });
  const [sse, socket] = await Promise.all([bySse, bySocket, release]);
  await api.settled("reconnects", "r");
  const whole = open("reconnects", { after: 0 });
  await whole.until("the end", ({ type, seq }) => type === "status" && seq === sse.at(-1).seq);
  unbroken(sse);
  unbroken(socket);
  assert.deepEqual(sse, whole.durable());
  assert.deepEqual(socket, whole.durable());
  assert.equal(sse.at(-1).seq, (await api.agent("reconnects")).last_seq);
  whole.vanish();
});

test("a transcript longer than a page of the replay comes whole, also while it grows", async () => {
  const turns = Array.from({ length: 30 }, (_, n) => ({ tool_calls: Array.from({ length: 4 }, (_, m) => ({ name: "calculate", arguments: { expression: `${n}*${m}` } })) }));
  script("longone", [...turns, { text: "Enough." }]);
  ok(await api.message("longone", "longone", { request_id: "l" }), 202);
  const during = open("longone", { after: 0 });
  const done = await api.settled("longone", "l");
  assert.equal(done.answer?.text, "Enough.", JSON.stringify(done));
  const afterwards = open("longone", { after: 0 });
  const { last_seq } = await api.agent("longone");
  assert.ok(last_seq > 300, `${last_seq} events`);
  for (const stream of [during, afterwards]) {
    await stream.until("the last event", ({ seq }) => seq === last_seq);
    unbroken(stream.durable());
    stream.vanish();
  }
});

test("reset_delta comes before the retry's text, and the new text begins at offset 0", async () => {
  const text = "The answer comes in the second try, whole and well. ".repeat(4);
  script("voided", [{ text, delay_ms: 5, attempts: [{ fault: { kind: "cut", after_chunks: 6 } }] }]);
  await api.ask("voided", "hello");
  const streams = [open("voided", { after: 0 }), openSocket(world.url, TOKEN, "voided", { after: 0 })];
  await Promise.all(streams.map(({ opened }) => opened));
  const done = await api.ask("voided", "voided");
  assert.equal(done.answer.text, text);
  for (const stream of streams) {
    await stream.until("the end", ({ type, seq }) => type === "run_ended" && seq > done.entry);
    const live = stream.data().slice(stream.data().findIndex(({ seq }) => seq === done.entry));
    const types = live.map(({ type }) => type);
    const reset = types.indexOf("reset_delta");
    assert.ok(types.indexOf("delta") >= 0 && types.indexOf("delta") < reset, types.join(" "));
    assert.ok(types.indexOf("call_started", reset) > 0, "a second call follows");
    const next = live.slice(reset).find(({ type }) => type === "delta");
    assert.equal(next.offset, 0);
    assert.deepEqual([...streamed(live).values()].at(-1), text);
    unbroken(stream.durable());
    stream.vanish();
  }
});

test("clients that vanish, and clients that stay, leave no object in memory", async () => {
  await Promise.all(["gone", "kept"].map((id) => api.ask(id, "hello")));
  const clients = (id) => Array.from({ length: 10 }, () => open(id, { after: 0 }));
  const [gone, kept] = [clients("gone"), clients("kept")];
  for (const stream of [...gone, ...kept]) await stream.until("the run's end", ended);
  for (const stream of gone) stream.vanish();
  const instance = async (id) => (await api.agent(id)).instance.id;
  const first = { gone: await instance("gone"), kept: await instance("kept") };
  const agent = await api.agent("gone");
  assert.deepEqual([agent.status, agent.next_wake_at], ["idle", null]);
  for (const id of ["gone", "kept"]) {
    const deadline = Date.now() + 90_000;
    // To read an agent wakes it, so it is read rarely.
    for (let pause = 14_000; ; pause += 4_000) {
      await sleep(id === "kept" && pause === 14_000 ? 0 : pause);
      if ((await instance(id)) !== first[id]) break;
      assert.ok(Date.now() < deadline, `${id} is still the same object`);
    }
  }
  // Who stayed is still served, by the new object.
  const done = await api.ask("kept", "again");
  for (const stream of kept) {
    await stream.until("the second run's end", ({ type, seq }) => type === "run_ended" && seq > done.entry);
    unbroken(stream.durable());
    assert.equal(stream.ended, false);
    stream.vanish();
  }
});

test("nothing panicked", () => noPanic(world.server.output));
