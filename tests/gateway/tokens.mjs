// A token endpoint: gives bearers that end soon, and knows which it gave. What it does next is set by
// `POST /control/token`.

const KEYS = ["expires_in", "access_token", "hold", "status", "body", "enforce"];
const ISSUED_MAX = 10_000;

export class Tokens {
  #config = {};
  #issued = new Map();
  #count = 0;

  /** Throws on an unknown key, so that a typo is seen. */
  configure(config) {
    const unknown = Object.keys(config).filter((key) => !KEYS.includes(key));
    if (unknown.length > 0) throw new Error(`unknown keys: ${unknown.join(", ")}; known: ${KEYS.join(", ")}`);
    this.#config = config;
  }

  get config() {
    return this.#config;
  }

  /** `{status, body}` of the next answer. */
  issue() {
    const { expires_in = 3600, access_token, status = 200, body } = this.#config;
    if (status !== 200) return { status, body: body ?? { error: "temporarily_unavailable" } };
    this.#count += 1;
    const token = access_token ?? `stand-in-token-${process.pid}-${this.#count}`;
    this.#issued.set(token, Date.now() + expires_in * 1000);
    if (this.#issued.size > ISSUED_MAX) this.#issued.delete(this.#issued.keys().next().value);
    return { status, body: { access_token: token, expires_in, token_type: "Bearer" } };
  }

  /** With `enforce`, only a bearer that was given here and has not ended is good. */
  accepts(authorization) {
    if (!this.#config.enforce) return true;
    const until = this.#issued.get((authorization ?? "").replace(/^Bearer /i, ""));
    return until !== undefined && Date.now() < until;
  }

  clear() {
    this.#config = {};
    this.#issued.clear();
  }
}
