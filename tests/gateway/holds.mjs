// Named places where a response waits until a test lets it go. No deadline: a hold ends by its release or when the
// client goes away, so nothing here can decide a test's verdict by time.

export class Holds {
  #waiting = new Map();
  #open = new Set();

  /** Resolves true when released, false when the client went away first. */
  wait(name, signal) {
    if (signal.aborted) return Promise.resolve(false);
    if (this.#open.has(name)) return Promise.resolve(true);
    return new Promise((resolve) => {
      const leave = (released) => {
        signal.removeEventListener("abort", gone);
        const waiters = this.#waiting.get(name);
        waiters?.delete(leave);
        if (waiters?.size === 0) this.#waiting.delete(name);
        resolve(released);
      };
      const gone = () => leave(false);
      signal.addEventListener("abort", gone);
      if (!this.#waiting.has(name)) this.#waiting.set(name, new Set());
      this.#waiting.get(name).add(leave);
    });
  }

  /** Lets those waiting go, the oldest first; with `all` also whoever comes later. Says how many went. */
  release(name, { all = false, count = Infinity } = {}) {
    if (all) this.#open.add(name);
    const going = [...(this.#waiting.get(name) ?? [])].slice(0, count);
    for (const leave of going) leave(true);
    return going.length;
  }

  /** Name to how many wait on it. */
  waiting() {
    return Object.fromEntries([...this.#waiting].map(([name, waiters]) => [name, waiters.size]));
  }

  /** Forgets releases of later arrivals. Whoever waits still waits: ending them is their owner's business. */
  clear() {
    this.#open.clear();
  }
}
