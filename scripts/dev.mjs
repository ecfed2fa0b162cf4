// `make dev`: serves the built Worker on this machine until it is interrupted.

import path from "node:path";
import { command } from "./lib/command.mjs";
import { startGateway } from "./lib/gateway.mjs";
import { ROOT, serve, UserError } from "./lib/serve.mjs";
import { apiTokens, DEV_TOKEN, variablesOf } from "./lib/vars.mjs";

await command(async ({ atEnd }) => {
  const port = Number(process.env.PORT || 8787);
  if (!Number.isInteger(port)) throw new UserError(`PORT=${process.env.PORT} is not a number`);
  const stateDir = path.resolve(ROOT, process.env.STATE_DIR || ".wrangler/state");
  const vars = variablesOf(process.env);

  let note = "";
  if (vars.API_TOKENS === undefined) vars.API_TOKENS = apiTokens({ token: DEV_TOKEN });
  if (!vars.AI_GATEWAY_BASE_URL && !vars.OPENROUTER_BASE_URL) {
    const gateway = await startGateway({ quiet: true });
    atEnd(() => gateway.stop());
    vars.AI_GATEWAY_BASE_URL = gateway.baseUrl;
    note = `
  NO MODEL IS CONNECTED: a stand-in gateway answers by script (${gateway.url}).
  For a real one set OPENROUTER_BASE_URL (and OPENROUTER_API_KEY), or AI_GATEWAY_BASE_URL; see README.md.
`;
  }

  const server = await serve({ port, stateDir, vars, quiet: false, cron: true });
  atEnd(() => server.stop());
  const token = process.env.API_TOKENS === undefined ? DEV_TOKEN : "<one of API_TOKENS>";
  console.log(`
AgentDO serves on ${server.url} (state in ${path.relative(process.cwd(), stateDir) || "."}). Ctrl-C ends it.
${note}
  curl -H 'Authorization: Bearer ${token}' ${server.url}/v1/agents
`);
  const { code, signal } = await server.exited;
  throw new UserError(`wrangler dev ended by itself (${signal ?? `code ${code}`})`);
});
