//! Stopping child processes, letting them go on, and ending them.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Stops a child with SIGSTOP and waits until all of its threads stand still: the signal alone
/// returns while they may still run.
///
/// # Panics
///
/// When it is gone.
pub fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    assert!(stopped.is_some_and(|status| status.stopped()), "stopped");
}

/// Lets a child go on.
///
/// # Panics
///
/// When it is gone.
pub fn go_on(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).unwrap();
}

/// Ends a child with SIGQUIT.
///
/// # Panics
///
/// When it is gone.
pub fn quit(child: &Child) {
    kill_process(Pid::from_child(child), Signal::QUIT).unwrap();
}
