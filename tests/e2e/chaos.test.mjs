// Many agents at work at once, and SIGKILL at moments that a seed chooses: each finishes, each unsafe tool runs at most
// once, each safe one under one key.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { conversation, startWorld, valid, until } from "./lib/world.mjs";

const AGENTS = 8;
const ROUNDS = 4;
const DEATHS = 4; // At five an operation parks.
const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);

test(`kills at any moment (SEED=${SEED})`, async (t) => {
  const world = await startWorld();
  t.after(() => world.close());
  let state = SEED;
  const random = (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };

  const agents = Array.from({ length: AGENTS }, (_, index) => `chaos-${index}`);
  for (const agent of agents) {
    const rounds = Array.from({ length: ROUNDS }, (_, round) => ({
      text: `Round ${round} of ${agent}, told at some length so that the stream takes its time.`,
      delay_ms: 20 + random(60),
      tool_calls: [
        { name: "count_safe", arguments: { name: `${agent}-${round}-safe` } },
        { name: "count_unsafe", arguments: { name: `${agent}-${round}-unsafe` } },
      ],
    }));
    world.script(agent, ...rounds, { text: `${agent} is done.`, delay_ms: 20 });
    await world.send(agent, "go");
  }
  const done = (agent) => world.requests(agent).some((record) => record.turn === ROUNDS && record.state === "done");
  for (let death = 0; death < DEATHS && !agents.every(done); death++) {
    await pause(random(1_500));
    await world.kill9();
  }
  await until(() => agents.every(done), () => `the last answers of ${agents.filter((agent) => !done(agent))}`, 120_000);

  const { counters } = world.gateway;
  for (const agent of agents) {
    const records = world.requests(agent);
    for (const record of records) assert.deepEqual(record.invalid ?? [], []);
    const last = records.find((record) => record.turn === ROUNDS && record.state === "done");
    valid([last]);
    const results = conversation(last).filter(([role]) => role === "tool").map(([, text]) => text);
    assert.equal(results.length, ROUNDS * 2);
    for (let round = 0; round < ROUNDS; round++) {
      const safe = counters[`${agent}-${round}-safe`];
      assert.ok(safe?.count >= 1, `${agent} ${round}: the safe tool never ran`);
      assert.equal(new Set(safe.keys).size, 1, `${agent} ${round}: the safe tool ran under several keys`);
      const unsafe = counters[`${agent}-${round}-unsafe`] ?? { count: 0 };
      assert.ok(unsafe.count <= 1, `${agent} ${round}: the unsafe tool ran ${unsafe.count} times`);
      const told = results[round * 2 + 1];
      assert.ok(unsafe.count === 1 || /interrupted/.test(told), `${agent} ${round}: it never ran, and the model was told ${told}`);
    }
  }
});
