// The example of a Worker of one's own: its tool in Rust runs, its handler in JavaScript decides.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { conversation, startWorld, valid } from "./lib/world.mjs";

let world;
before(async () => {
  world = await startWorld({ workerDir: "examples/own-worker" });
});
after(() => world.close());

test("both are registered", async () => {
  const { status, body } = await world.ask("GET", "/v1/extensions");
  assert.equal(status, 200);
  assert.deepEqual(body, {
    extensions: [
      { name: "words", events: [], tools: ["word_count"] },
      { name: "discretion", events: ["tool_call"], tools: [] },
    ],
    problems: [],
  });
});

test("the tool in Rust is executed", async () => {
  world.script("counts", { tool_calls: [{ name: "word_count", arguments: { text: "one two  three\nfour" } }] }, { text: "Four." });
  const requestId = await world.send("counts", "how many?");
  const records = await world.finished("counts", 2);
  valid(records);
  assert.deepEqual(records[0].body.tools.map((tool) => tool.function.name), ["word_count"]);
  assert.deepEqual(conversation(records[1]).slice(1), [["assistant", "word_count"], ["tool", "4"]]);
  assert.equal((await world.settled("counts", requestId)).answer.text, "Four.");
});

test("the handler in JavaScript blocks a call, and the model is told why", async () => {
  world.script(
    "blocked",
    {
      tool_calls: [
        { name: "word_count", arguments: { text: "my PassWord is secret" } },
        { name: "word_count", arguments: { text: "harmless" } },
      ],
    },
    { text: "I see." },
  );
  await world.send("blocked", "count both");
  const records = await world.finished("blocked", 2);
  valid(records);
  const [, , first, second] = conversation(records[1]);
  assert.match(first[1], /passwords are not to be handed to tools/);
  assert.deepEqual(second, ["tool", "1"]);
});
