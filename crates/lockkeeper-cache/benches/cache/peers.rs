//! Plain cache-aside in other languages, for context: `interop/README.md` says what these programs do.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::{Each, TASKS, row};

/// Fewer than ours, because some are slow.
const ROUNDS: usize = 21;
const COUNT: u32 = 4_000;
const MISSES: u32 = 1_000;

/// Their rows: hits one at a time and many, and misses, beside what we took for them.
pub(crate) fn rows(url: &str, hits: [Each; 2], miss: Each) {
    for (peer, start) in [("redis-py", python as fn() -> _), ("go-redis", go)] {
        let Some(mut peer) = start().and_then(|program| Peer::start(program, url)) else {
            println!("| the same | | cache-aside with {peer}: not run | | for context |");
            continue;
        };
        let prefix = &peer.name.replace(' ', "-");
        let against = format!("cache-aside with {}", peer.name);
        let missed = peer.reads(prefix, 1, MISSES);
        // The rest of them, to be there for the hits.
        peer.reads(prefix, 1, 10_000);
        for (ours, tasks) in hits.into_iter().zip([1, TASKS]) {
            let mut rounds: Vec<_> =
                (0..ROUNDS).map(|_| peer.reads(prefix, tasks, COUNT)).collect();
            rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
            let what = format!("hit at Redis, {tasks} at a time");
            row(&what, ours, &against, rounds[ROUNDS / 2], "for context");
        }
        row("miss, one at a time", miss, &against, missed, "for context");
        peer.reads_are_over();
    }
}

fn python() -> Option<Command> {
    let mut program = Command::new(built("python")?.join("venv/bin/python"));
    program.arg(interop().join("python/cache.py"));
    Some(program)
}

fn go() -> Option<Command> {
    Some(Command::new(built("go")?.join("cache")))
}

fn interop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop")
}

/// What `interop/build` has made of a peer.
fn built(peer: &str) -> Option<PathBuf> {
    let target = match std::env::var_os("INTEROP_TARGET") {
        Some(all) => PathBuf::from(all).join(peer),
        None => interop().join(peer).join("target"),
    };
    target.join("built").exists().then_some(target)
}

struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    name: String,
}

impl Peer {
    fn start(mut program: Command, url: &str) -> Option<Self> {
        program.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?).lines());
        let mut peer = Self { child, input, output, name: String::new() };
        peer.name = peer.answer()?;
        Some(peer)
    }

    fn answer(&mut self) -> Option<String> {
        let line = self.output.next()?.ok()?;
        line.strip_prefix("@ ok ").map(str::to_owned)
    }

    /// How long one of so many reads takes.
    fn reads(&mut self, prefix: &str, tasks: usize, count: u32) -> Each {
        writeln!(self.input, "{prefix} {tasks} {count}").unwrap();
        let nanos = self.answer().unwrap().parse().unwrap();
        Each::of(Duration::from_nanos(nanos), count)
    }

    fn reads_are_over(mut self) {
        drop(self.input);
        self.child.wait().unwrap();
    }
}
