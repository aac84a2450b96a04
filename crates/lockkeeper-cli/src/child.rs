//! The command as a child process.
//!
//! # How it starts
//!
//! 1. We start ourselves again, as `__exec`, in a new process group.
//! 2. That process asks the kernel to be killed when we die, and stops itself. Until then nothing else stops
//!    it: we would wait for it, and it for somebody who lets it go on.
//! 3. We tell the guardian about the group, hand over the terminal, and let it go on.
//! 4. It becomes the command.
//!
//! So the command takes no step that the guardian could not end, and all of it is safe code.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::exit::Code;
use crate::group::Group;
use crate::report::Report;

/// The first argument that makes this program the starter of a command.
pub(crate) const WORD: &str = "__exec";

/// This program, even if its file was replaced since it was started.
pub(crate) const MYSELF: &str = "/proc/self/exe";

/// A command that was started and is not reaped yet. Its number, and so its group's, stays taken
/// until [`reap`](Self::reap).
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// What happened to the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Stopped(i32),
    Continued,
}

impl Child {
    /// Starts the command and holds it before its first step.
    pub(crate) fn prepare(
        command: &[OsString],
        variables: impl IntoIterator<Item = (&'static str, String)>,
    ) -> io::Result<Self> {
        let me = rustix::process::getpid().as_raw_nonzero().to_string();
        let started = Command::new(MYSELF)
            .arg0("lockkeeper")
            .args([WORD, &me])
            .args(command)
            .envs(variables)
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(started.id()).ok().and_then(Pid::from_raw);
        let child = Self { pid: pid.ok_or(io::ErrorKind::InvalidData)? };
        // It stops, or ends because somebody killed it. Nothing else can be meant.
        let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(error) = rustix::process::waitid(WaitId::Pid(child.pid), either) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        // This first stop is ours, and no news to anybody.
        child.change();
        Ok(child)
    }

    pub(crate) fn group(&self) -> Group {
        Group(self.pid)
    }

    /// The next stop or continuation that was not reported yet.
    pub(crate) fn change(&self) -> Option<Change> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let status = rustix::process::waitid(WaitId::Pid(self.pid), options).ok().flatten()?;
        match status.stopping_signal() {
            Some(signal) => Some(Change::Stopped(signal)),
            None => Some(Change::Continued),
        }
    }

    /// How it ended, if it did. It is left a zombie, so that its number is not used again.
    pub(crate) fn ended(&self) -> Option<Code> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::Pid(self.pid), options).ok().flatten()?;
        if let Some(signal) = status.terminating_signal() {
            return Some(Code::of_signal(signal));
        }
        let code = status.exit_status().and_then(|code| u8::try_from(code & 0xff).ok());
        Some(Code(code.unwrap_or(u8::MAX)))
    }

    /// Takes note of its end. Its number may be used again from now on.
    pub(crate) fn reap(self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // Called after `ended`: there is a zombie, and nobody else reaps it.
        let _ = rustix::process::waitid(WaitId::Pid(self.pid), options);
    }
}

/// What the keyboard and the terminal stop a process with.
fn stops() -> SigSet {
    [nix::sys::signal::SIGTSTP, nix::sys::signal::SIGTTIN, nix::sys::signal::SIGTTOU]
        .into_iter()
        .collect()
}

/// While this is there, what this thread starts is not stopped before it wants to be.
#[derive(Debug)]
pub(crate) struct Unstopped(SigSet);

impl Unstopped {
    pub(crate) fn begin() -> nix::Result<Self> {
        let before = SigSet::thread_get_mask()?;
        stops().thread_block()?;
        Ok(Self(before))
    }
}

impl Drop for Unstopped {
    fn drop(&mut self) {
        // The mask is one that we had: there is nothing to refuse.
        let _ = self.0.thread_set_mask();
    }
}

/// The starter of a command: `__exec PARENT CMD [ARG…]`.
pub(crate) fn exec(mut words: impl Iterator<Item = OsString>) -> Code {
    let report = Report::new(false, false);
    let parent = words.next().and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(command)) = (parent, words.next()) else {
        report.warn(format!("{WORD} is for lockkeeper itself"));
        return Code::USAGE;
    };
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died just before.
    if let Err(error) = tied {
        report.warn(format!("cannot tie the command to its lock: {error}"));
        return Code::CANNOT_EXECUTE;
    }
    if rustix::process::getppid() != Some(parent) {
        return Code::CANNOT_EXECUTE;
    }
    if let Err(error) = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP) {
        report.warn(format!("cannot wait for the lock: {error}"));
        return Code::CANNOT_EXECUTE;
    }
    // What came meanwhile was forgotten when we were let go on; `run` has seen it, too.
    if let Err(error) = stops().thread_unblock() {
        report.warn(format!("cannot listen to stops: {error}"));
        return Code::CANNOT_EXECUTE;
    }
    let error = Command::new(&command).args(words).exec();
    report.warn(format!("cannot run {command:?}: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => Code::NOT_FOUND,
        _ => Code::CANNOT_EXECUTE,
    }
}
