//! Bad input at every door: refused with 64 and a reason, without a panic and without a lock.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::harness::{Output, Running, Store};

fn refused(output: &Output, reason: &str) {
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.err.contains(reason), "{reason}: {output:?}");
    assert!(!output.err.contains("panicked"), "{output:?}");
    assert!(output.out.is_empty(), "{output:?}");
}

#[test]
fn hostile_names() {
    let store = Store::new();
    let long = "x".repeat(256);
    let cases = [
        ("", "empty"),
        (long.as_str(), "256 bytes"),
        ("a\nb", "U+000A"),
        ("a\u{1b}[31m", "U+001B"),
        ("../x", "\"..\""),
        ("/etc/passwd", "slash"),
        (" x", "white space"),
    ];
    for (name, reason) in cases {
        for words in
            [&["run", name, "true"][..], &["show", name], &["unlock", name, "--reason", "because"]]
        {
            let output = store.output(words);
            refused(&output, reason);
            assert!(!output.err.contains('\u{1b}'), "{output:?}");
        }
    }
}

#[test]
fn names_and_urls_that_are_not_utf_8() {
    let store = Store::new();
    let bad = OsStr::from_bytes(b"a\xffb");
    let mut run = store.command(&["run"]);
    refused(&Running::new(run.arg(bad).arg("true")).output(), "not UTF-8");
    let mut show = store.command(&["show"]);
    refused(&Running::new(show.arg(bad)).output(), "not UTF-8");
    let mut ls = store.command(&["ls"]);
    refused(&Running::new(ls.arg("--url").arg(bad)).output(), "not UTF-8");
    let mut ls = store.command(&["ls"]);
    refused(&Running::new(ls.env("LOCKKEEPER_URL", bad)).output(), "not UTF-8");
}

#[test]
fn urls_that_make_no_sense() {
    let store = Store::new();
    let cases = [
        ("", "known are"),
        ("ftp://h", "knows no \"ftp\""),
        ("file:/x?tll=3s", "known are: ttl"),
        ("file:/x?ttl=0s", "cannot be meant"),
        ("file:relative", "absolute"),
    ];
    for (url, reason) in cases {
        for words in [&["run", "x", "true"][..], &["ls"], &["show", "x"]] {
            refused(&store.output(&[&["--url", url], words].concat()), reason);
        }
    }
    for url in ["rediss://me:s3/cret@h", "rediss://me:s3cret@h?ca=/nowhere/ca.pem"] {
        let secret = store.output(&["--url", url, "ls"]);
        refused(&secret, "");
        assert!(!secret.err.contains("cret"), "{secret:?}");
    }
}

#[test]
fn numbers_and_durations_that_make_no_sense() {
    let store = Store::new();
    for options in [
        &["--ttl", "0"][..],
        &["--ttl", "1ms"],
        &["--ttl", "400days"],
        &["--ttl", "soon"],
        &["--lease", "0s"],
        &["--lease", "99999999999999999999999"],
        &["--max-hold", "0"],
        &["--wait", "-1"],
        &["--wait", "NaN"],
        &["--wait", ""],
        &["--grace", "x"],
        &["--slots", "0"],
        &["--slots", "-3"],
        &["-E", "256"],
        &["-E", "x"],
        &["--on-lost", "panic"],
        &["--unknown"],
    ] {
        let output = store.output(&[&["run"], options, &["x", "echo", "inside"]].concat());
        refused(&output, "");
        assert!(!output.err.is_empty(), "{options:?}");
    }
}

#[test]
fn options_that_contradict_each_other() {
    let store = Store::new();
    for options in [
        &["--wait", "1s", "--no-wait"][..],
        &["--ttl", "1s", "--lease", "1s"],
        &["--shared", "--slots", "2"],
    ] {
        let output = store.output(&[&["run"], options, &["x", "true"]].concat());
        refused(&output, "cannot be used with");
    }
}

#[test]
fn missing_arguments() {
    let store = Store::new();
    for words in [&[][..], &["run"], &["run", "x"], &["show"], &["unlock", "x"], &["frobnicate"]] {
        refused(&store.output(words), "");
    }
    refused(&store.output(&["unlock", "x", "--reason", " "]), "reason");
}

#[test]
fn a_name_in_use_as_something_else() {
    let store = Store::new();
    let _holder = store.hold(&["--slots", "2"], "x");
    refused(&store.output(&["run", "-n", "x", "true"]), "semaphore");
}
