// Blocks a tool call whose input speaks of a password: the model is told why and can go on without.
/** @param {import("../../../extensions/agentdo").Host} host */
export default function (host) {
  host.on("tool_call", async (event) => {
    if (/password/i.test(JSON.stringify(event.input))) {
      return { block: true, reason: "passwords are not to be handed to tools" };
    }
  });
}
