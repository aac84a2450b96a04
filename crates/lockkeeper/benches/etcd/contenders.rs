//! Who is measured, and what we want to reach.

use crate::harness::Bench;
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::{AtLeast, AtMost};
use crate::harness::report::{Target, flat, target};
use crate::harness::rows::many_processes::{HAND_OVER_MEAN, HAND_OVER_P50};
use crate::harness::rows::one_process::{OWN_RATE, PAIR_P50};
use crate::stats::{MESSAGES, WRITES};

/// One holds and 2, 8, 32 or 128 wait.
const CROWDS: [u32; 4] = [3, 9, 33, 129];
const MOST: u32 = 129;

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: false, crowds: &CROWDS };

const ROWS: &[u8] = &[1, 2, 4, 5];

static CONTENDERS: [Contender; 5] = [
    contender(("lockkeeper", "Lockkeeper"), Program::Rust, Role::Ours, ROWS, MOST),
    contender(("raw-leases", "raw, a lease each"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-keys", "raw, one lease"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("go-concurrency", "Go's Mutex"), Program::Go("etcd"), Role::Fair, ROWS, MOST),
    contender(("lock-rpc", "Lock call"), Program::Go("etcd"), Role::Fair, ROWS, MOST),
];

/// What we want to reach.
pub(crate) fn targets(book: &Book) -> Vec<Target> {
    let raw = book.to(PAIR_P50, "raw-leases");
    let rate = book.to(OWN_RATE, "go-concurrency");
    let (go, call) = ("go-concurrency", "lock-rpc");
    let (median, mean) = (|id| book.to(HAND_OVER_P50, id), |id| book.to(HAND_OVER_MEAN, id));
    vec![
        target(1, "p50 ≤ 1.2 × the same calls, raw", raw, AtMost(1.2)),
        target(2, "≥ 1.5 × Go's Mutex", rate, AtLeast(1.5)),
        target(4, "hand-over p50 ≤ that of Go's Mutex", median(go), AtMost(1.0)),
        target(4, "hand-over p50 ≤ 1/4 of the Lock call's", median(call), AtMost(0.25)),
        target(4, "hand-over mean ≤ that of Go's Mutex", mean(go), AtMost(1.0)),
        target(4, "hand-over mean ≤ 1/4 of the Lock call's", mean(call), AtMost(0.25)),
        flat(book, "messages", MESSAGES, &CROWDS),
        flat(book, "proposals", WRITES, &CROWDS),
    ]
}
