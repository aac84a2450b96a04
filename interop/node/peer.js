"use strict";
/*
 * node-redlock, driven by lines, on one Redis server or on several (RedLock).
 * ../README.md has the protocol.
 *
 * Each label is one chain of promises with locks of its own: commands of one label run in order,
 * commands of different labels at the same time.
 *
 * Arguments: the URLs of the Redis servers.
 */
const path = require("node:path");
const readline = require("node:readline");
const { createRequire } = require("node:module");

// The packages are where everything is that interop/build makes.
const { INTEROP_TARGET } = process.env;
const target = INTEROP_TARGET ? path.join(INTEROP_TARGET, "node") : path.join(__dirname, "target");
const built = createRequire(path.join(target, "package.json"));
const Redis = built("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = built("redlock");

const KILLED = 137;
const ONCE = { retryCount: 0 };

const answer = (id, text) => process.stdout.write(`@ ${id} ${text}\n`);

// A node that is down must fail its vote, and not hold the command back until it is up again; one
// of several that hangs must not hold the majority back.
const urls = process.argv.slice(2);
const options = { maxRetriesPerRequest: 0, enableOfflineQueue: false };
if (urls.length > 1) options.commandTimeout = 1000;
const clients = urls.map((url) => {
  const client = new Redis(url, options);
  client.on("error", () => {});
  return client;
});
const redlock = new Redlock(clients, { ...ONCE, retryJitter: 0 });

/** Why the last attempt failed: "locked" if a majority says so, else what the other nodes said. */
async function cause(error) {
  if (!(error instanceof ExecutionError) || error.attempts.length === 0) return error;
  const { votesAgainst, quorumSize } = await error.attempts[error.attempts.length - 1];
  const isLocked = (vote) => vote instanceof ResourceLockedError;
  const causes = [...votesAgainst.values()];
  const locked = causes.filter(isLocked);
  if (locked.length >= quorumSize) return locked[0];
  return causes.find((vote) => !isLocked(vote)) ?? error;
}

async function take(locks, verb, name, options) {
  const settings =
    verb === "try"
      ? ONCE
      : { retryCount: (options.tries ?? 400) - 1, retryDelay: options.delay ?? 50 };
  try {
    locks.set(name, await redlock.acquire([name], options.ttl ?? 10000, settings));
    return verb === "try" ? "true" : "";
  } catch (error) {
    const why = await cause(error);
    if (verb === "try" && why instanceof ResourceLockedError) return "false";
    throw why;
  }
}

async function command(locks, verb, [name, ...words]) {
  if (name === undefined) throw new Error(`${verb} needs a name`);
  const options = Object.fromEntries(
    words.map((word) => word.split("=")).map(([key, value]) => [key, Number(value)]),
  );
  if (verb === "lock" || verb === "try") return take(locks, verb, name, options);
  const lock = locks.get(name);
  if (lock === undefined) throw new Error(`this label never took ${name}`);
  try {
    switch (verb) {
      case "unlock":
        await redlock.release(lock, ONCE);
        return "";
      case "extend":
        locks.set(name, await redlock.extend(lock, options.ttl ?? 10000, ONCE));
        return "";
      case "owner":
        return lock.value;
    }
  } catch (error) {
    throw await cause(error);
  }
  throw new Error(`unknown command ${verb}`);
}

const labels = new Map();

function run(id, label, verb, words) {
  if (!labels.has(label)) labels.set(label, { locks: new Map(), last: Promise.resolve() });
  const state = labels.get(label);
  state.last = state.last.then(() =>
    command(state.locks, verb, words).then(
      (value) => answer(id, value ? `ok ${value}` : "ok"),
      (error) => answer(id, `err ${error.name} ${String(error.message).replace(/\s+/g, " ")}`),
    ),
  );
}

async function main() {
  // Connected, or known to be down: without its offline queue, a client that still connects refuses.
  await Promise.all(
    clients.map((client) => new Promise((done) => client.once("ready", done).once("close", done))),
  );
  answer(0, `ok node-redlock ${built("./package.json").dependencies.redlock}`);
  const lines = readline.createInterface({ input: process.stdin, terminal: false });
  lines.on("line", (line) => {
    const [id, label, verb, ...words] = line.trim().split(/\s+/);
    if (verb === undefined) answer(id || 0, "err usage ID LABEL VERB ARGUMENTS");
    else if (verb === "crash") process.exit(KILLED);
    else if (verb === "quit") redlock.quit().then(() => { answer(id, "ok"); process.exit(0); });
    else run(id, label, verb, words);
  });
  // Whoever drove us is gone: as a crash, so that no test is helped by a tidy end.
  lines.on("close", () => process.exit(KILLED));
}

main();
