// One request being answered: its record, its connection, and the one question everything else asks: is the client
// still there? All waiting ends when it is not.

const COMMENT = ": OPENROUTER PROCESSING\n\n";

export class Exchange {
  #controller = new AbortController();

  constructor({ res, holds, journal, record = null, live }) {
    Object.assign(this, { res, holds, journal, record });
    live.add(this);
    const left = () => {
      live.delete(this);
      // A stalled response is a fault already; that its client left is worth knowing too.
      const state = record?.state === "fault" ? "fault" : "aborted_by_client";
      this.#end({ state, client_gone: true });
      this.#controller.abort();
    };
    // The client may have left while its body was read: then "close" has been and will not come again.
    if (res.destroyed) left();
    else res.on("close", left);
    res.on("error", () => {}); // A write to a client that left; "close" follows and tells.
  }

  get signal() {
    return this.#controller.signal;
  }

  get gone() {
    return this.signal.aborted;
  }

  #end(change) {
    if (this.record) this.journal.end(this.record, change);
  }

  #mark(change) {
    if (this.record && !this.record.ended_at) Object.assign(this.record, change);
  }

  /** Waits for a release; false when the client left instead. */
  async hold(name, { comments = false, every_ms } = {}) {
    this.#mark({ state: "held", hold: name });
    const wait = this.holds.wait(name, this.signal);
    const released = await (comments ? this.#commentsUntil(wait, every_ms) : wait);
    if (released) this.#mark({ state: "open", hold: undefined });
    return released;
  }

  /** Sleeps, sending comments as the real service does while an upstream is queued. */
  async sleep(ms, { comments = false, every_ms } = {}) {
    if (ms <= 0 || this.gone) return;
    const wait = new Promise((resolve) => {
      const timer = setTimeout(done, ms);
      const { signal } = this;
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      }
      signal.addEventListener("abort", done);
    });
    await (comments ? this.#commentsUntil(wait, every_ms) : wait);
  }

  async #commentsUntil(promise, everyMs) {
    this.comment();
    const timer = setInterval(() => this.comment(), everyMs);
    try {
      return await promise;
    } finally {
      clearInterval(timer);
    }
  }

  comment() {
    if (!this.gone) this.res.write(COMMENT);
  }

  head(status, headers) {
    this.#mark({ status });
    this.res.writeHead(status, headers);
    this.res.flushHeaders();
  }

  /** Writes and waits until the bytes left this process, so that a cut after it cannot take them along. */
  async write(text, splitBytes = null) {
    const bytes = Buffer.from(text);
    const step = splitBytes ?? Math.max(bytes.length, 1);
    for (let at = 0; at < bytes.length && !this.gone; at += step) {
      await new Promise((resolve) => this.res.write(bytes.subarray(at, at + step), resolve));
    }
  }

  countChunk() {
    if (this.record) this.record.chunks += 1;
  }

  /** A whole response. Marked as ended before it is sent: who reads the answer may ask for the record at once. */
  whole(status, headers, body, change = { state: "done" }) {
    if (this.gone) return;
    this.#mark({ status });
    this.#end(change);
    const bytes = Buffer.from(typeof body === "string" ? body : JSON.stringify(body));
    const type = typeof body === "string" ? "text/plain; charset=utf-8" : "application/json";
    this.res.writeHead(status, { "content-type": type, "content-length": bytes.length, ...headers });
    this.res.end(bytes);
  }

  finish(change = { state: "done" }) {
    if (this.gone) return;
    this.#end(change);
    this.res.end();
  }

  /** Breaks the connection, as a crashed upstream does. */
  cut(fault) {
    this.#end({ state: "fault", fault });
    this.res.destroy();
  }

  /** Sends nothing any more (or comments only) until the client gives up. */
  async stall(fault, { comments = false, every_ms } = {}) {
    this.#mark({ state: "fault", fault });
    if (this.gone) return;
    const gone = new Promise((resolve) => this.signal.addEventListener("abort", resolve));
    await (comments ? this.#commentsUntil(gone, every_ms) : gone);
  }
}
