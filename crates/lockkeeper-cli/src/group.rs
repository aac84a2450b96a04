//! The process group of the command: who is in it, and how to end it.
//!
//! The kernel answers a signal to a group the same way for the living and for zombies, so whether
//! anybody lives is read from `/proc`.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::net::unix::pipe::Receiver;

/// A process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends a signal to every member. Nobody left is as good as sent.
    pub(crate) fn signal(self, signal: Signal) -> Result<(), Errno> {
        match rustix::process::kill_process_group(self.0, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => sent,
        }
    }

    /// The members that are not dead yet.
    pub(crate) fn living(self) -> Vec<Pid> {
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                // It may end while we look.
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                lives_in(&stat, self.0.as_raw_nonzero().get())
            })
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Waits until a member dies, or there is none. Cancel safe.
    pub(crate) async fn a_death(self) {
        let Some(pid) = self.living().into_iter().next() else { return };
        let watched = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .ok()
            // Waited for like a pipe, and never read.
            .and_then(|process| Receiver::from_owned_fd_unchecked(process).ok());
        match watched {
            // Either way there is something new to look at.
            Some(process) => drop(process.readable().await),
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Whether this line of `/proc/PID/stat` is about a living process of the group.
fn lives_in(stat: &str, group: i32) -> bool {
    // The name in parentheses may itself contain anything.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<&str> = fields.split(' ').collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    if field(2).parse() != Ok(group) {
        return false;
    }
    // A zombie with threads is a process whose main thread alone has ended.
    !matches!(field(0), "Z" | "X") || field(17).parse().is_ok_and(|threads: u32| threads > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: char, group: i32, threads: u32) -> String {
        format!("12 (a) Z 7 (b) {state} 1 {group} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5")
    }

    #[test]
    fn the_dead_are_not_counted() {
        assert!(lives_in(&stat('S', 7, 1), 7));
        assert!(lives_in(&stat('T', 7, 1), 7));
        assert!(lives_in(&stat('Z', 7, 2), 7), "threads go on after the first one");
        assert!(!lives_in(&stat('Z', 7, 1), 7));
        assert!(!lives_in(&stat('S', 8, 1), 7));
        assert!(!lives_in("", 7));
    }

    #[test]
    fn this_very_process_lives_in_its_group() {
        let group = Group(rustix::process::getpgrp());
        assert!(group.living().contains(&rustix::process::getpid()));
    }
}
