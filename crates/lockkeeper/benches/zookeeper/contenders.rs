//! Who is measured, and what we want to reach.

use crate::harness::Bench;
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::{AtLeast, AtMost};
use crate::harness::report::{Target, flat, target};
use crate::harness::rows::many_processes::HAND_OVER_P50;
use crate::harness::rows::one_process::{OWN_RATE, PAIR_P50};
use crate::stats::PACKETS;

/// One holds and 2, 8, 32 or 128 wait.
const CROWDS: [u32; 4] = [3, 9, 33, 129];
const MOST: u32 = 129;

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: true, crowds: &CROWDS };

const ROWS: &[u8] = &[1, 2, 4, 5];

static CONTENDERS: [Contender; 5] = [
    contender(("lockkeeper", "Lockkeeper"), Program::Rust, Role::Ours, ROWS, MOST),
    contender(("raw-together", "raw, list at once"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("raw-steps", "raw, one by one"), Program::Rust, Role::Raw, &[1, 2], 1),
    contender(("curator", "Curator"), Program::Java("curator"), Role::Fair, ROWS, MOST),
    contender(("kazoo", "kazoo"), Program::Python("kazoo"), Role::Fair, ROWS, MOST),
];

/// What we want to reach.
pub(crate) fn targets(book: &Book) -> Vec<Target> {
    let raw = book.to_best(PAIR_P50, &[Role::Raw], false);
    let rate = book.to(OWN_RATE, "curator");
    let hand_over = book.to(HAND_OVER_P50, "curator");
    vec![
        target(1, "p50 ≤ 1.2 × the raw calls", raw, AtMost(1.2)),
        target(2, "≥ 1.5 × Curator", rate, AtLeast(1.5)),
        target(4, "hand-over p50 ≤ Curator's", hand_over, AtMost(1.0)),
        flat(book, "packets", PACKETS, &CROWDS),
    ]
}
