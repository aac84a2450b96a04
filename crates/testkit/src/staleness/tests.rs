//! The checker, checked.

use lockkeeper::clock::Instant;

use super::{Kind, Operation, Outcome, Source};

mod anomalies;
mod controls;
mod paper;
mod property;

/// A time of a story.
fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Something done to `k` by a session, from one time to another.
fn did(kind: Kind, session: u64, (inv, res): (u64, u64), version: Option<u64>) -> Operation {
    Operation {
        process: 0,
        number: 0,
        session,
        key: "k".to_owned(),
        kind,
        inv: at(inv),
        res: at(res),
        outcome: Outcome::Ok,
        version,
        source: kind.reads().then_some(Source::L2),
    }
}

fn write(session: u64, when: (u64, u64), version: u64) -> Operation {
    did(Kind::Write, session, when, Some(version))
}

fn reads(session: u64, when: (u64, u64), version: u64) -> Operation {
    did(Kind::Read, session, when, Some(version))
}

fn with(outcome: Outcome, mut operation: Operation) -> Operation {
    operation.outcome = outcome;
    operation
}

fn on(key: &str, mut operation: Operation) -> Operation {
    key.clone_into(&mut operation.key);
    operation
}
