// `tool_call`, by the beginning of the agent's id: throws, blocks, changes the input, makes it bad, or never returns.
export default function (host) {
  host.on("tool_call", (event, ctx) => {
    switch (/^([a-z]+)-/.exec(ctx.agentId)?.[1]) {
      case "throws":
        throw new Error("no judgement today");
      case "blocks":
        return { block: true, reason: "not on a Monday" };
      case "changes":
        event.input.name = `${event.input.name}-changed`;
        return undefined;
      case "spoils":
        event.input.name = 7;
        return undefined;
      case "hangs":
        return new Promise(() => {});
      default:
        return undefined;
    }
  });
}
