//! One test for every exit code of the contract.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::{HOLD, Store};

#[test]
fn the_commands_own_code_is_passed_on() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "sh", "-c", "exit 3"]).code, 3);
    assert_eq!(store.output(&["run", "x", "--", "sh", "-c", "exit 255"]).code, 255);
    let silent = store.output(&["run", "x", "true"]);
    assert_eq!((silent.code, silent.out.as_str(), silent.err.as_str()), (0, "", ""));
}

#[test]
fn a_signal_is_128_and_its_number() {
    let store = Store::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        assert_eq!(store.output(&["run", "x", "sh", "-c", &script]).code, code, "{signal}");
    }
}

#[test]
fn busy_is_75_or_what_was_asked_for_and_names_the_holder() {
    let store = Store::new();
    let mut holder = store.hold(&[], "x");
    let owner = store.show("x")["holders"][0]["owner"].as_str().expect("an owner").to_owned();
    for options in [&["-n"][..], &["--no-wait"], &["--wait", "0"], &["--wait", "0.2"]] {
        let busy = store.output(&[&["run"], options, &["x", "echo", "inside"]].concat());
        assert_eq!((busy.code, busy.out.as_str()), (75, ""), "{options:?}");
        assert!(busy.err.contains(&format!("held by {owner} for ")), "{}", busy.err);
    }
    for (code, expected) in [("0", 0), ("1", 1), ("255", 255)] {
        assert_eq!(store.output(&["run", "-n", "-E", code, "x", "false"]).code, expected);
    }
    holder.say("end");
    assert_eq!(holder.code(), 0);
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 0);
}

#[test]
fn a_wait_in_time_is_granted() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    let waiter = store.start(&[&["run", "-v", "--wait", "60.5s", "x"], &HOLD[..]].concat());
    store.until_waiting("x", 1);
    waiter.error_line("waiting for x: held by");
    assert_eq!(holder.output().code, 0);
    assert_eq!(waiter.line(), "ready");
    let waited = waiter.output();
    assert_eq!(waited.code, 0);
    assert!(waited.err.contains("x acquired after"), "{}", waited.err);
    assert!(waited.err.contains("token"), "{}", waited.err);
}

#[test]
fn a_store_that_cannot_be_used_is_69() {
    let store = Store::new();
    let file = store.directory.path().join("file");
    fs::write(&file, "").expect("write");
    let url = format!("file:{}/below", file.display());
    for words in [&["run", "x", "true"][..], &["ls"], &["show", "x"]] {
        let failed = store.output(&[&["--url", &url], words].concat());
        assert_eq!(failed.code, 69, "{words:?}");
        assert!(failed.err.starts_with("lockkeeper: "), "{}", failed.err);
        assert!(failed.err.lines().count() <= 2, "{}", failed.err);
    }
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_one_not_found_127() {
    let store = Store::new();
    let missing = store.output(&["run", "x", "no-such-command-anywhere"]);
    assert_eq!(missing.code, 127);
    assert!(missing.err.contains("no-such-command-anywhere"), "{}", missing.err);
    let plain = store.directory.path().join("plain");
    fs::write(&plain, "not a program").expect("write");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("chmod");
    let plain = plain.to_str().expect("UTF-8");
    assert_eq!(store.output(&["run", "x", plain]).code, 126);
    assert_eq!(store.output(&["run", "x", "/"]).code, 126);
    assert_eq!(store.show("x")["holders"].as_array().map(Vec::len), Some(0));
}

#[test]
fn help_and_version_are_0_and_go_to_standard_output() {
    let store = Store::new();
    for words in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "unlock"]] {
        let help = store.output(words);
        assert_eq!(help.code, 0, "{words:?}");
        assert!(help.out.contains("lockkeeper") && help.err.is_empty(), "{help:?}");
    }
}
