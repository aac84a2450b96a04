"use strict";
/*
 * Turns with node-redlock, timed. ../README.md has the protocol of the bench programs.
 *
 * Arguments: the URL of the Redis server, or of several (RedLock) separated by commas, the library, and
 * the lease in milliseconds.
 */
const path = require("node:path");
const readline = require("node:readline");
const { createRequire } = require("node:module");

// The packages are in target, with everything else that is built.
const { INTEROP_TARGET } = process.env;
const target = INTEROP_TARGET ? path.join(INTEROP_TARGET, "node") : path.join(__dirname, "target");
const built = createRequire(path.join(target, "package.json"));
const Redis = built("ioredis");
const { default: Redlock, ExecutionError } = built("redlock");

const [, , servers, library, milliseconds] = process.argv;
const [urls, lease] = [servers.split(","), Number(milliseconds)];
const now = () => process.hrtime.bigint();

/** One client, with the library's own way to wait: ten tries, 200 ms and some jitter apart. */
async function connect() {
  const connections = urls.map((url) => new Redis(url));
  await Promise.all(connections.map((connection) => connection.ping()));
  const redlock = new Redlock(connections);
  redlock.on("error", () => {});
  return redlock;
}

/** Turns until the time is over, as (task, asked, granted, done); how many calls failed. */
async function task(number, redlock, name, until, turns) {
  let failed = 0;
  for (let asked = now(); asked < until; asked = now()) {
    let lock;
    while (lock === undefined) {
      try {
        lock = await redlock.acquire([name], lease);
      } catch (error) {
        if (!(error instanceof ExecutionError)) throw error;
        // All its tries found the lock taken; whoever wants it asks again.
        failed += 1;
        if (now() >= until) return failed;
      }
    }
    const granted = now();
    await lock.release();
    turns.push([number, asked, granted, now()]);
  }
  return failed;
}

async function takeTurns(clients, prefix, [tasks, names], [from, until], log) {
  const turns = [];
  const running = Array.from({ length: tasks }, (_, number) =>
    task(number, clients[number % clients.length], `${prefix}${number % names}`, until, turns),
  );
  const failed = (await Promise.all(running)).reduce((sum, some) => sum + some, 0);
  const count = turns.filter((turn) => from <= turn[3] && turn[3] < until).length;
  return [count, failed, ...(log ? turns.flat() : [])].join(" ");
}

async function main() {
  let clients = [await connect()];
  const versions = built("./package.json").dependencies;
  console.log(`@ ok ${library} ${versions.redlock} on ioredis ${versions.ioredis}`);
  const lines = readline.createInterface({ input: process.stdin, terminal: false });
  for await (const line of lines) {
    const [verb, ...words] = line.trim().split(/\s+/);
    let answer = "";
    if (verb === "connect") {
      clients = await Promise.all(Array.from({ length: Number(words[0]) }, connect));
    } else if (verb === "turns") {
      const [prefix, tasks, names, from, until, log] = words;
      const [sizes, times] = [[tasks, names].map(Number), [from, until].map(BigInt)];
      answer = await takeTurns(clients, prefix, sizes, times, log === "1");
    } else {
      throw new Error(`unknown command ${verb}`);
    }
    console.log(`@ ok ${answer}`);
  }
  process.exit(0);
}

main();
