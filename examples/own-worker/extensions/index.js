// The extensions in JavaScript, in the order in which their handlers are asked.
import * as discretion from "./discretion.js";

const list = [{ name: "discretion", default: discretion.default }];

export function extensions() {
  return list;
}
