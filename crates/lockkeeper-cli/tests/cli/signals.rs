//! Signals to `lockkeeper run`, while it waits and while the command runs.

use rustix::process::Signal;

use super::harness::Store;

/// Says which signals it gets; ends with 7 at TERM.
const REPORTER: &str = "\
for signal in INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $signal\" $signal; done
trap 'echo TERM; exit 7' TERM
echo ready
while :; do sleep 1000 & wait $!; done";

#[test]
fn signals_are_passed_on_to_the_command() {
    let store = Store::new();
    let running = store.start(&["run", "x", "sh", "-c", REPORTER]);
    assert_eq!(running.line(), "ready");
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TERM, "TERM"),
    ] {
        running.signal(signal);
        assert_eq!(running.line(), name);
    }
    assert_eq!(running.output().code, 7, "the command's own code");
    assert_eq!(store.show("x")["kind"], serde_json::Value::Null);
}

#[test]
fn a_command_that_does_not_care_ends_by_the_signal() {
    let store = Store::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let running = store.start(&["run", "x", "sh", "-c", "echo ready; exec sleep 1000"]);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.output().code, code);
    }
}

#[test]
fn a_signal_withdraws_a_wait() {
    let store = Store::new();
    let holder = store.hold(&[], "x");
    for options in [&[][..], &["--fair"], &["--wait", "1h"], &["--shared"]] {
        for (signal, code) in
            [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
        {
            let waiter = store.start(&[&["run"], options, &["x", "echo", "inside"]].concat());
            store.until_waiting("x", 1);
            waiter.signal(signal);
            let output = waiter.output();
            assert_eq!((output.code, output.out.as_str()), (code, ""), "{options:?}");
            assert_eq!(store.show("x")["waiters"], serde_json::json!([]), "no place is left");
        }
    }
    assert_eq!(holder.output().code, 0);
    assert_eq!(store.output(&["run", "-n", "x", "true"]).code, 0);
}

#[test]
fn a_stopped_command_is_reported_and_can_still_be_ended() {
    let store = Store::new();
    let running = store.start(&["run", "x", "sh", "-c", "echo $$; exec sleep 1000"]);
    let pid = running.line().parse().ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.expect("a process id");
    rustix::process::kill_process(pid, Signal::STOP).expect("stop");
    running.error_line("the lock is still held");
    running.signal(Signal::TERM);
    assert_eq!(running.output().code, 143);
}
