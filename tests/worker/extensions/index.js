// The test Worker's extensions in JavaScript.
import * as counter from "./counter.js";
import * as holds from "./holds.js";
import * as verdicts from "./verdicts.js";
import * as weird from "./weird.js";

const list = [
  { name: "counter", default: counter.default },
  { name: "holds", default: holds.default },
  { name: "verdicts", default: verdicts.default },
  { name: "weird", default: weird.default },
];

export function extensions() {
  return list;
}
