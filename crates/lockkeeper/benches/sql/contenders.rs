//! Who is measured, and what we want to reach.

use testkit::database::System;

use crate::harness::Bench;
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::{AtLeast, AtMost};
use crate::harness::report::{Target, target};
use crate::harness::rows::one_process::{ONE_RATE, PAIR_P50};
use crate::waiting;

const CROWDS: [u32; 3] = [3, 9, 33];
const MOST: u32 = 33;

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: false, crowds: &CROWDS };

const EVERY_ROW: &[u8] = &[1, 2, 3, 4, 5, 6];
const BY_HAND: &[u8] = &[1, 2, 3, 4, 5];

static CONTENDERS: [Contender; 6] = [
    contender(("lockkeeper", "Lockkeeper"), Program::Rust, Role::Ours, EVERY_ROW, MOST),
    contender(("raw-rows", "raw rows"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-prepared", "raw, prepared"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-select", "SELECT 1, twice"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("session", "session lock"), Program::Rust, Role::Barging, BY_HAND, MOST),
    contender(("row-lock", "row lock"), Program::Rust, Role::Barging, BY_HAND, MOST),
];

/// What we want to reach.
pub(crate) fn targets(book: &Book, system: System) -> Vec<Target> {
    let raw = book.to(PAIR_P50, "raw-rows");
    let one = book.to(ONE_RATE, "row-lock");
    let idle = book.ours(waiting::IDLE).map(|rate| (rate, "statements/s".to_owned()));
    let (what, most) = match system {
        // One of them may have been the sweep, or the renewal, of somebody else.
        System::Postgres => ("64 idle waiters cost 0 statements/s", 0.1),
        System::MariaDb => ("64 idle waiters cost ≤ 1 statement/s", 1.0),
    };
    vec![
        target(1, "p50 ≤ 1.3 × the same work, raw", raw, AtMost(1.3)),
        target(3, "≥ 10 × a loop of row locks", one, AtLeast(10.0)),
        target(6, what, idle, AtMost(most)),
    ]
}
