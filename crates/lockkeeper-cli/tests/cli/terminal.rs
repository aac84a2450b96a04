//! A program that uses the terminal works under the lock as it does without.

use std::time::Duration;

use super::harness::{BINARY, Store};
use super::pty::Session;

/// Says whether it is the terminal's foreground group, and echoes a line that it reads there.
const PROGRAM: &str = "\
trap 'echo interrupted; exit 5' INT
read -r pid name state parent group session tty foreground rest < /proc/$$/stat
[ $group = $foreground ] && echo in front
read -r line; echo \"got <$line>\"
while :; do read -r line; done";

#[test]
fn the_command_is_in_front_reads_the_keyboard_and_gets_ctrl_c() {
    let store = Store::new();
    let mut session = Session::start(&store, &[BINARY, "run", "x", "sh", "-c", PROGRAM]);
    session.shows("in front");
    session.type_in("hello\n");
    session.shows("got <hello>");
    session.type_in("\x03");
    session.shows("interrupted");
    assert_eq!(session.ends().code(), Some(5));
}

fn shell(store: &Store) -> Session {
    let mut session = Session::start(store, &["bash", "--norc", "--noediting", "-i"]);
    session.shows("$ ");
    session
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let store = Store::new();
    let mut session = shell(&store);
    let script = "echo re''ady; read -r line; echo \"got <$line>\"";
    session.type_in(&format!("{BINARY} run x sh -c '{}'\n", script.replace('\'', "\"")));
    session.shows("ready");
    session.type_in("\x1a");
    session.shows("the lock is still held");
    session.shows("Stopped");
    session.shows("$ ");
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 75, "still held");
    session.type_in("fg\n");
    session.type_in("again\n");
    session.shows("got <again>");
    session.shows("$ ");
    session.type_in("echo code=$?\n");
    session.shows("code=0");
}

#[test]
fn a_job_that_was_stopped_for_too_long_is_dead_when_it_is_continued() {
    let store = Store::new();
    let mut session = shell(&store);
    session.type_in(&format!(
        "{BINARY} run --ttl 8s --grace 0 x sh -c 'echo begun; exec sleep 1000'\n"
    ));
    session.shows("\nbegun");
    session.type_in("\x1a");
    session.shows("Stopped");
    session.shows("$ ");
    assert_eq!(store.output(&["run", "x", "true"]).code, 0, "the next one enters");
    session.type_in("fg\n");
    session.shows("is lost");
    session.shows("$ ");
    session.type_in("echo code=$?\n");
    session.shows("code=76");
}

/// The command and its guardian are in our group for a moment before they have one of their own: if they
/// were stopped there, we would wait for them for ever, and nobody would continue them.
#[test]
fn ctrl_z_while_the_command_is_started_stops_the_job() {
    for round in 0..40 {
        let store = Store::new();
        let mut session = shell(&store);
        session.type_in(&format!("echo be''gun; {BINARY} run --grace 0 x sleep 1000\n"));
        // Not earlier: what the shell has not read yet is thrown away by the terminal.
        session.shows("begun");
        // Some of them at the wrong moment. One that the shell itself had, or that came before the command
        // could be stopped, is typed again.
        let mut pause = Duration::from_millis(round);
        super::harness::eventually("it is stopped", || {
            if session.shows_within("Stopped", pause) {
                return Some(());
            }
            pause = Duration::from_millis(200);
            session.type_in("\x1a");
            None
        });
    }
}

/// Also of a later run, which is started by a process that keeps stops away from itself.
#[test]
fn no_run_of_a_schedule_has_signals_kept_from_it() {
    let store = Store::new();
    let words = [BINARY, "run", "--every", "1s", "x", "grep", "SigBlk", "/proc/self/status"];
    let mut session = Session::start(&store, &words);
    for _ in 0..3 {
        session.shows("SigBlk:\t0000000000000000");
    }
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let store = Store::new();
    let mut session = shell(&store);
    session.type_in(&format!(
        "{BINARY} run x sh -c 'echo begun; read -r l < /dev/tty; echo \"got <$l>\"' | cat\n"
    ));
    session.shows("\nbegun");
    session.type_in("piped\n");
    session.shows("got <piped>");
    session.shows("$ ");
}

#[test]
fn the_terminal_is_ours_again_after_the_command_was_killed() {
    let store = Store::new();
    let mut session = shell(&store);
    session.type_in(&format!("{BINARY} run x sh -c 'stty -echo; kill -9 $$'\n"));
    session.shows("$ ");
    session.type_in("echo \"code=$?\"; stty -a | tr ' ;' '\\n\\n' | grep '^-*echo$'\n");
    session.shows("code=137");
    session.shows("\necho\r\n");
}

#[test]
fn a_long_wait_says_whom_it_waits_for() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    let mut session = Session::start(&store, &[BINARY, "run", "x", "echo", "inside"]);
    session.shows("waiting for x: held by");
    assert_eq!(holder.output().code, 0);
    session.shows("inside");
    assert_eq!(session.ends().code(), Some(0));
}
