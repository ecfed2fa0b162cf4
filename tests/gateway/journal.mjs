// What happened: requests, counters and posted scenarios, kept in memory and, with a file, on disk. Lines are written
// synchronously because the tests kill this process: what was answered must be in the file.

import { closeSync, createReadStream, existsSync, fstatSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

const RECORDS_MAX = 100_000;
const BODY_BYTES_MAX = 256 * 1024 * 1024;
const COUNTER_NAMES_MAX = 10_000;
const COUNTER_KEYS_MAX = 100_000;

export class Journal {
  #records = new Map();
  #bodies = new Map();
  #bodyBytes = 0;
  #counters = new Map();
  #file = null;
  #seq = 0;

  /** Reads what an earlier process left, then appends. `onLine` sees every line that is not the journal's own. */
  async open(path, onLine) {
    if (existsSync(path)) {
      const lines = createInterface({ input: createReadStream(path, "utf8"), crlfDelay: Infinity });
      for await (const line of lines) this.#reread(line, onLine);
    }
    for (const record of this.#records.values()) {
      if (record.state === "open" || record.state === "held") Object.assign(record, { state: "fault", fault: "gateway_restarted" });
    }
    this.#file = openSync(path, "a+");
    this.#mendTornLine();
  }

  #reread(text, onLine) {
    let line;
    try {
      line = JSON.parse(text);
    } catch {
      return; // The line a kill cut short.
    }
    if (line.type === "request") this.#keep(line.record, text.length);
    else if (line.type === "end") Object.assign(this.#records.get(line.seq) ?? {}, line.change);
    else if (line.type === "counter") this.#bump(line.name, line.key);
    else if (line.type === "reset") this.#seq = Math.max(this.#seq, line.seq);
    else onLine(line);
    if (line.type === "request") onLine(line);
  }

  #mendTornLine() {
    const size = fstatSync(this.#file).size;
    const last = Buffer.alloc(1);
    if (size > 0 && readSync(this.#file, last, 0, 1, size - 1) === 1 && last[0] !== 0x0a) writeSync(this.#file, "\n");
  }

  write(line) {
    if (this.#file === null) return;
    const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
    for (let sent = 0; sent < bytes.length; ) sent += writeSync(this.#file, bytes, sent);
  }

  /** Adds a request; the returned object is live until `end`. */
  add(fields, bodyBytes) {
    const record = { seq: this.#seq + 1, at: new Date().toISOString(), ...fields, state: "open", chunks: 0 };
    this.#keep(record, bodyBytes);
    this.write({ type: "request", record });
    return record;
  }

  /** Marks how a request ended, once: the first end is the true one. */
  end(record, change) {
    if (record.ended_at) return;
    Object.assign(record, change, { ended_at: new Date().toISOString() });
    const { seq, state, fault, chunks, status, ended_at, client_gone } = record;
    this.write({ type: "end", seq, change: { state, fault, chunks, status, ended_at, client_gone } });
  }

  #keep(record, bodyBytes) {
    this.#seq = Math.max(this.#seq, record.seq);
    this.#records.set(record.seq, record);
    this.#bodies.set(record.seq, bodyBytes);
    this.#bodyBytes += bodyBytes;
    if (this.#records.size > RECORDS_MAX) {
      const oldest = this.#records.keys().next().value;
      this.#dropBody(oldest);
      this.#records.delete(oldest);
    }
    while (this.#bodyBytes > BODY_BYTES_MAX && this.#bodies.size > 1) this.#dropBody(this.#bodies.keys().next().value);
  }

  #dropBody(seq) {
    this.#bodyBytes -= this.#bodies.get(seq) ?? 0;
    this.#bodies.delete(seq);
    const record = this.#records.get(seq);
    if (record) Object.assign(record, { body: null, body_dropped: true });
  }

  records() {
    return [...this.#records.values()];
  }

  get lastSeq() {
    return this.#seq;
  }

  #bump(name, key) {
    const counter = this.#counters.get(name) ?? { count: 0, keys: [] };
    counter.count += 1;
    if (key !== undefined && counter.keys.length < COUNTER_KEYS_MAX) counter.keys.push(key);
    this.#counters.set(name, counter);
    return counter.count;
  }

  /** Adds one to a counter and says its count; null when there are too many names. */
  count(name, key) {
    if (!this.#counters.has(name) && this.#counters.size >= COUNTER_NAMES_MAX) return null;
    this.write({ type: "counter", name, key, at: new Date().toISOString() });
    return this.#bump(name, key);
  }

  counters() {
    return Object.fromEntries([...this.#counters].map(([name, { count, keys }]) => [name, { count, keys: [...keys] }]));
  }

  /** Forgets everything but the numbering, so that a seq never names two requests. */
  reset() {
    this.#records.clear();
    this.#bodies.clear();
    this.#bodyBytes = 0;
    this.#counters.clear();
    if (this.#file !== null) ftruncateSync(this.#file, 0);
    this.write({ type: "reset", seq: this.#seq });
  }

  close() {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }
}
