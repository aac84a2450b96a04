//! The terminal: which process group reads from it and gets its ctrl-C.
//!
//! The command is in a group of its own, so it must be the terminal's foreground group to be used
//! like any other program. Where standard input and output are both the terminal it becomes that at
//! once. In a pipeline another member may need the terminal, so there it gets it when it asks: the
//! kernel stops a group that reads without being in the foreground, and we see that.

use std::fs::{self, File};
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::process::{self, Pid};
use rustix::termios::{OptionalActions, Termios};

use crate::group::Group;

/// The terminal of this session.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    ours: Pid,
    modes: Option<Termios>,
}

impl Terminal {
    /// The terminal that controls this session, if there is one.
    pub(crate) fn of_session() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // Else taking the terminal back, and even a warning, could stop us. The command does not
        // inherit this.
        SigSet::from(Signal::SIGTTOU).thread_block().ok()?;
        let modes = rustix::termios::tcgetattr(&tty).ok();
        Some(Self { tty, ours: rustix::process::getpgrp(), modes })
    }

    fn foreground(&self) -> Option<Pid> {
        rustix::termios::tcgetpgrp(&self.tty).ok()
    }

    /// Whether the command is the terminal's only user in this job.
    pub(crate) fn is_undivided() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Makes the command the foreground group if we are; whether it is now.
    pub(crate) fn give_to(&self, group: Group) -> bool {
        self.foreground() == Some(self.ours)
            && rustix::termios::tcsetpgrp(&self.tty, group.0).is_ok()
    }

    /// Makes us the foreground group again if the command is.
    pub(crate) fn take_back(&self, group: Group) {
        if self.foreground() == Some(group.0) {
            // The terminal may be gone: then nobody needs it back.
            let _ = rustix::termios::tcsetpgrp(&self.tty, self.ours);
        }
    }

    /// Whether a shell waits for this job to stop and can continue it. A job without such a shell
    /// must not be stopped: nobody would ever wake it up.
    pub(crate) fn has_job_control(&self) -> bool {
        let session = rustix::process::getsid(None);
        let mut ancestor = rustix::process::getppid();
        while let Some(pid) = ancestor {
            if rustix::process::getsid(Some(pid)) != session {
                return false;
            }
            if rustix::process::getpgid(Some(pid)) != Ok(self.ours) {
                return true;
            }
            ancestor = parent(pid);
        }
        false
    }

    /// Stops this job, all of it, as ctrl-Z does. We go on when it is continued.
    pub(crate) fn stop_job(&self) -> Result<(), Errno> {
        rustix::process::kill_process_group(self.ours, process::Signal::TSTP)?;
        // We listen to TSTP, so it does not stop us.
        rustix::process::kill_process(rustix::process::getpid(), process::Signal::STOP)
    }

    /// Undoes what a command that was killed did to the terminal, such as not showing what is typed.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.foreground() == Some(self.ours)
        {
            let _ = rustix::termios::tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Pid::from_raw(fields.split(' ').nth(1)?.parse().ok()?)
}
