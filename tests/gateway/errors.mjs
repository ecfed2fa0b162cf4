// The error shapes of the two services in front of a model. They differ on purpose: a client that reads only one of
// them mistakes a gateway's refusal for an unknown failure.

/** The gateway's own codes: HTTP status and text (2005 is really sent with 400 although it is transient). */
export const GATEWAY_CODES = {
  2001: { status: 400, message: "Please configure AI Gateway in the Cloudflare dashboard" },
  2003: { status: 429, message: "Rate limited" },
  2005: { status: 400, message: "Failed to get response from provider" },
  2009: { status: 401, message: "Unauthorized" },
  2021: { status: 402, message: "Insufficient credits: add credits or store a provider key" },
  2045: { status: 429, message: "Spend limit exceeded: rule 'stand-in' (cost limit 1 per 86400s, fixed) for gateway" },
  7003: { status: 404, message: "No such model" },
};

/** `{status, body}` as Cloudflare AI Gateway answers: the key is `error` and holds an array. */
export function gatewayError(code, { status, message } = {}) {
  const known = GATEWAY_CODES[code] ?? { status: 400, message: "Gateway error" };
  const httpCode = status ?? known.status;
  const error = [{ code, message: message ?? known.message }];
  const body = { success: false, result: [], messages: [], error, name: "AiGatewayError", httpCode, internalCode: code };
  return { status: httpCode, body };
}

/** The body OpenRouter sends, alone or inside a stream. */
export function openrouterError(code, message, metadata = {}) {
  return { error: { code, message, metadata }, user_id: "user_standin" };
}

/**
 * The body of a refusal. What OpenRouter checks itself it says itself; what an upstream refuses it relays as
 * "Provider returned error" with the upstream's words in `metadata.raw`, and a client has to look there.
 */
export function refusalBody(reasons) {
  const own = reasons.find((reason) => reason.by === "platform");
  const texts = reasons.map((reason) => reason.text);
  if (own) return openrouterError(400, own.text, { error_type: "invalid_request", stand_in_reasons: texts });
  const raw = JSON.stringify({ error: { message: texts[0], type: "invalid_request_error" } });
  const metadata = { error_type: "invalid_request", provider_name: "StandIn", raw, stand_in_reasons: texts };
  return openrouterError(400, "Provider returned error", metadata);
}
