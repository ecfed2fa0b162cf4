// Tools whose executions are counted outside, by the stand-in gateway at EXT_COUNTER_URL, under their idempotency key.
const parameters = {
  type: "object",
  properties: {
    name: { type: "string", minLength: 1, maxLength: 64 },
    // Where the counter holds its answer until the test lets it go: the deed is done, the result is not there.
    hold: { type: "string", minLength: 1, maxLength: 64 },
  },
  required: ["name"],
  additionalProperties: false,
};

function tool(name, replay) {
  return {
    name,
    description: `Counts one up (${replay} to repeat).`,
    parameters,
    replay,
    // Longer than any test waits: a hold is ended by its release, never by a deadline.
    timeoutMs: 600_000,
    execute: async (_toolCallId, { name: counter, hold }, signal, _onUpdate, ctx) => {
      const url = new URL(`/counter/${counter}`, ctx.env.EXT_COUNTER_URL);
      url.searchParams.set("key", ctx.key);
      if (hold !== undefined) url.searchParams.set("hold", hold);
      const answer = await fetch(url, { method: "POST", signal });
      const { count } = await answer.json();
      return { content: [{ type: "text", text: `${counter}: ${count}` }] };
    },
  };
}

export default function (host) {
  host.registerTool(tool("count_safe", "safe"));
  host.registerTool(tool("count_unsafe", "unsafe"));
}
