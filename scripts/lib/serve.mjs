// Serves a built Worker with `wrangler dev`, as a child in a process group of its own. Used by `make dev`, `make demo`,
// `make bench` and the end-to-end tests; several may run at once, each with its own state folder.

import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { envFile, isVariable } from "./vars.mjs";

/** The folder of the checkout. */
export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

const WRANGLER = path.join(ROOT, "node_modules/wrangler/bin/wrangler.js");
const NODE = path.join(ROOT, "node_modules/node/bin/node");
const OUTPUT_CHARACTERS_MAX = 4_000_000;
const STOP_GRACE_MS = 5_000;
const CRON_INTERVAL_MS = 60_000;

/** Something the person at the terminal can mend: shown without a stack. */
export class UserError extends Error {}

/** Every group still running, so that none outlives this process. */
const running = new Set();
process.on("exit", () => {
  for (const end of running) end();
});

/**
 * Starts the Worker built in `workerDir` and resolves when `/healthz` answers 200 or 503.
 *
 * @param {object} options
 * @param {number} [options.port] 0 (the default) picks a free one.
 * @param {string} options.stateDir Where D1, objects and queues are stored. Its D1 migrations are applied first.
 * @param {Record<string, unknown>} [options.vars] The Worker's variables, over those of its wrangler.toml. What is not a
 *   string is sent as JSON; `undefined` is left out.
 * @param {string} [options.workerDir] The folder of the Worker's wrangler.toml, from the checkout. It is not built here.
 * @param {boolean} [options.quiet] Keeps the Worker's log out of this process's own output (the default).
 * @param {boolean} [options.cron] Calls the scheduled handler each minute, which `wrangler dev` never does.
 * @param {number} [options.readyMs] How long it may take to answer.
 * @returns {Promise<Server>}
 *
 * @typedef {object} Server
 * @property {string} url `http://127.0.0.1:PORT`
 * @property {number} port
 * @property {number} pid The leader of the process group.
 * @property {string} output What the Worker and wrangler printed so far (the last 4 MB).
 * @property {Promise<{code: number|null, signal: string|null}>} exited Resolves when wrangler has ended, for whatever reason.
 * @property {() => Promise<void>} scheduled Calls the scheduled handler once.
 * @property {() => Promise<void>} kill9 SIGKILL to the whole group; resolves when the port is closed.
 * @property {() => Promise<void>} stop Ends it in order; after 5 s by force.
 */
export async function serve({
  port = 0,
  stateDir,
  vars = {},
  workerDir = ".",
  quiet = true,
  cron = false,
  readyMs = 60_000,
}) {
  if (!stateDir) throw new UserError("serve: stateDir is missing");
  const folder = path.resolve(ROOT, workerDir);
  const state = path.resolve(stateDir);
  if (!existsSync(path.join(folder, "build/index.js"))) {
    throw new UserError(`${folder} is not built: build/index.js is missing (make build)`);
  }
  migrate({ stateDir: state, workerDir: folder });

  for (let attempt = 1; ; attempt++) {
    const chosen = port === 0 ? await freePort() : port;
    if (port !== 0) await mustBeFree(chosen);
    try {
      return await start({ port: chosen, state, vars, folder, quiet, cron, readyMs });
    } catch (error) {
      // Between choosing a free port and listening on it another process may have taken it.
      const taken = /address already in use|EADDRINUSE/i.test(error.output ?? "");
      if (port !== 0 || !taken || attempt === 5) throw error;
    }
  }
}

async function start({ port, state, vars, folder, quiet, cron, readyMs }) {
  const url = `http://127.0.0.1:${port}`;
  // Variables go by a file that only we can read: arguments are seen by every user of the machine.
  const private_ = mkdtempSync(path.join(tmpdir(), "agentdo-"));
  const variables = path.join(private_, "variables.env");
  const set = Object.fromEntries(Object.entries(vars).filter(([, value]) => value !== undefined));
  try {
    writeFileSync(variables, envFile(set), { mode: 0o600 });
  } catch (error) {
    rmSync(private_, { recursive: true, force: true });
    throw error instanceof Error ? new UserError(error.message) : error;
  }

  const child = spawn(
    NODE,
    [
      WRANGLER,
      "dev",
      ...["--config", path.join(folder, "wrangler.toml"), "--env-file", variables, "--persist-to", state],
      ...["--ip", "127.0.0.1", "--port", String(port), "--inspector-port", "0"],
      "--show-interactive-dev-session=false",
    ],
    {
      cwd: folder,
      detached: true, // A group of its own, so that wrangler and workerd can be killed together.
      env: wranglerEnvironment({ WRANGLER_LOG_PATH: private_, WRANGLER_REGISTRY_PATH: path.join(private_, "registry") }),
      stdio: ["ignore", "pipe", "pipe"],
    },
  );

  let output = "";
  const keep = (chunk) => {
    const text = withoutNoise(chunk.toString());
    output = (output + text).slice(-OUTPUT_CHARACTERS_MAX);
    if (!quiet) process.stderr.write(text);
  };
  child.stdout.on("data", keep);
  child.stderr.on("data", keep);

  const signalGroup = (signal) => {
    try {
      process.kill(-child.pid, signal);
      return true;
    } catch {
      return false; // No such group: all have ended.
    }
  };
  const forget = () => rmSync(private_, { recursive: true, force: true });
  const endNow = () => {
    signalGroup("SIGKILL");
    forget();
  };
  running.add(endNow);

  let ended = false;
  const exited = new Promise((resolve) => {
    child.on("error", (error) => {
      output += `${error.message}\n`;
      ended = true;
      resolve({ code: null, signal: null });
    });
    child.on("exit", (code, signal) => {
      ended = true;
      resolve({ code, signal });
    });
  });
  let timer;
  const closed = exited.then(async () => {
    clearInterval(timer);
    signalGroup("SIGKILL"); // What the leader left behind.
    const deadline = Date.now() + STOP_GRACE_MS;
    while ((await answers(port)) && Date.now() < deadline) await sleep(20);
    running.delete(endNow);
    forget();
  });

  const server = {
    url,
    port,
    pid: child.pid,
    get output() {
      return output;
    },
    exited,
    async scheduled() {
      await fetch(`${url}/cdn-cgi/local/scheduled`, { signal: AbortSignal.timeout(30_000) }).then((r) => r.text());
    },
    async kill9() {
      signalGroup("SIGKILL");
      await closed;
    },
    async stop() {
      // To all of them, as a terminal does; each ends by itself or is ended.
      signalGroup("SIGTERM");
      const late = setTimeout(() => signalGroup("SIGKILL"), STOP_GRACE_MS);
      await closed;
      clearTimeout(late);
    },
  };

  const deadline = Date.now() + readyMs;
  while (!(await healthy(url))) {
    if (ended || Date.now() > deadline) {
      await server.kill9();
      const why = ended ? "ended before it answered" : `did not answer within ${readyMs / 1000} s`;
      throw Object.assign(new Error(`wrangler dev ${why}:\n${output.slice(-4000)}`), { output });
    }
    await sleep(50);
  }
  // It has been read, and wrangler does not watch its configuration here. Gone is gone, even if we are killed.
  rmSync(variables, { force: true });
  if (cron) {
    timer = setInterval(() => server.scheduled().catch(() => {}), CRON_INTERVAL_MS);
    timer.unref();
  }
  return server;
}

/** Applies the D1 migrations of a Worker to a local state folder; at once when there is nothing new. */
export function migrate({ stateDir, workerDir = "." }) {
  const folder = path.resolve(ROOT, workerDir);
  const state = path.resolve(stateDir);
  const config = readFileSync(path.join(folder, "wrangler.toml"), "utf8");
  const database = /^\s*database_name\s*=\s*"([^"]+)"/m.exec(config)?.[1];
  if (!database) return;
  const migrations = path.resolve(folder, /^\s*migrations_dir\s*=\s*"([^"]+)"/m.exec(config)?.[1] ?? "migrations");
  const hash = createHash("sha256").update(database);
  for (const name of readdirSync(migrations).sort()) {
    hash.update(`\0${name}\0`).update(readFileSync(path.join(migrations, name)));
  }
  const digest = hash.digest("hex");
  const stamp = path.join(state, ".agentdo-migrations");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === digest) return;

  mkdirSync(state, { recursive: true });
  const run = spawnSync(
    NODE,
    [
      ...[WRANGLER, "d1", "migrations", "apply", database, "--local"],
      ...["--config", path.join(folder, "wrangler.toml"), "--persist-to", state],
    ],
    { cwd: folder, env: wranglerEnvironment({ WRANGLER_LOG_PATH: path.join(state, "logs") }), encoding: "utf8" },
  );
  if (run.status !== 0) {
    throw new UserError(`the D1 migrations could not be applied to ${state}:\n${run.error ?? ""}${run.stdout}${run.stderr}`);
  }
  writeFileSync(stamp, digest);
}

/** This process's environment for wrangler: without the Worker's variables, and quiet. */
function wranglerEnvironment(more) {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !isVariable(name) && !["CLOUDFLARE_ENV", "CLOUDFLARE_INCLUDE_PROCESS_ENV"].includes(name),
  );
  return {
    ...Object.fromEntries(inherited),
    AGENTDO_SKIP_BUILD: "1",
    CLOUDFLARE_LOAD_DEV_VARS_FROM_DOT_ENV: "true",
    FORCE_COLOR: "0",
    NO_COLOR: "1",
    PATH: `${path.join(ROOT, "node_modules/.bin")}${path.delimiter}${process.env.PATH}`,
    WRANGLER_CI_DISABLE_CONFIG_WATCHING: "true",
    WRANGLER_HIDE_BANNER: "true",
    WRANGLER_SEND_ERROR_REPORTS: "false",
    WRANGLER_SEND_METRICS: "false",
    X_LOCAL_EXPLORER: "false",
    X_LOCAL_OBSERVABILITY: "false",
    ...more,
  };
}

/** Without what wrangler says on every start and nobody can act on. */
function withoutNoise(text) {
  return text
    .replace(/^.*Unable to fetch the `Request\.cf` object!.*\n(?:.*workers\.cloudflare\.com.*\n)?(?:\s+at .*\n)*/gm, "")
    .replace(/^.*Scheduled Workers are not automatically triggered.*\n(?:\s*\n|.*cdn-cgi\/local\/scheduled.*\n|.*To manually trigger.*\n|.*For more details, see.*\n)*/gm, "");
}

/** A port that nobody listens on. */
export async function freePort() {
  const server = net.createServer();
  await new Promise((resolve, reject) => server.once("error", reject).listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function mustBeFree(port) {
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new UserError(`${port} is not a port`);
  const server = net.createServer();
  try {
    await new Promise((resolve, reject) => server.once("error", reject).listen(port, "127.0.0.1", resolve));
  } catch (error) {
    const why = error.code === "EADDRINUSE" ? "is in use by another process" : `cannot be used (${error.code})`;
    throw new UserError(`port ${port} ${why}; choose another with PORT=…`);
  }
  await new Promise((resolve) => server.close(resolve));
}

function answers(port) {
  return new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    socket.once("connect", () => socket.destroy());
  });
}

async function healthy(url) {
  try {
    const response = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(5_000) });
    await response.arrayBuffer();
    return response.status === 200 || response.status === 503;
  } catch {
    return false;
  }
}
