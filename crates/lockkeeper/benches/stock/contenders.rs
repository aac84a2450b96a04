//! What is measured, and what we want to reach.

use crate::harness::Bench;
use crate::harness::book::{Book, Ratio};
use crate::harness::contender::{Contender, Program, Role, contender};
use crate::harness::report::Limit::AtLeast;
use crate::harness::report::{Target, target};
use crate::harness::rows::many_processes::RATE;

pub(crate) static BENCH: Bench =
    Bench { contenders: &CONTENDERS, server_compiles: false, crowds: &[] };

const fn way(id: &'static str, name: &'static str, role: Role) -> Contender {
    contender((id, name), Program::Rust, role, &[4], 1)
}

static CONTENDERS: [Contender; 7] = [
    way("stock-16", "stock, 16 segments", Role::Ours),
    way("stock-4", "stock, 4", Role::Ours),
    way("stock-1", "stock, 1", Role::Ours),
    way("locks-16", "a lock around each of 16", Role::Ours),
    way("locks-4", "of 4", Role::Ours),
    way("locks-1", "of 1", Role::Ours),
    way("raw-decrement", "raw DECRBY", Role::Raw),
];

/// What one takes in a second to what another does.
fn ratio(book: &Book, one: &str, other: &str) -> Ratio {
    let rate = |id: &str| {
        let at = CONTENDERS.iter().position(|contender| contender.id == id)?;
        book.value(RATE, at)
    };
    Some((rate(one)? / rate(other)?, format!("× {other}")))
}

pub(crate) fn targets(book: &Book) -> Vec<Target> {
    let grows = |what, one, other, limit| target(4, what, ratio(book, one, other), AtLeast(limit));
    vec![
        grows("stock: 4 segments ≥ 3 × one", "stock-4", "stock-1", 3.0),
        grows("stock: 16 segments not less than 4", "stock-16", "stock-4", 1.0),
        grows("stock: ≥ a lock around each segment, 16", "stock-16", "locks-16", 1.0),
        grows("stock: ≥ a lock around the only segment", "stock-1", "locks-1", 1.0),
    ]
}
