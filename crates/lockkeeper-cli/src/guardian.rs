//! The guardian: a second process that ends the command when `run` cannot.
//!
//! `run` may be killed, or stopped for longer than its lease. The kernel kills the command itself
//! when `run` dies, but not what the command has started, and nothing at all when `run` is merely
//! stopped. The guardian reads from a pipe which group to end, and when at the latest:
//!
//! | line | meaning |
//! | --- | --- |
//! | `group N` | the command's process group |
//! | `until N` | kill it at this moment (nanoseconds of boot time) unless told another one before |
//! | `done` | the group is dead |
//!
//! A pipe that ends without `done` means that `run` is dead. The guardian's standard output is what
//! the store takes for life in `run`: a lock in `file:` is not freed before the guardian has gone,
//! and that is when the group is dead.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use lockkeeper::clock::Instant;
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::child::MYSELF;
use crate::exit::Code;
use crate::group::Group;
use crate::report::Report;

/// The first argument that makes this program a guardian.
pub(crate) const WORD: &str = "__guardian";

/// How long the guardian waits at least until the killed are dead.
const PATIENCE: Duration = Duration::from_secs(2);

/// The guardian as `run` sees it.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: std::process::Child,
    pipe: ChildStdin,
    told: Instant,
    well: bool,
}

impl Guardian {
    /// Starts a guardian that holds the lifeline open.
    pub(crate) fn start(lifeline: Option<OwnedFd>) -> io::Result<Self> {
        let mut process = Command::new(MYSELF)
            .arg0("lockkeeper")
            .arg(WORD)
            // Out of reach of ctrl-C and of whoever kills the group of `run`.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(lifeline.map_or_else(Stdio::null, Stdio::from))
            .spawn()?;
        let pipe = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A guardian that somebody has stopped must not stop us as well.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { process, pipe, told: Instant::NEVER, well: true })
    }

    pub(crate) fn group(&mut self, group: Group, report: &Report) {
        self.tell(&format!("group {}\n", group.0.as_raw_nonzero()), report);
    }

    /// When the group must be killed, if that has changed.
    pub(crate) fn until(&mut self, at: Instant, report: &Report) {
        if at != self.told {
            self.told = at;
            self.tell(&format!("until {}\n", at.as_nanos()), report);
        }
    }

    pub(crate) fn done(&mut self, report: &Report) {
        self.tell("done\n", report);
    }

    fn tell(&mut self, line: &str, report: &Report) {
        // Shorter than PIPE_BUF: written whole or not at all.
        let told = self.pipe.write_all(line.as_bytes());
        if told.is_err() {
            self.unwell(report);
        }
    }

    /// Looks whether the guardian is still there.
    pub(crate) fn check(&mut self, report: &Report) {
        if self.process.try_wait().is_ok_and(|status| status.is_some()) {
            self.unwell(report);
        }
    }

    fn unwell(&mut self, report: &Report) {
        if std::mem::replace(&mut self.well, false) {
            report.warn(
                "the guardian process is gone: if this process is killed, parts of the command may \
                 outlive the lock",
            );
        }
    }
}

/// What the guardian has been told.
#[derive(Debug, Default)]
struct Orders {
    group: Option<Group>,
    until: Option<Instant>,
    done: bool,
    rest: VecDeque<u8>,
}

impl Orders {
    fn take_in(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            match line.trim_end().split_once(' ') {
                Some(("group", pid)) => {
                    self.group = pid.parse().ok().and_then(Pid::from_raw).map(Group);
                }
                Some(("until", at)) => self.until = at.parse().ok().map(Instant::from_nanos),
                _ => self.done |= line.trim_end() == "done",
            }
        }
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // Whatever it is that cannot be killed, there is nothing harder to try.
            let _ = group.signal(Signal::KILL);
        }
    }
}

/// The guardian's whole life.
pub(crate) fn watch() -> Code {
    // What is sent to all processes of this name is not for the guardian.
    let _ = SigSet::all().thread_block();
    let mut orders = Orders::default();
    let ended = guard(&mut orders);
    if orders.done {
        return Code::SUCCESS;
    }
    if let Some(group) = orders.group {
        end(group, orders.until);
    }
    if let Err(error) = ended {
        Report::new(false, false).warn(format!("the guardian failed: {error}"));
    }
    Code::UNAVAILABLE
}

/// Follows orders until the pipe ends.
fn guard(orders: &mut Orders) -> io::Result<()> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    // On the clock that goes on while the machine is suspended.
    let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
    let mut pipe = io::stdin().lock();
    let mut buffer = [0; 1024];
    loop {
        let at = orders.until.filter(|at| *at != Instant::NEVER);
        set(&timer, at.map_or(0, |at| at.as_nanos().max(1)))?;
        let mut both = [
            PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut both, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [news, rang] = both.map(|fd| !fd.revents().is_empty());
        // News first: it may be that the group is dead, or that there is more time.
        if news {
            match pipe.read(&mut buffer)? {
                0 => return Ok(()),
                read => orders.take_in(&buffer[..read]),
            }
            if orders.done {
                return Ok(());
            }
        } else if rang {
            orders.kill();
            orders.until = None;
        }
    }
}

fn set(timer: &OwnedFd, nanos: u64) -> io::Result<()> {
    const PER_SECOND: u64 = 1_000_000_000;
    let it_value = rustix::time::Timespec {
        tv_sec: i64::try_from(nanos / PER_SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % PER_SECOND).unwrap_or(0),
    };
    let it_interval = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
    Ok(())
}

/// Kills the group until nobody in it lives, at least for a while and at most until the lease ends.
fn end(group: Group, until: Option<Instant>) {
    let least = Instant::now() + PATIENCE;
    let last = until.filter(|at| *at != Instant::NEVER).map_or(least, |at| at.max(least));
    loop {
        let living = group.living();
        if living.is_empty() || Instant::now() >= last {
            return;
        }
        let dying: Vec<OwnedFd> = living
            .into_iter()
            .filter_map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
            .collect();
        let mut dying: Vec<PollFd<'_>> =
            dying.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        // Each time anew: somebody may have joined the group while it was killed.
        let _ = group.signal(Signal::KILL);
        // Until one has died; the pause is only for the case that this is missed.
        let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = rustix::event::poll(&mut dying, Some(&pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_understood_in_any_pieces() {
        let text = b"group 42\nuntil 7\nuntil 9\ndone\n";
        for size in 1..text.len() {
            let mut orders = Orders::default();
            text.chunks(size).for_each(|piece| orders.take_in(piece));
            assert_eq!(orders.group, Pid::from_raw(42).map(Group));
            assert_eq!((orders.until, orders.done), (Some(Instant::from_nanos(9)), true));
        }
    }

    #[test]
    fn half_an_order_is_none() {
        let mut orders = Orders::default();
        orders.take_in(b"group 4\ndon");
        assert!(!orders.done);
        assert_eq!(orders.group, Pid::from_raw(4).map(Group));
    }
}
