// What the commands at the terminal share.

import { UserError } from "./serve.mjs";

/**
 * Runs a command. A UserError is shown as one line; SIGINT, SIGTERM and SIGHUP call `stop` once and end with the signal's
 * code, and a second one ends at once (what still runs is killed on the way out).
 */
export async function command(main) {
  const cleanups = [];
  let stopping = false;
  const stop = async () => {
    for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  };
  for (const [signal, number] of [["SIGHUP", 1], ["SIGINT", 2], ["SIGTERM", 15]]) {
    process.on(signal, async () => {
      if (stopping) process.exit(128 + number);
      stopping = true;
      await stop().catch((error) => console.error(error));
      process.exit(128 + number);
    });
  }
  try {
    const code = await main({ atEnd: (cleanup) => cleanups.push(cleanup) });
    if (stopping) return;
    await stop();
    process.exit(code ?? 0);
  } catch (error) {
    if (stopping) return;
    console.error(error instanceof UserError ? `error: ${error.message}` : error);
    await stop().catch(() => {});
    process.exit(1);
  }
}
