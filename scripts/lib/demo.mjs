// What `make demo` prints, and how it judges what it saw.

import { isDeepStrictEqual } from "node:util";

const WIDTH = 78;
const INDENT = 10;

/** Prints what happens, within 80 columns; with colour only at a terminal that wants it. */
export function transcript(out) {
  const coloured = out.isTTY && !process.env.NO_COLOR && process.env.TERM !== "dumb";
  const paint = (code, text) => (coloured ? `\x1b[${code}m${text}\x1b[0m` : text);
  const dim = (text) => paint(2, text);
  const bold = (text) => paint(1, text);
  let steps = 0;
  /** Column of an open line of streamed text; 0 when there is none. */
  let column = 0;
  let word = "";
  /** What of each block was shown: a client that connects late gets it from its beginning. */
  let shown = new Map();
  let text = "";

  const line = (whole) => {
    closeStream();
    out.write(`${whole}\n`);
  };
  const labelled = (label, content, style = (part) => part) => {
    const lines = wrapped(content, WIDTH - INDENT);
    lines.forEach((part, index) => line(`  ${dim((index === 0 ? label : "").padEnd(INDENT - 2))}${style(part)}`));
  };
  const putWord = (piece) => {
    const breaks = column + 1 + piece.length > WIDTH;
    if (column === 0 || breaks) {
      out.write(`${column === 0 ? "" : "\n"}${" ".repeat(INDENT)}`);
      column = INDENT;
    } else {
      out.write(" ");
      column += 1;
    }
    out.write(piece);
    column += piece.length;
  };
  const stream = (piece) => {
    text += piece;
    word += piece;
    for (let end = word.search(/\s/); end >= 0; end = word.search(/\s/)) {
      if (end > 0) putWord(word.slice(0, end));
      word = word.slice(end + 1);
    }
  };
  function closeStream() {
    if (word) putWord(word);
    if (column > 0) out.write("\n");
    column = 0;
    word = "";
  }

  const byKind = {
    run_started: (event) => labelled("run", event.run_id),
    call_started: (event) => {
      text = "";
      const again = event.attempt > 1 ? `, attempt ${event.attempt}` : "";
      labelled(`call ${event.call}`, `${event.model}${again}`);
    },
    delta: (event) => {
      if (event.kind !== "text") return;
      const key = `${event.op} ${event.block}`;
      const have = shown.get(key) ?? 0;
      const fresh = event.text.slice(Math.max(0, have - event.offset));
      if (event.offset > have || fresh === "") return;
      shown.set(key, event.offset + event.text.length);
      stream(fresh);
    },
    reset_delta: () => {
      shown = new Map();
      closeStream();
    },
    call_ended: (event) => {
      const { input_tokens: sent, output_tokens: got, cost_usd: cost, estimated } = event.usage;
      const price = estimated ? "cost not told" : `$${cost.toFixed(6)}`;
      if (event.outcome === "lost") labelled(`call ${event.call}`, "lost with the process");
      else labelled("", `${sent} tokens in, ${got} out, ${price}`, dim);
      shown = new Map();
    },
    tool_started: (event) => labelled("tool", `${event.tool} ${JSON.stringify(event.arguments)}`),
    submission: (event) => labelled("message", `${event.status}${event.reason ? `: ${event.reason}` : ""}`, bold),
    run_ended: (event) => labelled("run", `${event.outcome}, ${event.calls} model calls`),
    entry: ({ entry }) => {
      const { kind, message } = entry;
      const content = message.content.map((block) => block.text ?? "").join("");
      if (kind === "user") labelled("user", content, bold);
      if (kind === "tool_result") labelled("result", content);
      if (kind === "assistant" && (message.aborted || message.error)) {
        labelled("aborted", `a partial answer of ${content.length} characters stays in the transcript, marked`);
      }
    },
  };

  return {
    title: (title) => line(`\n${bold(title)}`),
    step: (title) => line(`\n${bold(`${++steps}. ${title}`)}`),
    fact: (label, content) => labelled(label, content),
    note: (content) => labelled("", content, dim),
    loud: (content) => labelled("***", content, bold),
    event: (event) => byKind[event.type]?.(event),
    /** What was streamed of the call in progress. */
    streamed: () => text,
    check(what, wrong) {
      const mark = wrong === undefined ? paint(32, "✓") : paint(31, "✗");
      wrapped(what, WIDTH - 4).forEach((part, index) => line(`  ${index === 0 ? mark : " "} ${part}`));
      if (wrong !== undefined) wrapped(String(wrong), WIDTH - 6).forEach((part) => line(`      ${part}`));
    },
    end: (content, good) => line(`\n${paint(good ? 32 : 31, content)}`),
  };
}

function wrapped(content, width) {
  const lines = [""];
  for (const word of content.split(/\s+/)) {
    const joined = lines.at(-1) === "" ? word : `${lines.at(-1)} ${word}`;
    if (joined.length <= width) lines[lines.length - 1] = joined;
    else if (lines.at(-1) === "") lines[lines.length - 1] = word;
    else lines.push(word);
  }
  return lines;
}

/**
 * What must be so after the demo: `[{what, wrong}]`, with `wrong` undefined where it is. `requests` are those the stand-in
 * wrote down; all else is what our own API said.
 */
export function checks(seen) {
  const { from, events, replay, agent, first, second, submissions, killed, requests, script } = seen;
  const results = [];
  const check = (what, judge) => {
    let wrong;
    try {
      wrong = judge();
    } catch (error) {
      wrong = error.message;
    }
    results.push({ what, wrong: wrong || undefined });
  };
  const assistants = events.filter((event) => event.entry?.kind === "assistant").map((event) => event.entry);
  const scripted = (name) => script.find((scenario) => scenario.name === name).turns;
  const runs = (type) => events.filter((event) => event.type === type).map((event) => event.run_id);
  const of = (scenario) => requests.filter((request) => request.scenario === scenario);
  const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

  check("both messages are done, with the whole answers", () =>
    [[first, "minutes"], [second, "long-answer"]]
      .map(([request, name]) => {
        const { status, answer } = submissions[request.id];
        if (status !== "done") return `${request.id} is ${status}`;
        return answer.text === scripted(name).at(-1).text ? "" : `${request.id} has another answer: ${answer.text}`;
      })
      .find(Boolean),
  );
  check("the run that was killed is the run that finished; no other was begun", () => {
    if (!killed.run) return "no run was seen before the kill";
    if (runs("run_started").length !== 2) return `runs begun: ${runs("run_started")}`;
    return isDeepStrictEqual(runs("run_started"), runs("run_ended")) && runs("run_ended")[1] === killed.run
      ? ""
      : `begun ${runs("run_started")}, ended ${runs("run_ended")}, killed ${killed.run}`;
  });
  check("what had been streamed is kept, marked aborted, and is not sent back", () => {
    const partial = assistants.filter(({ message }) => message.aborted);
    if (partial.length !== 1) return `${partial.length} entries are marked aborted`;
    const kept = textOf(partial[0].message);
    if (kept.length === 0) return "the partial is empty";
    if (!scripted("long-answer").at(-1).text.startsWith(kept)) return `it is no beginning of the answer: ${kept}`;
    const sent = of("long-answer").at(-1).body.messages.at(-1);
    return sent.role === "tool" ? "" : `the call sent again ends with a message of ${sent.role}`;
  });
  check("the cut call was sent again, the same messages, and nothing else twice", () => {
    const tries = requests.map((r) => `${r.scenario} turn ${r.turn} try ${r.attempt} ${r.state}`);
    const cut = tries.length === 6 ? tries[4].replace(/\S+$/, "") : "";
    const wanted = [
      "minutes turn 0 try 1 done", "minutes turn 1 try 1 done", "minutes turn 2 try 1 done",
      "long-answer turn 0 try 1 done", `${cut}aborted_by_client`, "long-answer turn 1 try 2 done",
    ];
    if (!isDeepStrictEqual(tries, wanted)) return `the stand-in saw: ${tries.join("; ")}`;
    if (cut !== "long-answer turn 1 try 1 ") return `the cut call was: ${cut}`;
    return isDeepStrictEqual(requests[4].body.messages, requests[5].body.messages) ? "" : "its messages differ";
  });
  check("the stand-in found every request valid", () =>
    requests.filter((request) => request.invalid?.length > 0).map((request) => request.invalid.join("; ")).join("; "),
  );
  check("each of the 4 tool calls was executed once", () => {
    const calls = assistants.flatMap(({ message }) => message.content.filter((block) => block.type === "tool_call"));
    if (calls.length !== 4) return `the model asked for ${calls.length}`;
    return calls
      .map(({ id, name }) => {
        const count = (type) => events.filter((event) => event.type === type && event.tool_call_id === id).length;
        if (count("tool_started") !== 1 || count("tool_ended") !== 1) {
          return `${name} ${id} began ${count("tool_started")} times and ended ${count("tool_ended")} times`;
        }
        // From outside: a second execution of the clock would have sent another time.
        const sent = requests.flatMap((r) => r.body.messages.filter((m) => m.role === "tool" && m.tool_call_id === id));
        const texts = new Set(sent.map((message) => JSON.stringify(message.content)));
        return texts.size === 1 ? "" : `the stand-in got ${texts.size} different results of ${name} ${id}`;
      })
      .find(Boolean);
  });
  check("across both connections each durable event came once, in order", () => {
    const wanted = Array.from({ length: agent.last_seq - from }, (_, n) => from + n + 1);
    const numbers = (list) => list.map((event) => event.seq);
    if (!isDeepStrictEqual(numbers(events), wanted)) return `wanted ${from + 1} to ${agent.last_seq}, got ${numbers(events)}`;
    if (events.some((event) => event.id !== event.seq)) return "an event's id is not its number";
    return isDeepStrictEqual(events, replay) ? "" : "a replay from the beginning tells it otherwise";
  });
  check("the agent rests: idle, no alarm set", () =>
    agent.status === "idle" && agent.next_wake_at === null ? "" : `status ${agent.status}, next wake ${agent.next_wake_at}`,
  );
  return results;
}
