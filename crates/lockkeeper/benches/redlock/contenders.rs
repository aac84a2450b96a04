//! Who is measured, and what we want to reach.

use crate::harness::Bench;
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::{AtLeast, AtMost};
use crate::harness::report::{Target, target};
use crate::harness::rows::one_process::{OWN_RATE, PAIR_P50};
use crate::stopped::TO_ALL;

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: false, crowds: &[] };

/// Row 5 counts what one server is asked.
const EVERY_ROW: &[u8] = &[1, 2, 3, 4, 6];
/// Nothing of it is left when its node stops.
const ONE_NODE: &[u8] = &[1, 2, 3, 4];
const JAVA: Program = Program::Java("java");
const NODE: Program = Program::Node("node");

static CONTENDERS: [Contender; 8] = [
    contender(("lockkeeper", "Lockkeeper"), Program::Rust, Role::Ours, EVERY_ROW, 1),
    contender(("one-node", "one node"), Program::Rust, Role::Raw, ONE_NODE, 1),
    contender(("one-node-plain", "one node, plain"), Program::Rust, Role::Raw, ONE_NODE, 1),
    contender(("raw", "raw majority"), Program::Rust, Role::Raw, &[1, 2, 6], 1),
    contender(("rslock", "rslock"), Program::Rust, Role::Barging, EVERY_ROW, 1),
    contender(("node-redlock", "node-redlock"), NODE, Role::Barging, EVERY_ROW, 1),
    contender(("redsync", "redsync"), Program::Go("go"), Role::Barging, EVERY_ROW, 1),
    contender(("redisson", "Redisson's RedLock"), JAVA, Role::Barging, EVERY_ROW, 1),
];

/// What we want to reach.
pub(crate) fn targets(book: &Book) -> Vec<Target> {
    let one = book.to(PAIR_P50, "one-node");
    let own = book.to_best(OWN_RATE, &[Role::Barging], true);
    let stopped = book.ours(TO_ALL).map(|ratio| (ratio, "× with all five".to_owned()));
    vec![
        target(1, "p50 ≤ 1.5 × that of one node", one, AtMost(1.5)),
        target(2, "≥ 2 × the best peer", own, AtLeast(2.0)),
        // What two medians of the same thing may differ by.
        target(6, "a stopped node adds nothing to the p50 (≤ 1.1 ×)", stopped, AtMost(1.1)),
    ]
}
