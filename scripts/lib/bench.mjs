// What the benchmarks share: a served Worker with its stand-in, scripted turns, and what a turn costs.

import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { api, control, requestsAfter, until } from "./client.mjs";
import { startGateway } from "./gateway.mjs";
import { ROOT, serve } from "./serve.mjs";
import { apiTokens, DEV_TOKEN } from "./vars.mjs";

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** One Worker for most parts, and one of its own for who asks. */
export class Bench {
  #shared;
  #sessions = 0;

  constructor({ folder, atEnd, verbose }) {
    Object.assign(this, { folder, atEnd, verbose });
  }

  async session({ fresh = false } = {}) {
    if (!fresh && this.#shared) return this.#shared;
    const session = new Session(path.join(this.folder, `state-${++this.#sessions}`), this.verbose);
    this.atEnd(() => session.end());
    await session.begin();
    if (!fresh) this.#shared = session;
    return session;
  }

  wrangler(args) {
    const node = path.join(ROOT, "node_modules/node/bin/node");
    return spawnSync(node, [path.join(ROOT, "node_modules/wrangler/bin/wrangler.js"), ...args], {
      cwd: ROOT,
      encoding: "utf8",
      timeout: 120_000,
      env: { ...process.env, AGENTDO_SKIP_BUILD: "1", NO_COLOR: "1", FORCE_COLOR: "0", WRANGLER_SEND_METRICS: "false", WRANGLER_LOG_PATH: this.folder },
    });
  }
}

class Session {
  #turns = 0;

  constructor(stateDir, verbose) {
    Object.assign(this, { stateDir, verbose });
  }

  async begin() {
    this.gateway = await startGateway();
    await this.restart();
  }

  async restart() {
    const vars = {
      AI_GATEWAY_BASE_URL: this.gateway.baseUrl,
      API_TOKENS: apiTokens({ token: DEV_TOKEN }),
      MAX_CALLS_PER_RUN: "500,500,500",
      DAILY_AGENT_CALLS: "1000000",
      DAILY_OPENROUTER_CALLS: "1000000",
    };
    this.server = await serve({ stateDir: this.stateDir, vars, quiet: !this.verbose });
  }

  async kill9() {
    await this.server.kill9();
  }

  async end() {
    await this.server?.stop();
    await this.gateway?.stop();
    this.server = this.gateway = undefined;
  }

  /** What the model says to a message with these words. */
  async script(says, turns) {
    await control(this.gateway, "POST", "/control/scenario", { name: says, match: { contains: says }, turns });
  }

  async holds() {
    return (await control(this.gateway, "GET", "/control/holds")).holds;
  }

  async lastRequest() {
    return (await control(this.gateway, "GET", "/control/requests?after=0&limit=1&body=false")).last_seq;
  }

  #ask(method, where, body) {
    return api(this.server.url, DEV_TOKEN, method, `/v1/agents/${where}`, body);
  }

  agent(id) {
    return this.#ask("GET", id);
  }

  async send(id, text) {
    const request = `turn-${++this.#turns}`;
    await this.#ask("POST", `${id}/messages`, { request_id: request, text });
    return request;
  }

  async runToEnd(id, text) {
    const request = await this.send(id, text);
    const { submission } = await this.#ask("GET", `${id}/submissions/${request}?wait=60`);
    if (submission.status !== "done") throw new Error(`${id}: ${submission.status} ${submission.reason}`);
  }

  /** What looking at an agent costs by itself. */
  async getCost(id) {
    const counts = [];
    for (let n = 0; n < 2; n++) counts.push((await this.agent(id)).agent.instance);
    return difference(counts[1], counts[0]);
  }

  /**
   * Sends a message and gives what its turn cost the object: rows read and written and statements, without the looking.
   * An agent that never was costs its tables too.
   */
  async turn(id, text, { ms = 60_000 } = {}) {
    const seq = await this.lastRequest();
    const known = await api(this.server.url, DEV_TOKEN, "GET", `/v1/agents/${id}`, undefined, { allow: [404] });
    const versionBefore = known.agent ? this.#indexVersion(id) : 0;
    const start = known.agent?.instance;
    await this.send(id, text);
    // The stand-in is asked first: looking at the object costs statements.
    await until(async () => (await requestsAfter(this.gateway, seq, { body: false })).at(-1)?.state === "done", "the turn", { ms });
    let looks = 0;
    const end = await until(
      async () => {
        looks += 1;
        const { agent } = await this.agent(id);
        return agent.status === "idle" && agent.next_wake_at === null && agent.queued.length === 0 && agent.instance;
      },
      `${id} to rest`,
      { ms, every: 200 },
    );
    const rest = await this.#settledIndex(id);
    const last = (await this.agent(id)).agent.instance; // With what the index's acknowledgement wrote.
    const look = await this.getCost(id);
    if (start && start.id !== last.id) throw new Error(`${id} left memory during a turn`);
    const cost = difference(last, start ?? { rows_read: 0, rows_written: 0, statements: 0 });
    for (const key of ["rows_read", "rows_written", "statements"]) cost[key] -= look[key] * (looks + (end ? 1 : 0));
    const requests = await requestsAfter(this.gateway, seq, { body: false });
    const invalid = requests.filter((request) => request.invalid?.length > 0);
    if (invalid.length > 0) throw new Error(`the stand-in refused: ${invalid[0].invalid}`);
    return { ...cost, index_rows: rest - versionBefore, requests };
  }

  /** How long the stand-in takes to read and check this request, ms: it is sent again from here, many times. */
  async checkingMs(seq) {
    const { requests } = await control(this.gateway, "GET", `/control/requests?after=${seq - 1}&limit=1`);
    const body = JSON.stringify(requests[0].body);
    const took = [];
    for (let n = 0; n < 40; n++) {
      const after = await this.lastRequest();
      const sentAt = performance.timeOrigin + performance.now();
      await (await fetch(`${this.gateway.url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body })).text();
      const [record] = await requestsAfter(this.gateway, after, { body: false });
      took.push(Date.parse(record.at) + 0.5 - sentAt);
    }
    const calm = took.sort((a, b) => a - b).slice(0, took.length / 2);
    return Math.max(0, calm.reduce((sum, ms) => sum + ms, 0) / calm.length);
  }

  /** The version of the agent's row in the D1 index, once it stands still. */
  async #settledIndex(id) {
    let version = this.#indexVersion(id);
    for (let still = 0; still < 3; ) {
      await sleep(100);
      const now = this.#indexVersion(id);
      still = now === version ? still + 1 : 0;
      version = now;
    }
    return version;
  }

  #indexVersion(id) {
    // Read from the file, so that no request is made. The sqlite module of Node 22.
    const { DatabaseSync } = sqlite();
    for (const file of files(path.join(this.stateDir, "v3/d1"))) {
      const database = new DatabaseSync(file, { readOnly: true });
      try {
        const row = database.prepare("SELECT version FROM agent WHERE tenant = 'dev' AND id = ?").get(id);
        if (row) return Number(row.version);
      } catch {
        // Another database.
      } finally {
        database.close();
      }
    }
    return 0;
  }

  /** CPU of workerd so far, user and system, ms. */
  cpuMs() {
    let ticks = 0;
    for (const pid of this.#workerd()) {
      const fields = stat(pid);
      ticks += Number(fields[11]) + Number(fields[12]); // utime and stime
    }
    return ticks * 10; // Linux counts in hundredths of a second for everyone.
  }

  residentMb() {
    const pages = this.#workerd().reduce((sum, pid) => sum + Number(stat(pid)[21]), 0);
    return Math.round((pages * 4096) / 1e6);
  }

  #workerd() {
    const found = readdirSync("/proc").filter((name) => {
      if (!/^\d+$/.test(name)) return false;
      try {
        return readFileSync(`/proc/${name}/comm`, "utf8").trim() === "workerd" && Number(stat(name)[2]) === this.server.pid;
      } catch {
        return false; // It ended while we looked.
      }
    });
    if (found.length === 0) throw new Error("no workerd process was found in /proc");
    return found;
  }
}

/** The fields of /proc/PID/stat after the name: state is 0, the process group 2. */
function stat(pid) {
  const text = readFileSync(`/proc/${pid}/stat`, "utf8");
  return text.slice(text.lastIndexOf(")") + 2).split(" ");
}

function difference(after, before) {
  return Object.fromEntries(["rows_read", "rows_written", "statements"].map((key) => [key, after[key] - before[key]]));
}

function files(folder) {
  return readdirSync(folder, { recursive: true })
    .filter((name) => name.endsWith(".sqlite") && !name.includes("metadata"))
    .map((name) => path.join(folder, name));
}

function sqlite() {
  process.removeAllListeners("warning"); // It says that it is experimental.
  return process.getBuiltinModule("node:sqlite");
}
