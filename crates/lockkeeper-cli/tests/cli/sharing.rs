//! Several at once: `--shared`, `--slots`, and their order with `--fair`.

use super::harness::{HOLD, Store};

#[test]
fn shared_locks_are_held_together_but_not_with_an_exclusive_one() {
    let store = Store::new();
    let one = store.hold(&["--shared"], "x");
    let two = store.hold(&["-s", "--fair"], "x");
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 75);
    assert_eq!(store.show("x")["holders"].as_array().map(Vec::len), Some(2));
    assert_eq!((one.output().code, two.output().code), (0, 0));
    let _alone = store.hold(&[], "x");
    assert_eq!(store.output(&["run", "-n", "-s", "x", "true"]).code, 75);
}

#[test]
fn slots_are_never_exceeded() {
    let store = Store::new();
    let one = store.hold(&["--slots", "2"], "x");
    let _two = store.hold(&["--slots", "2"], "x");
    assert_eq!(store.output(&["run", "-n", "--slots", "2", "x", "true"]).code, 75);
    assert_eq!(one.output().code, 0);
    assert_eq!(store.output(&["run", "-n", "--slots", "2", "x", "true"]).code, 0);
}

#[test]
fn fair_grants_come_in_the_order_of_arrival() {
    let store = Store::new();
    let log = store.directory.path().join("log");
    let log = log.to_str().expect("UTF-8");
    let holder = store.hold(&["--fair"], "x");
    let waiters: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .enumerate()
        .map(|(at, word)| {
            let script = "echo $1 >> $2";
            let words = ["run", "--fair", "x", "sh", "-c", script, "sh", word, log];
            let waiter = store.start(&words);
            store.until_waiting("x", at + 1);
            waiter
        })
        .collect();
    assert_eq!(holder.output().code, 0);
    waiters.into_iter().for_each(|waiter| assert_eq!(waiter.output().code, 0));
    assert_eq!(std::fs::read_to_string(log).expect("read"), "a\nb\nc\nd\n");
}

#[test]
fn a_lock_inside_a_lock_works() {
    let store = Store::new();
    let inner = [&["run", "y", "--"], &HOLD[..]].concat();
    let words = [&["run", "x", "--", super::harness::BINARY], &inner[..]].concat();
    let nested = store.start(&words);
    assert_eq!(nested.line(), "ready");
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 75);
    assert_eq!(store.output(&["run", "-n", "y", "true"]).code, 75);
    assert_eq!(nested.output().code, 0);
}
