// The test Worker's extensions in JavaScript.
import * as counter from "./counter.js";
import * as holds from "./holds.js";
import * as verdicts from "./verdicts.js";

const list = [
  { name: "counter", default: counter.default },
  { name: "holds", default: holds.default },
  { name: "verdicts", default: verdicts.default },
];

export function extensions() {
  return list;
}
