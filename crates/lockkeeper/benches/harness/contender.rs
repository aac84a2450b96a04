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
    pub(crate) role: Role,
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

/// What it is written in; beside Rust, in which folder of `interop`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Rust,
    Python(&'static str),
    Node(&'static str),
    Go(&'static str),
    Java(&'static str),
}

pub(crate) const fn contender(
    (id, name): (&'static str, &'static str),
    program: Program,
    role: Role,
    rows: &'static [u8],
    clients_max: u32,
) -> Contender {
    Contender { id, name, program, rows, clients_max, role }
}

impl Contender {
    /// It runs on a machine that compiles what it has run often.
    pub(crate) fn compiles(&self) -> bool {
        matches!(self.program, Program::Java(_) | Program::Node(_))
    }

    /// How it is started; an error says what is missing.
    pub(crate) fn command(&self) -> Result<Command, String> {
        match self.program {
            Program::Rust => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.arg("worker");
                Ok(command)
            }
            Program::Python(peer) => {
                let mut command = Command::new(built(peer)?.join("venv/bin/python"));
                command.arg(interop().join(peer).join("bench.py"));
                Ok(command)
            }
            Program::Node(peer) => {
                built(peer)?;
                let mut command = Command::new("node");
                command.arg(interop().join(peer).join("bench.js"));
                Ok(command)
            }
            Program::Go(peer) => Ok(Command::new(built(peer)?.join("bench"))),
            Program::Java(peer) => {
                let target = built(peer)?;
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
