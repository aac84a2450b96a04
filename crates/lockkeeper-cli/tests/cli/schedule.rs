//! The command on a schedule: each tick on one of many nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use lockkeeper::clock::Instant;
use rustix::process::Signal;
use testkit::server;
use tokio::runtime::Runtime;

use super::harness::{HOLD, Running, Store, eventually};

/// A tick that stays the latest as long as a test takes.
const RARELY: [&str; 3] = ["run", "--once-per", "0 0 1 1 *"];

/// What a node of a fleet runs: it writes down each tick, which try it is, the token, and whose child it
/// is; then it works for a moment.
const WORK: &str = "\
echo $LOCKKEEPER_TICK $LOCKKEEPER_ATTEMPT $LOCKKEEPER_TOKEN $PPID >> \"$1\"; sleep 0.03";

/// A node with a clock that is wrong by so much.
fn node(store: &Store, options: &[&str], clock: &str) -> Running {
    node_at(store, &store.url(), options, clock)
}

/// The same at another store.
fn node_at(store: &Store, url: &str, options: &[&str], clock: &str) -> Running {
    let log = log(store);
    let words = [&["run"], options, &["job", "sh", "-c", WORK, "sh", log.as_str()]].concat();
    let preload = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1";
    let clock = format!("FAKETIME={clock}");
    let under = ["env", "--default-signal", preload, &clock, "FAKETIME_DONT_FAKE_MONOTONIC=1"];
    Running::new(store.command_under(&under, &words).env("LOCKKEEPER_URL", url))
}

fn log(store: &Store) -> String {
    store.directory.path().join("log").display().to_string()
}

#[derive(Debug)]
struct Try {
    attempt: u32,
    token: u64,
    node: i32,
}

/// What the nodes wrote: the tries of each tick, in order.
fn written(store: &Store) -> BTreeMap<String, Vec<Try>> {
    let mut runs: BTreeMap<String, Vec<Try>> = BTreeMap::new();
    let text = fs::read_to_string(log(store)).unwrap_or_default();
    // A line that is being written is not there yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [tick, attempt, token, node] = words[..] else { panic!("{line}") };
        let number = |word: &str| word.parse::<u32>().expect("a number");
        let (attempt, token) = (number(attempt), token.parse().expect("a number"));
        let node = i32::try_from(number(node)).expect("a number");
        runs.entry(tick.to_owned()).or_default().push(Try { attempt, token, node });
    }
    runs
}

/// Runs a fleet for so many ticks, with clocks that are wrong. Of those that work, every second one is
/// killed as soon as it has begun, and so is one after the other of those that do not.
fn fleet(options: &[&str], ticks: usize) -> BTreeMap<String, Vec<Try>> {
    let store = Store::new();
    // The fastest get all ticks, as long as they live: the others are there to repeat them.
    let clocks = ["+3s", "+3s", "+3s", "+2.9s", "+2.8s", "+0", "-3s", "+1s"];
    let start = |at: usize| node(&store, options, clocks[at]);
    let mut nodes: Vec<Running> = (0..clocks.len()).map(start).collect();
    let (mut seen, mut killed, mut early) = (0, [0; 2], Duration::ZERO);
    eventually_within(Duration::from_secs(200), "the ticks", || {
        let runs = written(&store);
        let (tick, tries) = runs.last_key_value()?;
        let last = tries.last()?;
        early = early.max(ahead(tick));
        if runs.len() >= seen + 2 {
            seen = runs.len();
            let idle = 3 + killed[1] % 5;
            let working =
                nodes.iter().position(|one| one.pid().as_raw_nonzero().get() == last.node);
            for (which, at) in [(0, working), (1, Some(idle).filter(|_| seen % 4 == 0))] {
                if let Some(at) = at {
                    nodes[at].signal(Signal::KILL);
                    nodes[at] = start(at);
                    killed[which] += 1;
                }
            }
        }
        (runs.len() >= ticks).then_some(())
    });
    assert!(killed[0] > ticks / 4 && killed[1] > ticks / 16, "{killed:?}");
    assert!(early > Duration::from_secs(2), "the clocks are right: {early:?}");
    drop(nodes);
    written(&store)
}

/// How far a tick lies ahead of the clock that is right.
#[expect(clippy::disallowed_methods, reason = "the clock that is right")]
fn ahead(tick: &str) -> Duration {
    let tick = humantime::parse_rfc3339(tick).expect("a time");
    tick.duration_since(SystemTime::now()).unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "a process, not a runtime: some facts have no event")]
fn eventually_within(time: Duration, what: &str, mut question: impl FnMut() -> Option<()>) {
    let until = Instant::now() + time;
    while question().is_none() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ticks and tokens grow together: whoever runs a later tick has the larger token.
fn in_order(runs: &BTreeMap<String, Vec<Try>>) {
    let tokens: Vec<u64> = runs.values().flatten().map(|run| run.token).collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{runs:?}");
    let nodes: BTreeSet<i32> = runs.values().flatten().map(|run| run.node).collect();
    assert!(nodes.len() > 8, "not always the same: {nodes:?}");
}

#[test]
fn each_tick_is_run_at_most_once_by_eight_nodes_with_wrong_clocks_and_sudden_deaths() {
    let runs = fleet(&["--every", "200ms"], 60);
    let twice: Vec<_> = runs.iter().filter(|(_, tries)| tries.len() != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    in_order(&runs);
}

#[test]
fn each_tick_is_run_at_most_twice_if_that_is_wanted() {
    let runs = fleet(&["--every", "300ms", "--rerun", "once", "--overlap", "wait"], 60);
    let mut again = 0;
    for (tick, tries) in &runs {
        let tries: Vec<u32> = tries.iter().map(|run| run.attempt).collect();
        // One that was killed before it could write anything is not seen.
        assert!([&[1][..], &[2], &[1, 2]].contains(&&tries[..]), "{tick}: {tries:?}");
        again += usize::from(tries == [1, 2]);
    }
    assert!(again > 3, "{again}");
    in_order(&runs);
}

/// With seconds in the pattern.
#[test]
fn a_pattern_has_seconds() {
    let store = Store::new();
    let nodes = ["+0", "+0.4s"].map(|clock| node(&store, &["--once-per", "* * * * * *"], clock));
    eventually("three ticks", || (written(&store).len() >= 3).then_some(()));
    drop(nodes);
    let runs = written(&store);
    assert!(runs.values().all(|tries| tries.len() == 1), "{runs:?}");
    assert!(runs.keys().all(|tick| tick.ends_with(".000Z")), "{runs:?}");
}

/// One job, two schedules: still each tick at most once, and both are told.
#[test]
fn nodes_warn_of_another_schedule() {
    let store = Store::new();
    let nodes = ["200ms", "300ms"].map(|every| node(&store, &["--every", every], "+0"));
    for (node, theirs) in nodes.iter().zip(["every 300ms", "every 200ms"]) {
        let warning = node.error_line("another node has another schedule");
        assert!(warning.contains(theirs), "{warning}");
    }
    drop(nodes);
    let runs = written(&store);
    assert!(runs.values().all(|tries| tries.len() == 1), "{runs:?}");
}

#[test]
fn a_tick_whose_node_died_is_over_or_run_once_more() {
    let store = Store::new();
    let first = store.start(&[&RARELY[..], &["--now", "job"], &HOLD[..]].concat());
    assert_eq!(first.line(), "ready");
    assert_eq!(store.show("job")["last_run"]["state"], "running");
    // Stays, and takes over as soon as the other one is dead.
    let once = [&RARELY[..], &["--rerun", "once", "job", "sh", "-c"]].concat();
    let script = ["echo try $LOCKKEEPER_ATTEMPT; exit 3"];
    let next = store.start(&[&once[..], &script].concat());
    store.until_waiting("job", 1);
    let never = [&RARELY[..], &["--now", "job", "true"]].concat();
    assert_eq!(store.output(&never).code, 75, "it is somebody's");
    first.signal(Signal::KILL);
    assert_eq!(next.line(), "try 2");
    let last = eventually("the end", || {
        let last = store.show("job")["last_run"].clone();
        (last["state"] == "ended").then_some(last)
    });
    assert_eq!((&last["attempt"], &last["exit_code"]), (&2.into(), &3.into()), "{last}");
    assert_eq!(store.output(&[&once[..3], &["--now"], &once[3..], &["echo no"]].concat()).code, 75);
}

#[test]
fn a_tick_whose_node_died_stays_so() {
    let store = Store::new();
    let first = store.start(&[&RARELY[..], &["--now", "job"], &HOLD[..]].concat());
    assert_eq!(first.line(), "ready");
    first.signal(Signal::KILL);
    eventually("it is free", || (store.show("job")["last_run"]["state"] == "died").then_some(()));
    let again = store.output(&[&RARELY[..], &["--now", "-E", "9", "job", "true"]].concat());
    assert_eq!((again.code, again.out, again.err), (9, String::new(), String::new()));
    let shown = store.output(&["show", "job"]);
    assert!(
        shown.out.contains("job is free\nlast run for ") && shown.out.ends_with(": died\n"),
        "{shown:?}"
    );
}

/// A node that is stopped past its lease: its command is dead by then, another node runs the tick once
/// more, and what the first one says afterwards does not count.
#[test]
fn a_node_that_was_stopped_says_nothing_about_the_next_run() {
    let store = Store::new();
    let options = ["--ttl", "2s", "--rerun", "once"];
    let hold = [&RARELY[..], &options, &["--now", "job"], &HOLD[..]].concat();
    let mut first = store.start(&hold);
    assert_eq!(first.line(), "ready");
    let script = "echo try $LOCKKEEPER_ATTEMPT; read line; exit 5";
    let mut next = store.start(&[&RARELY[..], &options, &["job", "sh", "-c", script]].concat());
    store.until_waiting("job", 1);
    first.signal(Signal::STOP);
    assert_eq!(next.line(), "try 2");
    first.signal(Signal::CONT);
    assert_eq!(first.code(), 76, "lost");
    assert_eq!(store.show("job")["last_run"]["attempt"], 2);
    assert_eq!(store.show("job")["last_run"]["state"], "running");
    next.say("go on");
    eventually("the end", || (store.show("job")["last_run"]["exit_code"] == 5).then_some(()));
}

#[test]
fn a_tick_during_a_run_is_skipped() {
    let store = Store::new();
    let second = ["run", "--every", "1s", "--now", "job"];
    let mut first = store.start(&[&second[..], &HOLD[..]].concat());
    assert_eq!(first.line(), "ready");
    // Not for the tick that is somebody's, nor for those after it.
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        assert_eq!(store.output(&[&second[..], &["true"]].concat()).code, 75);
    }
    first.say("end");
    assert_eq!(first.code(), 0);
    eventually("the next tick", || {
        let next = store.output(&[&second[..], &["true"]].concat());
        (next.code == 0).then_some(())
    });
}

#[test]
fn a_tick_during_a_run_waits() {
    let store = Store::new();
    let second = ["run", "--every", "1s", "--now"];
    let mut first = store.start(&[&second[..], &["job"], &HOLD[..]].concat());
    assert_eq!(first.line(), "ready");
    let tick = store.show("job")["last_run"]["tick"].clone();
    let script = ["--overlap", "wait", "job", "sh", "-c", "echo in; exit 4"];
    let mut waiting = store.start(&[&second[..], &script].concat());
    eventually("the next tick is due, and it waits", || {
        if waiting.has_ended() {
            waiting = store.start(&[&second[..], &script].concat());
        }
        let waiters = store.show("job")["waiters"].as_array().map(Vec::len);
        (waiters == Some(1)).then_some(())
    });
    first.say("end");
    assert_eq!(first.code(), 0);
    let waited = waiting.output();
    assert_eq!((waited.code, waited.out.as_str()), (4, "in\n"), "{waited:?}");
    assert!(store.show("job")["last_run"]["tick"].as_str() > tick.as_str());
}

#[test]
fn the_lock_is_kept_for_at_least_so_long() {
    let store = Store::new();
    let since = Instant::now();
    let short = ["run", "--every", "1s", "--now"];
    let mut first = store.start(&[&short[..], &["--at-least", "2.5s", "job", "true"]].concat());
    eventually("it has begun", || store.show("job").get("last_run").map(drop));
    let other = store.output(&[&short[..], &["--overlap", "wait", "job", "true"]].concat());
    assert!([0, 75].contains(&other.code));
    assert!(Instant::now().since(since) >= Duration::from_millis(2500) || other.code == 75);
    assert_eq!(first.code(), 0);
    assert!(Instant::now().since(since) >= Duration::from_millis(2500));
}

#[test]
fn the_last_run_is_shown() {
    let store = Store::new();
    assert!(store.show("job").get("last_run").is_none(), "there was none");
    let words = [&RARELY[..], &["--now", "job", "sh", "-c", "exit 3"]].concat();
    let abroad = store.command_under(&["env", "TZ=Asia/Kolkata"], &words);
    let ran = Running::new(&mut { abroad }).output();
    assert_eq!(ran.code, 3, "{ran:?}");
    let last = store.show("job")["last_run"].clone();
    assert_eq!((&last["exit_code"], &last["state"]), (&3.into(), &"ended".into()), "{last}");
    assert!(last["tick"].as_str().is_some_and(|tick| tick.ends_with("-01-01T00:00:00.000Z")));
    assert!(last["owner"].is_string() && last["token"].is_u64(), "{last}");
    assert!(last["started"].is_string() && last["duration_ms"].is_u64(), "{last}");
    let shown = store.output(&["show", "job"]);
    assert!(
        shown.out.contains(", begun ") && shown.out.contains(": ended with 3 after "),
        "{shown:?}"
    );
    assert_eq!(last["schedule"], RARELY[2]);
    // A command that is not there is a run that ended.
    assert_eq!(store.output(&["run", "--every", "1s", "--now", "a", "no-such-command"]).code, 127);
    assert_eq!(store.show("a")["last_run"]["exit_code"], 127);
}

#[test]
fn who_stays_ends_when_told_to() {
    let store = Store::new();
    let mut idle = store.start(&[&RARELY[..], &["--json", "idle", "true"]].concat());
    let often = ["run", "--every", "100ms", "-v"];
    let script = "trap 'exit 7' TERM; echo in; sleep 100 & wait";
    let mut busy = store.start(&[&often[..], &["busy", "sh", "-c", script]].concat());
    assert_eq!(busy.line(), "in");
    busy.signal(Signal::TERM);
    assert_eq!(busy.code(), 7, "with what the command ended with");
    assert_eq!(store.show("busy")["last_run"]["exit_code"], 7);
    let failing = store.start(&[&often[..], &["failing", "sh", "-c", "echo in; exit 1"]].concat());
    for _ in 0..3 {
        assert_eq!(failing.line(), "in", "a command that fails is run again");
    }
    // By now it listens.
    idle.signal(Signal::TERM);
    assert_eq!(idle.code(), 128 + 15);
}

/// The lock is kept for years, if nobody says otherwise.
#[test]
fn who_keeps_a_lock_ends_when_told_to() {
    let store = Store::new();
    let long = ["--at-least", "18446744073709551615s"];
    let often = [&["run", "--every", "100ms"], &long[..]].concat();
    let script = "trap 'exit 7' TERM; echo in; sleep 100 & wait";
    let mut busy = store.start(&[&often[..], &["busy", "sh", "-c", script]].concat());
    assert_eq!(busy.line(), "in");
    busy.signal(Signal::TERM);
    assert_eq!(busy.code(), 7, "told while the command ran");
    let mut keeping = store.start(&[&often[..], &["keeping", "sh", "-c", "exit 3"]].concat());
    let last = eventually("the end is written", || {
        let shown = store.show("keeping");
        (shown["last_run"]["state"] == "ended").then_some(shown)
    });
    assert_eq!(last["holders"].as_array().map(Vec::len), Some(1), "{last}");
    keeping.signal(Signal::TERM);
    assert_eq!(keeping.code(), 3, "told while the lock was kept");
    for (name, code) in [("busy", 7), ("keeping", 3)] {
        let shown = store.show(name);
        assert_eq!(shown["last_run"]["exit_code"], code, "{shown}");
        assert_eq!(shown["holders"].as_array().map(Vec::len), Some(0), "{shown}");
    }
}

/// The server goes away and comes back: who stays goes on, and repeats nothing.
#[test]
fn who_stays_goes_on_when_the_store_comes_back() {
    let store = Store::new();
    let runtime = Runtime::new().expect("a runtime");
    let lasting = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = runtime.block_on(server::redis(&lasting));
    let url = format!("redis://{}", server.address());
    let options = ["--every", "200ms", "--ttl", "2s"];
    let nodes = ["+0", "+0.3s", "-0.3s"].map(|clock| node_at(&store, &url, &options, clock));
    let more = |count: usize| {
        let wanted = written(&store).len() + count;
        eventually("more ticks", || (written(&store).len() >= wanted).then_some(()));
    };
    more(3);
    for _ in 0..2 {
        server.kill();
        nodes[0].error_line("redis is not available");
        runtime.block_on(server.start_again());
        more(3);
    }
    drop(nodes);
    let runs = written(&store);
    assert!(runs.values().all(|tries| tries.len() == 1), "{runs:?}");
}

/// What is kept under the name is no job's, or cannot be kept: said, and left alone.
#[test]
fn what_cannot_be_used_is_said() {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(server::redis(&[]));
    let url = format!("redis://{}", server.address());
    let output = |url: &str, words: &[&str]| {
        Running::new(&mut Store::new().command(&[&["--url", url], words].concat())).output()
    };
    let run = [&RARELY[..], &["--now", "job", "true"]].concat();
    let mut raw = TcpStream::connect(server.address()).expect("connects");
    raw.write_all(b"HSET lockkeeper_cells:{job} 0 nonsense\r\n").expect("sent");
    let shown = eventually("it is there", || {
        let shown = output(&url, &["show", "job"]);
        (!shown.err.is_empty()).then_some(shown)
    });
    assert_eq!((shown.code, shown.out.as_str()), (0, "job is free\n"), "{shown:?}");
    assert!(shown.err.contains("the last run cannot be read"), "{shown:?}");
    let refused = output(&url, &run);
    assert_eq!((refused.code, refused.out.as_str()), (64, ""), "{refused:?}");
    let replicated = format!("{url}?replicas=1");
    let refused = output(&replicated, &run);
    assert_eq!((refused.code, refused.out.as_str()), (64, ""), "{refused:?}");
    assert!(refused.err.contains("replicas"), "{refused:?}");
    let shown = output(&replicated, &["show", "other"]);
    assert_eq!((shown.code, shown.err.as_str()), (0, ""), "{shown:?}");
}

#[test]
fn bad_input_is_refused() {
    let store = Store::new();
    let cases: [(&[&str], &str); 16] = [
        (&["--once-per", "nonsense"], "the schedule 'nonsense' cannot be used"),
        (&["--once-per", ""], "the schedule '' cannot be used"),
        (&["--once-per", "0 0 31 2 *"], "cannot be used"),
        (&["--once-per", "\u{1b}[31m * * * *"], "u{1b}"),
        (&["--once-per", "0 0 30 2 *"], "there is no such day"),
        (&["--every", "0"], "at least 100ms"),
        (&["--every", "1ms"], "at least 100ms"),
        (&["--every", "99999999999999999s"], "cannot be meant"),
        (&["--every", "1s", "--at-least", "99999999999999999999999s"], "--at-least"),
        (&["--every", "soon"], "--every"),
        (&["--every", "1s", "--once-per", "* * * * *"], "cannot be used with"),
        (&["--at-least", "1s"], "required"),
        (&["--now"], "required"),
        (&["--every", "1s", "--wait", "1s"], "cannot be used with"),
        (&["--every", "1s", "--shared"], "cannot be used with"),
        (&["--every", "1s", "--rerun", "twice"], "invalid value"),
    ];
    for (options, why) in cases {
        let refused = store.output(&[&["run"], options, &["job", "true"]].concat());
        assert_eq!(refused.code, 64, "{options:?}: {refused:?}");
        assert!(refused.err.contains(why) && !refused.err.contains('\u{1b}'), "{refused:?}");
    }
}

#[test]
fn the_help_tells_of_schedules() {
    let help = Store::new().output(&["run", "--help"]);
    for word in ["--once-per", "--every", "--now", "--at-least", "--overlap", "--rerun", "UTC"] {
        assert!(help.out.contains(word), "{word}");
    }
}
