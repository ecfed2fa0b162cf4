// The Worker's variables: which there are, and how they reach `wrangler dev` unchanged and out of sight.

import { createHash } from "node:crypto";

/**
 * The variables of the Worker's configuration, besides its deadlines and intervals, all of which end in `_MS`. A test holds
 * this list against the Worker's own.
 */
export const VARIABLES = [
  "AI_GATEWAY_BASE_URL",
  "AI_GATEWAY_TOKEN",
  "OPENROUTER_BASE_URL",
  "OPENROUTER_API_KEY",
  "OPENROUTER_TOKEN_URL",
  "VERTEX_PROJECT",
  "VERTEX_LOCATION",
  "VERTEX_SERVICE_ACCOUNT",
  "MODEL_PROVIDER",
  "TIERS",
  "ROUTING",
  "WORKERS_AI_TOKEN",
  "AGENT_DEFAULTS",
  "AUTO_UNBLOCK",
  "MAX_CALLS_PER_RUN",
  "DAILY_AGENT_CALLS",
  "DAILY_OPENROUTER_CALLS",
  "DAILY_SELF_CALLBACKS",
  "MAX_WORKING_AGENTS",
  "RUNNER_URL",
  "API_TOKENS",
  "RETENTION_DAYS",
  "LIVENESS_CHECKS_MAX",
  "RETRY_COUNT_MAX",
  "STREAM_BATCH_BYTES",
];

/** Whether an environment variable belongs to the Worker's configuration. */
export function isVariable(name) {
  return VARIABLES.includes(name) || /^[A-Z][A-Z0-9_]*_MS$/.test(name);
}

/** The part of an environment that is the Worker's configuration. */
export function variablesOf(environment) {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => isVariable(name)));
}

/** The token that has all scopes under `make dev`, and nowhere else. */
export const DEV_TOKEN = "dev-token";

/** A value for API_TOKENS: who may call, by the hash of the token. */
export function apiTokens(...tokens) {
  return JSON.stringify(
    tokens.map(({ token, tenant = "dev", scopes = ["read", "write", "admin"] }) => ({
      sha256: createHash("sha256").update(token).digest("hex"),
      tenant,
      scopes,
    })),
  );
}

/**
 * The text of an env file from which wrangler reads exactly these values. Wrangler parses it with dotenv and expands
 * `$NAME` in it, so quotes are chosen by what a value contains and every `$` is escaped.
 */
export function envFile(variables) {
  return Object.entries(variables)
    .map(([name, value]) => `${name}=${quoted(name, value)}\n`)
    .join("");
}

function quoted(name, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
    throw new Error(`${JSON.stringify(name)} is not a variable's name`);
  }
  if (text === undefined || /\r|\0/.test(text)) {
    throw new Error(`${name}: a value cannot be undefined or hold a carriage return or a NUL`);
  }
  for (const candidate of [text, withoutQuotes(text)]) {
    // A backslash at the end would escape the closing quote.
    if (candidate === undefined || candidate.endsWith("\\")) continue;
    const escaped = candidate.replaceAll("$", "\\$");
    if (!candidate.includes("'")) return `'${escaped}'`;
    if (!candidate.includes("`")) return `\`${escaped}\``;
    // Within double quotes dotenv turns \n and \r into line ends.
    if (!/"|\\[nr]/.test(candidate)) return `"${escaped}"`;
  }
  throw new Error(`${name}: wrangler's env file cannot hold a value with all of ', \` and ", or with \\ at its end`);
}

/** The same JSON without a single quote, which can only stand inside its strings. */
function withoutQuotes(text) {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  return text.replaceAll("'", "\\u0027");
}
