// `make test` and `make check`: runs each step, goes on after a failure where that makes sense, and ends with one line that
// counts everything. A step without tests of its own (a lint, a build) counts as one.

import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import path from "node:path";
import { ROOT } from "./lib/serve.mjs";

const WASM = ["--target", "wasm32-unknown-unknown", "--lib"];
const DENY = ["--", "-D", "warnings"];
const SABOTAGE = { RUSTFLAGS: "--cfg agentdo_sabotage", CARGO_TARGET_DIR: "target/sabotage" };

const CHECK = [
  { name: "format", run: ["cargo", "fmt", "--check"] },
  { name: "clippy, host", run: ["cargo", "clippy", "--all-targets", ...DENY] },
  { name: "clippy, wasm", run: ["cargo", "clippy", ...WASM, "--features", "standalone", ...DENY] },
  { name: "tests on the host, with the simulation", run: ["cargo", "test"], counts: true },
];
const ALL = [
  ...CHECK,
  {
    name: "sabotages the simulation must notice",
    run: ["cargo", "test", "--lib", "--test", "sim", "sabotage"],
    env: SABOTAGE,
    counts: true,
  },
  { name: "build of the Worker", run: ["scripts/build.sh"], builds: true },
  { name: "build of examples/own-worker", run: ["scripts/build.sh", "examples/own-worker"], builds: true },
  // In the profile of the two before it, whose compiled dependencies it shares: from cold that is quicker than `dev`.
  { name: "build of tests/worker", run: ["scripts/build.sh", "tests/worker"], builds: true },
  { name: "tests of the scripts", tests: "scripts" },
  { name: "tests of the stand-in gateway", tests: "tests/gateway" },
  { name: "end to end under workerd", tests: "tests/e2e", needsBuild: true },
  { name: "deploy, dry run", run: ["wrangler", "deploy", "--dry-run"], env: { AGENTDO_SKIP_BUILD: "1" }, needsBuild: true },
];

const steps = process.argv[2] === "check" ? CHECK : ALL;
const failures = [];
let passed = 0;
let failed = 0;
let built = true;

for (const step of steps) {
  const began = Date.now();
  console.log(`\n== ${step.name}`);
  const result = await perform(step);
  if (step.builds && !result.ok) built = false;
  passed += result.passed;
  failed += result.failed;
  if (!result.ok) failures.push(`${step.name}: ${result.why}`);
  console.log(`== ${step.name}: ${result.ok ? "ok" : `FAILED, ${result.why}`} (${Math.round((Date.now() - began) / 1000)} s)`);
}

console.log("");
for (const failure of failures) console.log(`FAILED  ${failure}`);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);

async function perform(step) {
  if (step.needsBuild && !built) return { ok: false, passed: 0, failed: 1, why: "not run, there is no build" };
  let argv = step.run;
  if (step.tests) {
    const files = testFiles(step.tests);
    if (files.length === 0) return { ok: false, passed: 0, failed: 1, why: `no *.test.mjs in ${step.tests}` };
    // One file at a time: each starts servers, and what they measure should be theirs.
    argv = ["node", "--test", "--test-reporter=spec", "--test-concurrency=1", ...files];
  }
  const { code, output } = await run(argv, step.env);
  const found = step.counts || step.tests ? count(output) : { passed: 0, failed: 0, tests: 0 };
  const ok = code === 0;
  // A compile error or a crash has no count; a run that ends well with nothing run is a mistake in the step.
  if (ok && found.failed === 0 && (step.counts || step.tests) && found.passed === 0) {
    return { ok: false, passed: 0, failed: 1, why: "no test was run" };
  }
  if (ok) return { ok, passed: found.passed || 1, failed: 0 };
  return { ok, passed: found.passed, failed: found.failed || 1, why: found.failed ? `${found.failed} failed` : `exit code ${code}` };
}

/** Sums what cargo (`test result: …`) and node (`ℹ pass N`) report. */
function count(output) {
  const plain = output.replace(/\x1b\[[0-9;]*m/g, "");
  const sum = (pattern) => [...plain.matchAll(pattern)].reduce((total, [, number]) => total + Number(number), 0);
  return {
    passed: sum(/^test result: \w+\. (\d+) passed/gm) + sum(/^ℹ pass (\d+)$/gm),
    failed: sum(/^test result: .*? (\d+) failed/gm) + sum(/^ℹ fail (\d+)$/gm) + sum(/^ℹ cancelled (\d+)$/gm),
  };
}

function testFiles(folder) {
  try {
    return readdirSync(path.join(ROOT, folder), { recursive: true })
      .filter((name) => name.endsWith(".test.mjs") && !name.includes("node_modules"))
      .map((name) => path.join(folder, name))
      .sort();
  } catch {
    return [];
  }
}

function run([program, ...args], env = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd: ROOT,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    child.stdout.on("data", (chunk) => {
      output += chunk;
      process.stdout.write(chunk);
    });
    child.stderr.on("data", (chunk) => {
      output += chunk;
      process.stderr.write(chunk);
    });
    child.on("error", (error) => {
      console.error(error.message);
      resolve({ code: 127, output });
    });
    child.on("close", (code, signal) => resolve({ code: code ?? signal, output }));
  });
}
