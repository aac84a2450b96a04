//! Whatever happens to `lockkeeper run` itself: the lock is free only when the work is dead.

use std::fs;

use rustix::process::{Pid, Signal};

use super::harness::{Running, Store, eventually, is_living, lives};

/// Prints its own number and those of forty children, and stays.
const FAMILY: &str = "\
i=0; while [ $i -lt 40 ]; do sleep 1000 & echo $!; i=$((i+1)); done; echo $$; exec sleep 1000";

fn family(store: &Store, options: &[&str]) -> (Running, Vec<String>) {
    let running = store.start(&[&["run"], options, &["x", "sh", "-c", FAMILY]].concat());
    let pids = (0..41).map(|_| running.line()).collect();
    (running, pids)
}

/// Waits for the lock; then says of each of these processes what the kernel says.
fn successor(store: &Store, pids: &[String]) -> Running {
    let script = "echo in; for pid; do cat /proc/$pid/stat 2>/dev/null; done; exit 0";
    let pids: Vec<&str> = pids.iter().map(String::as_str).collect();
    let waiter = store.start(&[&["run", "x", "sh", "-c", script, "sh"], &pids[..]].concat());
    store.until_waiting("x", 1);
    waiter
}

fn sees_nobody(successor: Running) {
    let seen = successor.output();
    assert!(seen.out.starts_with("in\n"), "{seen:?}");
    let living: Vec<&str> = seen.out.lines().filter(|line| is_living(line)).collect();
    assert!(living.is_empty(), "these were alive when the lock was granted: {living:?}");
}

#[test]
fn kill_9_ends_the_command_and_its_children_before_the_lock_is_free() {
    let store = Store::new();
    for _ in 0..3 {
        let (running, pids) = family(&store, &[]);
        let next = successor(&store, &pids);
        running.signal(Signal::KILL);
        sees_nobody(next);
    }
}

#[test]
fn kill_9_of_the_whole_process_group_of_run_does_the_same() {
    let store = Store::new();
    let (running, pids) = family(&store, &[]);
    let next = successor(&store, &pids);
    // In a session of its own it leads its group.
    rustix::process::kill_process_group(running.pid(), Signal::KILL).expect("kill");
    sees_nobody(next);
}

#[test]
fn the_command_is_dead_before_the_lease_ends_even_if_run_is_stopped() {
    let store = Store::new();
    let (running, pids) = family(&store, &["--ttl", "8s", "--grace", "0"]);
    let next = successor(&store, &pids);
    running.signal(Signal::STOP);
    sees_nobody(next);
    running.signal(Signal::CONT);
    assert_eq!(running.output().code, 76);
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_release() {
    let store = Store::new();
    let output = store.output(&["run", "x", "sh", "-c", "sleep 1000 & echo $!; exit 3"]);
    assert_eq!(output.code, 3);
    assert!(!lives(output.out.trim()), "{output:?}");
}

#[test]
fn leftovers_that_ignore_term_are_killed_after_the_grace() {
    let store = Store::new();
    let script = "trap '' TERM; sleep 1000 & echo $!; exit 0";
    let options = ["run", "--grace", "0.2", "--ttl", "10m"];
    let output = store.output(&[&options[..], &["x", "sh", "-c", script]].concat());
    assert_eq!(output.code, 0);
    assert!(!lives(output.out.trim()), "{output:?}");
}

#[test]
fn the_lock_stays_held_while_leftovers_live() {
    let store = Store::new();
    let script = "trap '' TERM; exec 3<&0; (echo ready; read line <&3) & exit 0";
    let running = store.start(&["run", "-v", "--grace", "1h", "x", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    running.error_line("left behind");
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 75);
    assert_eq!(running.output().code, 0);
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 0);
}

#[test]
fn a_dead_guardian_is_reported() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    let guardian = eventually("the guardian is there", || guardian_of(holder.pid()));
    rustix::process::kill_process(guardian, Signal::TERM).expect("signal");
    rustix::process::kill_process(guardian, Signal::KILL).expect("kill");
    holder.error_line("the guardian process is gone");
    assert_eq!(holder.output().code, 0, "the command goes on");
}

#[test]
fn without_the_guardian_kill_9_still_ends_the_command_itself() {
    let store = Store::new();
    let running = store.start(&["run", "x", "sh", "-c", "echo $$; exec sleep 1000"]);
    let pid = running.line();
    let guardian = eventually("the guardian is there", || guardian_of(running.pid()));
    rustix::process::kill_process(guardian, Signal::KILL).expect("kill");
    running.error_line("the guardian process is gone");
    running.signal(Signal::KILL);
    eventually("the command is dead", || (!lives(&pid)).then_some(()));
}

#[test]
fn a_signal_to_all_processes_of_the_name_leaves_the_guardian_on_duty() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    let guardian = eventually("the guardian is there", || guardian_of(holder.pid()));
    for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
        rustix::process::kill_process(guardian, signal).expect("signal");
    }
    let output = holder.output();
    assert_eq!((output.code, output.err.as_str()), (0, ""), "nobody missed the guardian");
}

#[test]
fn nothing_is_left_behind() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    let guardian = eventually("the guardian is there", || guardian_of(holder.pid()));
    assert_eq!(holder.output().code, 0);
    let guardian = guardian.as_raw_nonzero().to_string();
    eventually("the guardian goes as well", || (!lives(&guardian)).then_some(()));
}

/// The guardian of this process, once it blocks signals.
fn guardian_of(parent: Pid) -> Option<Pid> {
    fs::read_dir("/proc").ok()?.find_map(|entry| {
        let folder = entry.ok()?.path();
        let pid = folder.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let line = fs::read(folder.join("cmdline")).ok()?;
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ours = field("PPid:")?.trim() == parent.as_raw_nonzero().to_string();
        let ready = u64::from_str_radix(field("SigBlk:")?.trim(), 16).ok()? != 0;
        (ours && ready && line.ends_with(b"__guardian\0")).then_some(pid)
    })
}
