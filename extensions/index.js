// The extensions of this repository's own Worker. Order is the order in which their handlers are asked.
import * as clock from "./clock.js";
import * as calculator from "./calculator.js";

const list = [
  { name: "clock", default: clock.default },
  { name: "calculator", default: calculator.default },
];

export function extensions() {
  return list;
}
