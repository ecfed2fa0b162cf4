/** @typedef {import("./agentdo").Host} Host */

// Arithmetic, read by a small parser of its own: what a model writes is data and is never evaluated as code.
const TOKEN = /\s*(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(.))/gy;

function tokens(expression) {
  const found = [];
  TOKEN.lastIndex = 0;
  for (let match = TOKEN.exec(expression); match !== null; match = TOKEN.exec(expression)) {
    found.push(match[1] === undefined ? match[2] : Number(match[1]));
  }
  return found;
}

function evaluate(expression) {
  const list = tokens(expression.trim());
  let at = 0;
  const take = (token) => (list[at] === token ? (at += 1, true) : false);
  const primary = (depth) => {
    if (depth > 100) throw new Error("too many parentheses");
    if (take("-")) return -primary(depth + 1);
    if (take("(")) {
      const value = sum(depth + 1);
      if (!take(")")) throw new Error("a parenthesis is not closed");
      return value;
    }
    const number = list[at];
    if (typeof number !== "number") throw new Error(`expected a number, found ${number ?? "the end"}`);
    at += 1;
    return number;
  };
  const product = (depth) => {
    let value = primary(depth);
    for (;;) {
      if (take("*")) value *= primary(depth);
      else if (take("/")) value /= primary(depth);
      else if (take("%")) value %= primary(depth);
      else return value;
    }
  };
  const sum = (depth) => {
    let value = product(depth);
    for (;;) {
      if (take("+")) value += product(depth);
      else if (take("-")) value -= product(depth);
      else return value;
    }
  };
  const value = sum(0);
  if (at < list.length) throw new Error(`unexpected ${list[at]}`);
  return value;
}

/** @param {Host} host */
export default function (host) {
  host.registerTool({
    name: "calculate",
    description: "Works out an arithmetic expression of numbers, + - * / % and parentheses.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string", minLength: 1, maxLength: 1000 } },
      required: ["expression"],
      additionalProperties: false,
    },
    replay: "safe",
    execute: async (_toolCallId, { expression }) => ({
      content: [{ type: "text", text: String(evaluate(expression)) }],
    }),
  });
}
