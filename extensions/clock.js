/** @typedef {import("./agentdo").Host} Host */

// A tool without arguments. Reading the clock twice does no harm, so it may run again after a crash.
/** @param {Host} host */
export default function (host) {
  host.registerTool({
    name: "current_time",
    description: "The current date and time in UTC, as RFC 3339.",
    parameters: { type: "object", properties: {}, additionalProperties: false },
    replay: "safe",
    execute: async (_toolCallId, _parameters, _signal, _onUpdate, ctx) => ({
      content: [{ type: "text", text: new Date(ctx.now()).toISOString() }],
    }),
  });
}
