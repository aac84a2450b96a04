//! Who is measured, and what we want to reach.

use crate::harness::Bench;
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::{AtLeast, AtMost};
use crate::harness::report::{Target, short, target};
use crate::harness::rows::many_processes::{HAND_OVER_P50, LONGEST_WAIT, RATE};
use crate::harness::rows::one_process::{ONE_RATE, OWN_RATE, PAIR_P50};
use crate::held;
use crate::stats::SENT;

/// A thread for each client is as much as Python and Java are asked for.
const THREADS: u32 = 100;
const CROWDS: [u32; 3] = [10, 100, 1000];

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: false, crowds: &CROWDS };

const EVERY_ROW: &[u8] = &[1, 2, 3, 4, 5, 6];
const NOT_HELD: &[u8] = &[1, 2, 3, 4, 5];
const PYTHON: Program = Program::Python("python");
const JAVA: Program = Program::Java("java");

static CONTENDERS: [Contender; 11] = [
    contender(("lockkeeper", "Lockkeeper"), Program::Rust, Role::Ours, EVERY_ROW, 1000),
    contender(("raw-set", "raw SET"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-scripts", "raw scripts"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("rslock", "rslock"), Program::Rust, Role::Barging, NOT_HELD, 1000),
    contender(("rslock-tuned", "rslock, 2 ms"), Program::Rust, Role::Barging, &[3, 4, 5], 100),
    contender(("redis-py", "redis-py"), PYTHON, Role::Barging, NOT_HELD, THREADS),
    contender(
        ("python-redis-lock", "python-redis-lock"),
        PYTHON,
        Role::Barging,
        EVERY_ROW,
        THREADS,
    ),
    contender(
        ("node-redlock", "node-redlock"),
        Program::Node("node"),
        Role::Barging,
        NOT_HELD,
        1000,
    ),
    contender(("redsync", "redsync"), Program::Go("go"), Role::Barging, NOT_HELD, 1000),
    contender(("redisson", "Redisson"), JAVA, Role::Barging, EVERY_ROW, THREADS),
    contender(("redisson-fair", "Redisson, fair"), JAVA, Role::Fair, &[4, 5], THREADS),
];

/// What we want to reach.
pub(crate) fn targets(book: &Book) -> Vec<Target> {
    let peers = [Role::Barging, Role::Fair];
    let raw = book.to_best(PAIR_P50, &[Role::Raw], false);
    let scripts = book.to(OWN_RATE, "raw-scripts");
    let own = book.to_best(OWN_RATE, &peers, true);
    let one = book.to_best(ONE_RATE, &peers, true);
    let trip = book.best(PAIR_P50, &[Role::Raw], false).map(|(pair, _)| pair / 2.0);
    let hand_over = book.ours(HAND_OVER_P50).zip(trip);
    let hand_over = hand_over
        .map(|(time, trip)| (time / trip, format!("raw round trips, of {} µs", short(trip))));
    let rate = book.to_best(RATE, &peers, true);
    let wait = book.to_best(LONGEST_WAIT, &[Role::Barging], false);
    let mut targets = vec![
        target(1, "p50 ≤ 1.2 × the raw two round trips", raw, AtMost(1.2)),
        target(2, "≥ 0.7 × the raw scripts", scripts, AtLeast(0.7)),
        target(2, "≥ 2 × the best peer", own, AtLeast(2.0)),
        target(3, "≥ 50 × the best peer", one, AtLeast(50.0)),
        target(4, "hand-over p50 ≤ 1.5 raw round trips", hand_over, AtMost(1.5)),
        target(4, "≥ the best peer's throughput", rate, AtLeast(1.0)),
        target(4, "longest wait ≤ 1/10 of the best barging peer's", wait, AtMost(0.1)),
    ];
    for clients in CROWDS {
        let sent = book.ours(SENT.of(clients)).map(|sent| (sent, "commands".to_owned()));
        let what = format!("≤ 6 commands per hand-over, {clients} clients");
        targets.push(target(5, &what, sent, AtMost(6.0)));
    }
    for held in held::MANY {
        let memory = book.ours(held::MEMORY.of(held)).map(|bytes| (bytes, "bytes".to_owned()));
        let what = format!("≤ 2,048 bytes per lock, {held} held");
        targets.push(target(6, &what, memory, AtMost(2048.0)));
    }
    targets
}
