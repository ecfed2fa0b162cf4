// A tool and a handler that do what no extension should: none of it may kill the instance or spoil the transcript.
const text = (value) => ({ content: [{ type: "text", text: value }] });

function nested(depth) {
  let value = "bottom";
  for (let level = 0; level < depth; level++) value = [value];
  return value;
}

function cyclic() {
  const value = { ...text("round") };
  value.self = value;
  return value;
}

/** Kind to what the tool does. */
const DEEDS = {
  "gives-undefined": () => undefined,
  "gives-null": () => null,
  "gives-number": () => 7,
  "gives-function": () => () => "no",
  "gives-symbol": () => Symbol("s"),
  "gives-bigint": () => 7n,
  "gives-cyclic": () => cyclic(),
  "gives-empty-text": () => "",
  "gives-empty-content": () => ({ content: [] }),
  "gives-empty-part": () => text(""),
  "gives-blank-part": () => text(" \n\t "),
  "gives-content-object": () => ({ content: { type: "text", text: "x" } }),
  "gives-unknown-part": () => ({ content: [{ type: "video", url: "x" }] }),
  "gives-part-null": () => ({ content: [null] }),
  "gives-image": () => ({ content: [{ type: "image", data: "iVBORw0KGgo=", mimeType: "image/png" }] }),
  "gives-is-error-text": () => ({ ...text("x"), isError: "yes" }),
  "gives-getter": () => ({
    get content() {
      throw new Error("a getter");
    },
  }),
  "gives-to-json": () => ({ toJSON: () => undefined }),
  "gives-to-json-throws": () => ({
    toJSON: () => {
      throw null;
    },
  }),
  "gives-proxy": () =>
    new Proxy(text("x"), {
      get() {
        throw new Error("a proxy");
      },
    }),
  "gives-revoked-proxy": () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    return proxy;
  },
  "gives-huge": () => text("x".repeat(5_000_000)),
  "gives-large": () => text("ü".repeat(1_200_000)),
  "gives-lone-surrogate": () => text("a\ud800b"),
  "gives-nul": () => text("a\0b"),
  "gives-deep": () => ({ ...text("deep"), details: nested(3_000) }),
  "gives-thenable": () => ({ then: (resolve) => resolve(text("then")) }),
  "gives-thenable-throws": () => ({
    then: () => {
      throw undefined;
    },
  }),
  "gives-then-getter": () => ({
    get then() {
      throw new Error("then");
    },
  }),
  "throws-undefined": () => {
    throw undefined;
  },
  "throws-symbol": () => {
    throw Symbol("thrown");
  },
  "throws-getter": () => {
    const error = new Error("x");
    Object.defineProperty(error, "message", {
      get() {
        throw new Error("message");
      },
    });
    throw error;
  },
  "throws-message-object": () => {
    const error = new Error("x");
    Object.defineProperty(error, "message", { value: { no: "text" } });
    throw error;
  },
  "throws-long": () => {
    throw new Error("long ".repeat(1_000_000));
  },
  "throws-empty": () => {
    throw new Error("");
  },
  "rejects-null": () => Promise.reject(null),
  "memo-number": (ctx) => text(String(ctx.memo(7, 1))),
  "memo-nothing": (ctx) => text(String(ctx.memo())),
  "memo-object": (ctx) => text(String(ctx.memo({}, []))),
  "memo-symbol": (ctx) => text(String(ctx.memo(Symbol("s"), 1))),
  "memo-cyclic": (ctx) => text(String(ctx.memo("c", cyclic()))),
  "memo-bigint": (ctx) => text(String(ctx.memo("b", 1n))),
  "memo-huge": (ctx) => text(String(ctx.memo("h", "x".repeat(3_000_000)).length)),
  "memo-surrogate": (ctx) => text(String(ctx.memo("a\ud800", "\udc00"))),
  "log-numbers": (ctx) => text(String(ctx.log(1, 2))),
  "log-nothing": (ctx) => text(String(ctx.log())),
  "log-objects": (ctx) => text(String(ctx.log({}, Symbol("s")))),
  "update-anything": (_ctx, onUpdate) => text(String(onUpdate(1, {}, undefined))),
  "uses-ctx-late": (ctx) => {
    setTimeout(() => {
      ctx.log("info", `late ${ctx.now()}`);
      ctx.memo("late", 1);
    }, 100);
    return text("later");
  },
  // workerd lets what a listener throws out of abort().
  "throws-at-its-signal": (ctx) => {
    ctx.signal.addEventListener("abort", () => {
      ctx.memo("at the signal", 1);
      throw new Error("a listener");
    });
    return new Promise(() => {});
  },
  "breaks-ctx": (ctx) => {
    delete ctx.signal;
    ctx.env.EXT_COUNTER_URL = "http://127.0.0.1:9/";
    Object.freeze(ctx);
    return text("broken");
  },
};

export const KINDS = Object.keys(DEEDS);

export default function (host) {
  host.registerTool({
    name: "weird",
    description: "Does what it should not.",
    parameters: { type: "object", properties: { kind: { type: "string" } }, required: ["kind"] },
    replay: "safe",
    timeoutMs: 5_000,
    execute: (_toolCallId, { kind }, _signal, onUpdate, ctx) => DEEDS[kind](ctx, onUpdate),
  });
  const inputs = {
    "input-gone": (event) => delete event.input,
    "input-null": (event) => (event.input = null),
    "input-cyclic": (event) => (event.input.self = event.input),
    "input-bigint": (event) => (event.input.big = 1n),
    "input-undefined": (event) => (event.input.kind = undefined),
    "input-deep": (event) => (event.input.deep = nested(3_000)),
    "input-frozen": (event) => Object.freeze(event),
    "input-getter": (event) =>
      Object.defineProperty(event, "input", {
        get() {
          throw new Error("input");
        },
      }),
    "returns-text": () => "block",
    "returns-true": () => true,
    "returns-block-text": () => ({ block: "true" }),
    "returns-reason-number": () => ({ block: true, reason: 7 }),
    "returns-reason-empty": () => ({ block: true, reason: "" }),
    "returns-cyclic": () => cyclic(),
  };
  host.on("tool_call", (event, ctx) => {
    const deed = inputs[ctx.agentId.replace(/^weird-/, "")];
    if (deed === undefined) return undefined;
    const returned = deed(event);
    return ctx.agentId.startsWith("weird-returns-") ? returned : undefined;
  });
}
