// `before_agent_request`, by the beginning of the agent's id:
//
// - `held-` waits while the flag of this agent is down, and obeys its signal;
// - `deaf-` does the same and ignores the signal: it returns long after a stop;
// - `idle-` looks once and then waits without any timer, so that the object can leave memory; the next wake asks again;
// - `never-` never returns, whatever happens.
//
// The flag is read from EXT_FLAG_URL with timers of its own; each reading is seen by the test.
const POLL_MS = 50;

export default function (host) {
  host.on("before_agent_request", async (_event, ctx) => {
    const kind = /^(held|deaf|idle|never)-/.exec(ctx.agentId)?.[1];
    if (kind === undefined) return;
    const asked = crypto.randomUUID();
    for (;;) {
      if (await up(ctx, asked, kind)) return;
      if (kind === "never" || kind === "idle") return new Promise(() => {});
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      if (kind === "held") ctx.signal.throwIfAborted();
    }
  });
}

async function up(ctx, asked, kind) {
  const url = new URL(ctx.env.EXT_FLAG_URL);
  url.searchParams.set("agent", ctx.agentId);
  url.searchParams.set("asked", asked);
  url.searchParams.set("aborted", String(ctx.signal.aborted));
  url.searchParams.set("resumed", String(ctx.resumed));
  try {
    const { up } = await (await fetch(url)).json();
    return up && kind !== "never";
  } catch {
    return false; // It fails closed.
  }
}
