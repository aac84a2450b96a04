//! `ls`, `show`, `unlock`, completions and the manual page.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::harness::{BINARY, HOLD, Store};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn show_json_has_exactly_the_promised_shape() {
    let store = Store::new();
    let free = json!({"name": "x", "kind": null, "holders": [], "waiters": []});
    assert_eq!(store.show("x"), free);
    let raw = store.output(&["show", "x", "--json"]).out;
    assert_eq!(raw.trim(), r#"{"name":"x","kind":null,"holders":[],"waiters":[]}"#);

    let _holder = store.hold(&["--fair"], "x");
    let _waiter = store.start(&[&["run", "--fair", "x"], &HOLD[..]].concat());
    store.until_waiting("x", 1);
    let shown = store.show("x");
    assert_eq!(keys(&shown), ["holders", "kind", "name", "waiters"]);
    assert_eq!(shown["kind"], "mutex");
    let holder = &shown["holders"][0];
    assert_eq!(keys(holder), ["held_ms", "lease_left_ms", "owner", "token"]);
    assert!(holder["token"].as_u64() > Some(0) && holder["held_ms"].is_u64(), "{shown}");
    assert!(holder["lease_left_ms"].as_u64() <= Some(30_000), "{shown}");
    let waiter = &shown["waiters"][0];
    assert_eq!(keys(waiter), ["owner", "position"]);
    assert_eq!(waiter["position"], 1);
    assert_ne!(waiter["owner"], holder["owner"]);
}

#[test]
fn ls_lists_what_show_shows() {
    let store = Store::new();
    assert_eq!(store.output(&["ls", "--json"]).out, "[]\n");
    let _one = store.hold(&[], "b");
    let _two = store.hold(&["--slots", "3"], "a/longer name");
    let listed: Value = serde_json::from_str(&store.output(&["ls", "--json"]).out).expect("JSON");
    let names = [&listed[0]["name"], &listed[1]["name"]];
    assert_eq!(names, ["a/longer name", "b"]);
    assert_eq!(listed[1]["holders"][0]["owner"], store.show("b")["holders"][0]["owner"]);
    let table = store.output(&["ls"]).out;
    let columns: Vec<_> = table.lines().map(|line| line.find("  ")).collect();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(columns.iter().all(Option::is_some), "{table}");
}

#[test]
fn show_speaks_in_sentences() {
    let store = Store::new();
    assert_eq!(store.output(&["show", "x"]).out, "x is free\n");
    let _holder = store.hold(&[], "x");
    let _waiter = store.start(&[&["run", "x"], &HOLD[..]].concat());
    store.until_waiting("x", 1);
    let shown = store.output(&["show", "x"]).out;
    assert!(shown.contains("held by ") && shown.contains("waiting at 1: "), "{shown}");
}

#[test]
fn unlock_raises_the_token_and_tells_whom_it_evicted() {
    let store = Store::new();
    let free = store.output(&["unlock", "x", "--reason", "test"]);
    assert_eq!((free.code, free.out.as_str()), (1, "nobody holds x\n"));

    let holder = store.hold(&[], "x");
    let before = store.show("x")["holders"][0].clone();
    let evicted = store.output(&["unlock", "x", "--reason", "test", "--json"]);
    assert_eq!(evicted.code, 0);
    let evicted: Value = serde_json::from_str(&evicted.out).expect("JSON");
    assert_eq!(evicted["evicted"], json!([before["owner"]]));
    assert!(evicted["token"].as_u64() > before["token"].as_u64(), "{evicted}");
    assert_eq!(holder.output().code, 76);

    let holder = store.hold(&[], "x");
    let evicted = store.output(&["unlock", "x", "--reason", "\u{1b}[31mred"]);
    assert!(evicted.out.contains("x taken away from "), "{evicted:?}");
    let output = holder.output();
    assert!(!output.err.contains('\u{1b}'), "escape codes of others are not obeyed: {output:?}");
}

#[test]
fn completions_and_the_manual_page_are_printed() {
    let store = Store::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = store.output(&["completions", shell]);
        assert_eq!(script.code, 0);
        assert!(script.out.contains("on-lost"), "{shell}");
        assert!(!script.out.contains("__guardian"), "{shell}");
    }
    let man = store.output(&["man"]);
    assert!(man.code == 0 && man.out.contains(".TH lockkeeper"), "{}", man.out);
    for part in [".SH RUN", "conflict", ".SH UNLOCK", "76"] {
        assert!(man.out.contains(part), "{part}: {}", man.out);
    }
    assert_eq!(store.output(&["completions", "tcsh"]).code, 64);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let store = Store::new();
    // A pipe whose reading end is closed.
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().expect("starts");
    let pipe = reader.stdin.take().expect("piped");
    reader.wait().expect("ends");
    let mut man = Command::new(BINARY);
    man.arg("man").env("LOCKKEEPER_URL", store.url()).stdout(pipe).stderr(Stdio::piped());
    let output = man.output().expect("runs");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
