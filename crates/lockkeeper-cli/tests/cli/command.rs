//! What the command gets: its arguments, its environment, its input, and nothing of ours.

use std::process::Stdio;

use super::harness::{Running, Store};

#[test]
fn the_environment_describes_the_lock() {
    let store = Store::new();
    let script = "echo $LOCKKEEPER_NAME; echo $LOCKKEEPER_TOKEN; echo $LOCKKEEPER_OWNER; \
                  echo $LOCKKEEPER_URL; read line";
    let mut running = store.start(&["run", "orders/42", "sh", "-c", script]);
    let [name, token, owner, url] = std::array::from_fn(|_| running.line());
    let shown = store.show("orders/42");
    assert_eq!(name, "orders/42");
    assert_eq!(shown["holders"][0]["token"].to_string(), token);
    assert_eq!(shown["holders"][0]["owner"].as_str(), Some(owner.as_str()));
    assert_eq!(url, store.url());
    running.say("end");
    let next = store.output(&["run", "orders/42", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    let next: u64 = next.out.trim().parse().expect("a number");
    assert!(next > token.parse().expect("a number"), "tokens grow");
}

#[test]
fn arguments_are_passed_as_they_are_and_not_to_a_shell() {
    let store = Store::new();
    let words = ["run", "x", "printf", "[%s]", "a b", "$HOME", "*", "--", "-n", "--url", ""];
    let output = store.output(&words);
    assert_eq!(output.out.trim(), "[a b][$HOME][*][--][-n][--url][]");
}

#[test]
fn input_and_output_are_the_commands_alone() {
    let store = Store::new();
    for option in ["-v", "--json"] {
        let mut running = store.start(&["run", option, "x", "cat"]);
        running.say("one line");
        let output = running.output();
        assert_eq!((output.code, output.out.as_str()), (0, "one line\n"), "{option}");
        assert!(output.err.contains("acquired"), "{}", output.err);
    }
}

#[test]
fn json_events_are_lines_of_json() {
    let store = Store::new();
    let output = store.output(&["run", "--json", "x", "true"]);
    let events: Vec<String> = output
        .err
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|event| event["event"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(events, ["acquired", "started", "exited", "released"]);
    let failed = store.output(&["run", "--json", "", "true"]);
    let failed: serde_json::Value = serde_json::from_str(failed.err.trim()).expect("JSON");
    assert_eq!((&failed["event"], &failed["exit_code"]), (&"error".into(), &64.into()));
}

#[test]
fn no_descriptor_of_ours_is_inherited() {
    let store = Store::new();
    let list = ["ls", "/proc/self/fd"];
    let under = store.output(&[&["run", "x"], &list[..]].concat());
    // The test runner may have let us inherit some, and those are passed on.
    let mut plain = std::process::Command::new(list[0]);
    plain.arg(list[1]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(under.out, Running::new(&mut plain).output().out);
}

#[test]
fn what_is_ignored_stays_ignored_and_nothing_is_blocked() {
    let store = Store::new();
    let status = |output: &str, field: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(field).map(str::trim));
        u64::from_str_radix(line.expect(field), 16).expect("a mask")
    };
    let under = ["env", "--default-signal", "--ignore-signal=HUP"];
    let words = ["run", "x", "cat", "/proc/self/status"];
    let mut command = store.command_under(&under, &words);
    let output = Running::new(&mut command).output();
    // Above are signals of the C library.
    let ordinary = (1 << 31) - 1;
    assert_eq!(status(&output.out, "SigIgn:") & ordinary, 1, "HUP alone is ignored");
    assert_eq!(status(&output.out, "SigBlk:"), 0);
}

#[test]
fn private_memory_works_without_anything_to_share() {
    let store = Store::new();
    let output = store.output(&["--url", "memory:", "run", "-v", "x", "sh", "-c", "exit 4"]);
    assert_eq!(output.code, 4);
}
