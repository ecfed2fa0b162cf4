// Starts the stand-in for the AI Gateway (tests/gateway), which answers by script and costs nothing.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { ROOT, UserError } from "./serve.mjs";

/**
 * @param {object} [options]
 * @param {string} [options.scenarios] The folder of the scripts it answers by.
 * @param {string[]} [options.args] More arguments for it.
 * @param {boolean} [options.quiet] Keeps its log out of this process's output (the default).
 * @returns {Promise<{url: string, baseUrl: string, pid: number, stop: () => Promise<void>, output: string}>}
 *   `url` is its own address, `baseUrl` what AI_GATEWAY_BASE_URL is to be.
 */
export async function startGateway({ scenarios = "tests/gateway/scenarios", args = [], quiet = true } = {}) {
  const program = path.join(ROOT, "tests/gateway/server.mjs");
  if (!existsSync(program)) throw new UserError("the stand-in gateway is missing: tests/gateway/server.mjs");
  const child = spawn(process.execPath, [program, "--port", "0", "--scenarios", path.resolve(ROOT, scenarios), ...args], {
    cwd: ROOT,
    detached: true, // Ctrl-C reaches it through us, after the Worker.
    stdio: ["ignore", "pipe", "pipe"],
  });
  const kill = () => {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch {
      // It has ended.
    }
  };
  process.on("exit", kill);
  const exited = new Promise((resolve) => {
    child.once("exit", resolve);
    child.once("error", resolve);
  });

  let output = "";
  const url = await new Promise((resolve, reject) => {
    const keep = (chunk) => {
      output = (output + chunk).slice(-1_000_000);
      if (!quiet) process.stderr.write(chunk);
      const found = /gateway listening on (http:\/\/\S+)/.exec(output);
      if (found) resolve(found[1]);
    };
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    exited.then(() => reject(new Error(`the stand-in gateway ended before it listened:\n${output}`)));
  });
  return {
    url,
    baseUrl: `${url}/v1/acct/gw`,
    pid: child.pid,
    get output() {
      return output;
    },
    async stop() {
      kill();
      await exited;
      process.off("exit", kill);
    },
  };
}
