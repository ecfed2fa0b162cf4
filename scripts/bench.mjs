// `make bench`: counts and ratios beside their marks, all in one run. `BENCH_ONLY=rows,cpu` runs some of the parts,
// `BENCH_JSON=FILE` writes the figures too. docs/benchmarks.md says how each is measured.

import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Bench, median } from "./lib/bench.mjs";
import { requestsAfter, until } from "./lib/client.mjs";
import { command } from "./lib/command.mjs";
import { ROOT, UserError } from "./lib/serve.mjs";
import { sizes } from "./size.mjs";

/** What the Agents SDK was measured at, on 2 cores (its row of README.md): its figures stand beside ours, same job. */
const RIVAL = { cpuMs: 116, cpuMsAtOnce: 161, runsPerSecond: 6.2, rows: [38, 52, 66], bundleGzip: 235, startupMs: 98 };
const LATER_TURNS = 5;
const SEQUENTIAL_RUNS = 20;
const RUNS_AT_ONCE = 50;
const IDLE_WINDOW_MS = 5_000;
/** An object with nothing to do leaves memory after about 10 s. */
const EVICTION_MS = 20_000;

const TEXT = "A short answer of the usual kind, which is some sixty characters.";
const tool = (n = 1) => ({ tool_calls: Array.from({ length: n }, (_, i) => ({ name: "calculate", arguments: { expression: `${i}+1` } })) });
const fast = (turns) => turns.map((turn) => ({ delay_ms: 0, comments: false, ...turn }));

const atMost = (value, limit, unit = "") => ({ unit, mark: `at most ${limit}`, ok: value <= limit });
const atLeast = (value, limit, unit = "") => ({ unit, mark: `at least ${limit}`, ok: value >= limit });
const round = (value, digits = 1) => Number(value.toFixed(digits));

const parts = { sizes: sizePart, startup: startupPart, decode: decodePart, rows: rowsPart, stream: streamPart, growth: growthPart, idle: idlePart, cpu: cpuPart, recovery: recoveryPart };

await command(async ({ atEnd }) => {
  const chosen = process.env.BENCH_ONLY ? process.env.BENCH_ONLY.split(",") : Object.keys(parts);
  for (const name of chosen) if (!parts[name]) throw new UserError(`BENCH_ONLY: ${name} is none of ${Object.keys(parts)}`);
  const folder = mkdtempSync(path.join(tmpdir(), "agentdo-bench-"));
  atEnd(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
  const figures = [];
  let part;
  const add = (what, measured, { unit = "", mark, ok, rival, note } = {}) =>
    figures.push({ part, what, measured, unit, mark: mark ?? null, ok: ok ?? null, rival: rival ?? null, note: note ?? null });
  const bench = new Bench({ folder, atEnd, verbose: process.env.VERBOSE === "1" });
  for (part of chosen) {
    console.error(`bench: ${part} …`);
    try {
      await parts[part]({ bench, add, folder });
    } catch (error) {
      // One part that cannot be measured does not hide the others; the exit code tells.
      add("not measured", "–", { ok: false, note: error.message.split("\n")[0] });
      if (process.env.VERBOSE === "1") console.error(error);
    }
  }
  console.log(table(figures));
  if (process.env.BENCH_JSON) {
    const machine = { cores: cpus().length, cpu: cpus()[0]?.model, node: process.version, at: new Date().toISOString() };
    const file = path.resolve(ROOT, process.env.BENCH_JSON);
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, `${JSON.stringify({ machine, figures }, null, 2)}\n`);
  }
  return figures.some((figure) => figure.what === "not measured") ? 1 : 0;
});

function table(figures) {
  const rows = [["", "measured", "mark", "Agents SDK"]];
  const notes = [];
  let part;
  for (const figure of figures) {
    if (figure.part !== part) rows.push([`[${(part = figure.part)}]`, "", "", ""]);
    const verdict = figure.ok === null ? "" : figure.ok ? "  ok" : "  MISSED";
    if (figure.note) notes.push(figure.note);
    const cell = `${figure.measured}${figure.unit ? ` ${figure.unit}` : ""}`;
    rows.push([`${figure.what}${figure.note ? ` (${notes.length})` : ""}`, cell, `${figure.mark ?? ""}${verdict}`, `${figure.rival ?? ""}`]);
  }
  const width = [0, 1, 2].map((column) => Math.max(...rows.map((row) => row[column].length)));
  const lines = rows.map((row) => row.map((cell, column) => (column === 0 ? cell.padEnd(width[0]) : cell.padEnd(width[column] ?? 0))).join("  ").trimEnd());
  return ["", ...lines, "", ...notes.map((note, index) => `(${index + 1}) ${note}`)].join("\n");
}

function sizePart({ add }) {
  const measured = sizes();
  for (const [name, { raw, gzip }] of Object.entries(measured)) {
    const marked = name === "total" ? { ...atMost(gzip / 1024, 350, "KiB"), rival: RIVAL.bundleGzip } : { unit: "KiB" };
    add(`${name}, raw`, round(raw / 1024), { unit: "KiB" });
    add(`${name}, gzip`, round(gzip / 1024), marked);
  }
}

/** The profile that `wrangler check startup` takes of the Worker's start in workerd; the median of five. */
function startupPart({ add, folder, bench }) {
  const active = [];
  const own = [];
  for (let pass = 0; pass < 5; pass++) {
    const file = path.join(folder, `startup-${pass}.cpuprofile`);
    const run = bench.wrangler(["check", "startup", "--outfile", file]);
    const found = /Active: ([\d.]+) ms/.exec(run.stdout + run.stderr);
    if (!found) throw new Error(`wrangler check startup said nothing of its time: ${run.stderr.slice(0, 300)}`);
    active.push(Number(found[1]));
    const { nodes, samples, timeDeltas } = JSON.parse(readFileSync(file, "utf8"));
    const names = new Map(nodes.map((node) => [node.id, node.callFrame.functionName]));
    // `startup` is workerd's own frame: reading the modules and compiling the WebAssembly.
    const ours = samples.map((id, index) => (["startup", "(idle)", "(program)", "(root)"].includes(names.get(id)) ? 0 : timeDeltas[index]));
    own.push(ours.reduce((sum, us) => sum + us, 0) / 1000);
  }
  const whole = round(median(active));
  add("start-up, CPU", whole, { ...atMost(whole, 30, "ms"), rival: RIVAL.startupMs });
  add("… of it in our code and glue", round(median(own)), { unit: "ms", note: "The rest is workerd reading the modules and compiling the WebAssembly, which production does before the first request." });
}

/** On the host, in the profile the Worker is built with. */
function decodePart({ add }) {
  const run = spawnSync("cargo", ["run", "--release", "--quiet", "--example", "decode"], { cwd: ROOT, encoding: "utf8", maxBuffer: 1e8 });
  if (run.status !== 0) throw new Error(`cargo run --example decode failed: ${run.stderr.slice(-300)}`);
  const figures = JSON.parse(run.stdout);
  add("decoding SSE and JSON, text", figures.text_mb_per_s, atLeast(figures.text_mb_per_s, 100, "MB/s"));
  add("… a 500 KB tool call in 21,000 pieces", figures.call_in_pieces_mb_per_s, atLeast(figures.call_in_pieces_mb_per_s, 100, "MB/s"));
  add("… a 500 KB tool call in one piece", figures.call_in_one_piece_mb_per_s, atLeast(figures.call_in_one_piece_mb_per_s, 100, "MB/s"));
  add("time a byte, twice as much text / once", round(figures.text_time_growth, 2), { mark: "1 (linear)" });
  add("time a byte, twice as long a call / once", round(figures.call_time_growth, 2), { mark: "1 (linear)" });
}

async function rowsPart({ bench, add }) {
  const session = await bench.session();
  const kinds = [
    ["no tool", "bench plain", fast([{ text: TEXT }]), 12],
    ["one tool call", "bench onetool", fast([tool(1), { text: TEXT }]), 20],
    ["two tool calls in one round", "bench twotools", fast([tool(2), { text: TEXT }]), undefined],
  ];
  for (const [index, [name, says, turns, mark]] of kinds.entries()) {
    await session.script(says, turns);
    const agent = `rows-${index}`;
    const costs = [];
    for (let turn = 0; turn <= LATER_TURNS; turn++) costs.push(await session.turn(agent, says));
    const [first, ...later] = costs;
    const typical = (key) => median(later.map((cost) => cost[key]));
    const written = typical("rows_written");
    add(`rows written, ${name}`, written, { ...(mark ? atMost(written, mark) : {}), rival: RIVAL.rows[index] });
    add("… the first turn", first.rows_written);
    add("… rows in the D1 index besides", typical("index_rows"), index === 0 ? { note: "Upserts of the agent's row; each is one row and an entry in one or two indexes of D1, and none holds the turn up." } : {});
    add("… rows read", typical("rows_read"));
    add("… SQL statements", typical("statements"), index === 0 ? { rival: "95 to 181" } : {});
  }
}

/** An answer that streams for some seconds, against the same turn with a short answer: the difference is its stream log. */
async function streamPart({ bench, add }) {
  const session = await bench.session();
  const chunk = "0123456789abcdef";
  const kinds = [
    ["400 chunks, 20 ms apart", "bench slow", 400, 20],
    ["400 chunks at once", "bench fast", 400, 0],
    ["2,000 chunks at once", "bench long", 2000, 0],
  ];
  await session.script("bench short", fast([{ text: chunk }]));
  const base = [];
  for (let turn = 0; turn < 4; turn++) base.push(await session.turn("stream", "bench short"));
  for (const [index, [name, says, chunks, delay]] of kinds.entries()) {
    await session.script(says, [{ text: chunk.repeat(chunks), comments: false, delay_ms: delay }]);
    const cost = await session.turn("stream", says);
    const rows = cost.rows_written - median(base.slice(1).map((one) => one.rows_written));
    const streamed = cost.requests.at(-1);
    const seconds = (Date.parse(streamed.ended_at) - Date.parse(streamed.at)) / 1000;
    const limit = Math.ceil(seconds / 0.5) + Math.ceil((chunks * chunk.length) / 8192);
    add(`rows of the stream, ${name}`, rows, {
      ...atMost(rows, limit),
      ...(index === 0 ? { rival: 42, note: "The mark is a row per 0.5 s and per 8 KiB; measured against the same turn with a short answer, deleting the rows counted." } : {}),
    });
  }
}

/** What a step costs as the transcript grows: runs of 10, 20 and 300 rounds of one tool call each. */
async function growthPart({ bench, add }) {
  const session = await bench.session();
  const cost = {};
  for (const rounds of [10, 20, 300]) {
    const says = `bench ${rounds} rounds`;
    const turns = Array.from({ length: rounds }, (_, n) => ({ tool_calls: [{ name: "calculate", arguments: { expression: `${n}+1` } }] }));
    await session.script(says, fast([...turns, { text: TEXT }]));
    const passes = [];
    for (let pass = 0; pass < (rounds === 300 ? 5 : 3); pass++) passes.push(await session.turn(`growth-${rounds}-${pass}`, says, { ms: 300_000 }));
    cost[rounds] = passes;
  }
  const typical = (rounds, key) => median(cost[rounds].map((pass) => pass[key]));
  for (const [key, name] of [["rows_written", "rows written"], ["rows_read", "rows read"], ["statements", "statements"]]) {
    const early = (typical(20, key) - typical(10, key)) / 10;
    const late = (typical(300, key) - typical(20, key)) / 280;
    add(`${name} a round, rounds 11 to 20`, round(early), key === "rows_written" ? { rival: 14 } : {});
    add("… rounds 21 to 300, as a ratio to that", round(late / early, 2), atMost(round(late / early, 2), 1.2));
  }
  // The clock has whole ms, so many gaps are averaged: the calmer half of them, since other things run on the machine. The
  // stand-in notes a request when it has read and checked it, which takes longer for a longer one: that is taken off.
  const gap = async (around) => {
    const gaps = cost[300].slice(1).flatMap(({ requests }) =>
      requests.slice(around - 8, around + 8).map((request, n) => Date.parse(requests[around - 7 + n].at) - Date.parse(request.ended_at)),
    );
    const calm = gaps.sort((a, b) => a - b).slice(0, Math.ceil(gaps.length / 2));
    const whole = calm.reduce((sum, ms) => sum + ms, 0) / calm.length;
    return { whole, ours: whole - (await session.checkingMs(cost[300].at(-1).requests[around].seq)) };
  };
  const tenth = await gap(10);
  add("gap from answer to next request, round 10", round(tenth.whole), { unit: "ms", rival: 24, note: "From the end of a response to the next request, by the stand-in's clock in whole ms; the tool runs in it." });
  for (const [at, rival] of [[30], [100], [290, "1.96"]]) {
    const late = await gap(at);
    const ratio = round(late.ours / tenth.ours, 2);
    add(`… round ${at} / round 10`, ratio, {
      ...atMost(ratio, 1.2), rival,
      ...(at === 290 ? { note: `Without what the stand-in takes to read and check the request; ${round(late.whole / tenth.whole, 2)} with it.` } : {}),
    });
  }
}

async function idlePart({ bench, add }) {
  const session = await bench.session();
  await session.script("bench idle", fast([tool(1), { text: TEXT }]));
  await session.turn("idle", "bench idle");
  const { agent: before } = await session.agent("idle");
  const polled = await session.getCost("idle");
  const start = await session.agent("idle");
  await sleep(IDLE_WINDOW_MS);
  const after = await session.agent("idle");
  const same = start.agent.instance.id === after.agent.instance.id;
  add("alarms set while idle", before.next_wake_at === null ? 0 : 1, { mark: "0", ok: before.next_wake_at === null, rival: 0 });
  const written = after.agent.instance.rows_written - start.agent.instance.rows_written - polled.rows_written;
  add(`rows written in ${IDLE_WINDOW_MS / 1000} idle seconds`, same ? written : "object left early", { mark: "0", ok: same && written === 0, rival: 0 });
  await sleep(EVICTION_MS);
  const later = await session.agent("idle");
  const gone = later.agent.instance.id !== after.agent.instance.id;
  add(`left memory within ${EVICTION_MS / 1000} s`, gone ? "yes" : "no", { mark: "yes", ok: gone, note: "A pending timer or request would have kept it in memory." });
  const opened = later.agent.instance.rows_written - (gone ? 0 : after.agent.instance.rows_written);
  add("rows written by opening an idle agent", opened, { mark: "0", ok: opened === 0 });
}

/** Three model calls, two rounds of one tool call, 50 chunks of text; each run on an agent of its own. */
async function cpuPart({ bench, add }) {
  const session = await bench.session();
  await session.script("bench run", fast([tool(1), tool(1), { text: "0123456789abcdef".repeat(50) }]));
  const run = (agent) => session.runToEnd(agent, "bench run");
  for (let n = 0; n < 10; n++) await run(`warm-${n}`); // The first runs compile.
  const residentBefore = session.residentMb();
  const measure = async (count, work) => {
    const before = session.cpuMs();
    const began = Date.now();
    await work();
    const seconds = (Date.now() - began) / 1000;
    return { cpu: (session.cpuMs() - before) / count, rate: count / seconds };
  };
  const passes = [];
  for (let pass = 0; pass < 3; pass++) {
    const one = await measure(SEQUENTIAL_RUNS, async () => {
      for (let n = 0; n < SEQUENTIAL_RUNS; n++) await run(`one-${pass}-${n}`);
    });
    const many = await measure(RUNS_AT_ONCE, () =>
      Promise.all(Array.from({ length: RUNS_AT_ONCE }, (_, n) => run(`many-${pass}-${n}`))),
    );
    passes.push({ one, many });
  }
  const typical = (kind, key) => median(passes.map((pass) => pass[kind][key]));
  const one = typical("one", "cpu");
  const many = typical("many", "cpu");
  const quarter = RIVAL.cpuMs / 4;
  add("CPU a run, one after another", round(one), { ...atMost(one, quarter, "ms"), rival: RIVAL.cpuMs, note: "Of the workerd process, the proxy that wrangler dev puts before the Worker included. The SDK's figure was taken on another day: the comparison is a hint." });
  add(`CPU a run, ${RUNS_AT_ONCE} at once`, round(many), { unit: "ms", rival: RIVAL.cpuMsAtOnce });
  add("… as a ratio to one after another", round(many / one, 2));
  add("runs a second, one after another", round(typical("one", "rate")), { rival: RIVAL.runsPerSecond });
  add(`runs a second, ${RUNS_AT_ONCE} at once`, round(typical("many", "rate")));
  add("resident memory of workerd, before the runs", residentBefore, { unit: "MB" });
  add(`… after ${3 * (SEQUENTIAL_RUNS + RUNS_AT_ONCE)} runs, as many agents`, session.residentMb(), { unit: "MB", rival: "440 to 660" });
}

/** kill -9 in the middle of a held stream; the default alarm; nobody asks. */
async function recoveryPart({ bench, add }) {
  const session = await bench.session({ fresh: true });
  await session.script("bench held", [{ text: TEXT.repeat(10), comments: false, delay_ms: 0, hold: { name: "bench-held", after_chunks: 20 } }]);
  const seq = await session.lastRequest();
  await session.send("held", "bench held");
  await until(async () => (await session.holds())["bench-held"] > 0, "the held stream");
  await sleep(1_500);
  const { agent } = await session.agent("held");
  const killedAt = Date.now();
  await session.kill9();
  const held = (await requestsAfter(session.gateway, seq, { body: false })).length;
  await session.restart();
  const readyAt = Date.now();
  const again = await until(
    async () => (await requestsAfter(session.gateway, seq, { body: false }))[held],
    "the resumed request",
    { ms: 60_000, every: 50 },
  );
  const at = Date.parse(again.at);
  const due = Math.max(Date.parse(agent.next_wake_at), readyAt);
  const action = round(Math.max(0, at - due) / 1000, 2);
  add("alarm ahead of the kill", round((Date.parse(agent.next_wake_at) - killedAt) / 1000), { ...atMost((Date.parse(agent.next_wake_at) - killedAt) / 1000, 30, "s") });
  add("from the kill to the next request", round((at - killedAt) / 1000), { unit: "s" });
  add("from the restart (/healthz answers) to it", round((at - readyAt) / 1000), { ...atMost((at - readyAt) / 1000, 30, "s") });
  add("from the due alarm to it", action, { ...atMost(action, 1, "s"), note: "Or from the restart, when the alarm was due before." });
  await session.end();
}
