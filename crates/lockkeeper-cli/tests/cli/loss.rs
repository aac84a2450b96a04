//! The lock is lost while the command runs: the command is ended, and the exit code is never 0.

use super::harness::{Output, Running, Store, lives};

const TRAPS_TERM: &str =
    "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 1000 & wait; done";
const IGNORES_TERM: &str = "trap '' TERM; (echo $$; exec sleep 1000) & echo $!; wait";

fn evict(store: &Store, name: &str) {
    let evicted = store.output(&["unlock", name, "--reason", "maintenance"]);
    assert_eq!(evicted.code, 0, "{evicted:?}");
}

fn lost(output: &Output, cause: &str) {
    assert_eq!(output.code, 76, "{output:?}");
    assert!(output.err.contains("is lost: "), "{output:?}");
    assert!(output.err.contains(cause), "{cause}: {output:?}");
}

fn started(store: &Store, options: &[&str], script: &str) -> Running {
    store.start(&[&["run"], options, &["x", "sh", "-c", script]].concat())
}

#[test]
fn an_evicted_command_may_end_in_peace_but_not_with_0() {
    let store = Store::new();
    let running = started(&store, &[], TRAPS_TERM);
    assert_eq!(running.line(), "ready");
    evict(&store, "x");
    let output = running.output();
    assert_eq!(output.out, "bye\n");
    lost(&output, "it was taken away: maintenance");
}

#[test]
fn a_command_that_ignores_term_is_killed_with_its_children() {
    let store = Store::new();
    // So long a time to live that its end cannot be what kills them.
    let running = started(&store, &["--grace", "0.2", "--ttl", "10m"], IGNORES_TERM);
    let pids = [running.line(), running.line()];
    evict(&store, "x");
    lost(&running.output(), "maintenance");
    assert!(!pids.iter().any(|pid| lives(pid)), "{pids:?}");
}

#[test]
fn on_lost_kill_does_not_ask() {
    let store = Store::new();
    let running = started(&store, &["--on-lost", "kill"], TRAPS_TERM);
    assert_eq!(running.line(), "ready");
    evict(&store, "x");
    let output = running.output();
    assert_eq!(output.out, "");
    lost(&output, "killing");
}

#[test]
fn on_lost_ignore_lets_the_command_end_by_itself() {
    let store = Store::new();
    for (own, code) in [("0", 76), ("5", 5)] {
        let script = "echo ready; read code; exit $code";
        let mut running = started(&store, &["--on-lost", "ignore"], script);
        assert_eq!(running.line(), "ready");
        evict(&store, "x");
        running.error_line("the command goes on without it");
        running.say(own);
        assert_eq!(running.output().code, code);
    }
}

#[test]
fn max_hold_ends_the_command() {
    let store = Store::new();
    let running = started(&store, &["--max-hold", "0.2", "--ttl", "60s"], TRAPS_TERM);
    lost(&running.output(), "max_hold");
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 0, "given back at once");
}

#[test]
fn a_fixed_lease_ends_the_command_before_it_is_over() {
    let store = Store::new();
    let running = started(&store, &["--lease", "5s"], IGNORES_TERM);
    let pids = [running.line(), running.line()];
    // The next one enters when the lease is over at the latest, and looks who lives.
    let next = store.start(&["run", "x", "cat", "/dev/null"]);
    assert_eq!(next.output().code, 0);
    assert!(!pids.iter().any(|pid| lives(pid)), "{pids:?}");
    lost(&running.output(), "lease");
}

#[test]
fn a_hosted_lock_is_renewed_and_not_lost() {
    let store = Store::new();
    // Without a grace only a machine that stands still for seconds makes this fail.
    let words = ["run", "--ttl", "8s", "--grace", "0", "x", "sleep", "10"];
    let output = store.output(&words);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
}

#[test]
fn a_deleted_store_ends_the_command() {
    let store = Store::new();
    let running = started(&store, &["--ttl", "6s", "--grace", "0.1"], TRAPS_TERM);
    assert_eq!(running.line(), "ready");
    std::fs::remove_dir_all(store.directory.path().join("locks")).expect("remove");
    lost(&running.output(), "");
}
