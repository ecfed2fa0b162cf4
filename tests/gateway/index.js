// Node 22 no longer looks for tests in a folder it is given but runs the folder: this makes both do the same.
import("./gateway.test.mjs");
