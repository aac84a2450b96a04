//! Who is measured, and how each is started.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// A library as one column of the table.
#[derive(Debug)]
pub(crate) struct Contender {
    /// As the programs are told it.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    program: Program,
    /// In which rows it takes part.
    pub(crate) rows: &'static [u8],
    /// With how many clients in one process it is tried.
    pub(crate) clients_max: u32,
    /// How many renewed locks it is asked to hold at the most.
    pub(crate) held_max: u32,
    /// It renews when so many thirds of the lease are over.
    pub(crate) renews_after: u32,
    pub(crate) role: Role,
    /// Where its key for a name begins.
    pub(crate) key_prefix: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Lockkeeper.
    Ours,
    /// What the server can do at the most.
    Raw,
    /// A library whose waiters get the lock in any order.
    Barging,
    /// A library with a queue.
    Fair,
}

#[derive(Clone, Copy, Debug)]
enum Program {
    Rust,
    Python,
    Node,
    Go,
    Java,
}

const fn contender(
    (id, name): (&'static str, &'static str),
    program: Program,
    role: Role,
    rows: &'static [u8],
    clients_max: u32,
) -> Contender {
    let (held_max, renews_after, key_prefix) = (0, 1, "");
    Contender { id, name, program, rows, clients_max, held_max, renews_after, role, key_prefix }
}

/// A thread for each client is as much as Python and Java are asked for.
const THREADS: u32 = 100;

/// Everybody, in the order of the columns.
pub(crate) static ALL: [Contender; 11] = [
    Contender {
        held_max: 100_000,
        ..contender(
            ("lockkeeper", "Lockkeeper"),
            Program::Rust,
            Role::Ours,
            &[1, 2, 3, 4, 5, 6],
            1000,
        )
    },
    contender(("raw-set", "raw SET"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-scripts", "raw scripts"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("rslock", "rslock"), Program::Rust, Role::Barging, &[1, 2, 3, 4, 5], 1000),
    contender(("rslock-tuned", "rslock, 2 ms"), Program::Rust, Role::Barging, &[3, 4, 5], 100),
    contender(("redis-py", "redis-py"), Program::Python, Role::Barging, &[1, 2, 3, 4, 5], THREADS),
    Contender {
        // A thread for each.
        held_max: 500,
        renews_after: 2,
        key_prefix: "lock:",
        ..contender(
            ("python-redis-lock", "python-redis-lock"),
            Program::Python,
            Role::Barging,
            &[1, 2, 3, 4, 5, 6],
            THREADS,
        )
    },
    contender(
        ("node-redlock", "node-redlock"),
        Program::Node,
        Role::Barging,
        &[1, 2, 3, 4, 5],
        1000,
    ),
    contender(("redsync", "redsync"), Program::Go, Role::Barging, &[1, 2, 3, 4, 5], 1000),
    Contender {
        held_max: 10_000,
        ..contender(
            ("redisson", "Redisson"),
            Program::Java,
            Role::Barging,
            &[1, 2, 3, 4, 5, 6],
            THREADS,
        )
    },
    contender(("redisson-fair", "Redisson, fair"), Program::Java, Role::Fair, &[4, 5], THREADS),
];

/// The place of a contender in the table.
pub(crate) fn column(one: &Contender) -> usize {
    ALL.iter().position(|other| other.id == one.id).unwrap()
}

impl Contender {
    /// It runs on a machine that compiles what it has run often.
    pub(crate) fn compiles(&self) -> bool {
        matches!(self.program, Program::Java | Program::Node)
    }

    /// How it is started; an error says what is missing.
    pub(crate) fn command(&self) -> Result<Command, String> {
        match self.program {
            Program::Rust => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.arg("worker");
                Ok(command)
            }
            Program::Python => {
                let mut command = Command::new(built("python")?.join("venv/bin/python"));
                command.arg(interop().join("python/bench.py"));
                Ok(command)
            }
            Program::Node => {
                built("node")?;
                let mut command = Command::new("node");
                command.arg(interop().join("node/bench.js"));
                Ok(command)
            }
            Program::Go => Ok(Command::new(built("go")?.join("bench"))),
            Program::Java => {
                let target = built("java")?;
                let classes = format!("{0}/classes:{0}/dependency/*", target.display());
                let mut command = Command::new("java");
                command.args(["-Xmx512m", "-cp", &classes, "lockkeeper.interop.Bench"]);
                Ok(command)
            }
        }
    }
}

fn interop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop")
}

/// What `interop/build` has made of a peer.
fn built(peer: &str) -> Result<PathBuf, String> {
    let target = match std::env::var_os("INTEROP_TARGET") {
        Some(all) => PathBuf::from(all).join(peer),
        None => interop().join(peer).join("target"),
    };
    let built = target.join("built").exists();
    if built { Ok(target) } else { Err(format!("not built: run interop/build {peer}")) }
}
