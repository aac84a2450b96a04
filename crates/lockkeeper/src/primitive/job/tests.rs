//! Jobs on clocks that are set.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Job, Locks, Overlap, Rerun, Schedule};

const DAY: Duration = Duration::from_hours(24);

thread_local! {
    /// How far the clock of this node is ahead.
    pub(super) static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn daily(locks: &Locks) -> Job {
    locks.job("job", Schedule::every(DAY).unwrap())
}

/// Sets the clock to noon, so many days ahead: no day begins while a test runs.
#[expect(clippy::disallowed_methods, reason = "the clock that is set")]
fn set_clock(days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let passed = Duration::from_secs(now.as_secs() % DAY.as_secs());
    AHEAD.set(DAY * (days + 1) + DAY / 2 - passed);
}

/// What comes of it before the clock was looked at a few times.
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(super::CLOCK * 5 / 2, future).await.ok()
}

#[tokio::test]
async fn a_clock_that_was_ahead_keeps_no_new_job_waiting() {
    set_clock(30);
    let job = daily(&Locks::memory());
    set_clock(0);
    assert!(soon(job.next()).await.is_none(), "not for the last tick");
    set_clock(1);
    soon(job.next()).await.expect("for the next").unwrap().finish(0).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_is_set_back_is_seen_while_waiting() {
    set_clock(30);
    let job = daily(&Locks::memory());
    let mut next = pin!(job.next());
    assert!(soon(&mut next).await.is_none());
    set_clock(0);
    assert!(soon(&mut next).await.is_none());
    set_clock(1);
    let run = soon(next).await.expect("the tick of that day").unwrap();
    assert_eq!(Some(run.tick()), job.schedule.latest(super::now().time()));
}

#[tokio::test]
async fn a_clock_that_is_set_back_repeats_nothing() {
    let locks = Locks::memory();
    let node = || daily(&locks).rerun(Rerun::Once);
    let (one, two) = (node(), node());
    for day in [0, 3] {
        set_clock(day);
        one.due().await.unwrap().expect("the latest").finish(0).await.unwrap();
    }
    for day in 0..=3 {
        set_clock(day);
        for node in [&one, &two, &node()] {
            assert!(node.due().await.unwrap().is_none(), "{day}");
        }
    }
    set_clock(4);
    assert!(two.due().await.unwrap().is_some());
}

#[tokio::test]
async fn a_tick_during_a_run_is_skipped_or_waits() {
    for overlap in [Overlap::Skip, Overlap::Wait] {
        let locks = Locks::memory();
        let node = || daily(&locks).overlap(overlap);
        set_clock(0);
        let first = node().due().await.unwrap().unwrap();
        set_clock(1);
        let other = node();
        let mut second = pin!(other.due());
        if overlap == Overlap::Skip {
            assert!(second.await.unwrap().is_none());
            first.finish(0).await.unwrap();
            for node in [node(), other.clone()] {
                assert!(node.due().await.unwrap().is_none(), "for all");
            }
            set_clock(2);
            assert!(node().due().await.unwrap().is_some(), "not the next one");
        } else {
            let brief = Duration::from_millis(50);
            assert!(tokio::time::timeout(brief, &mut second).await.is_err(), "it waits");
            set_clock(2);
            first.finish(0).await.unwrap();
            let second = second.await.unwrap().expect("ours");
            let latest = other.schedule.latest(super::now().time());
            assert_eq!(Some(second.tick()), latest, "only the latest");
        }
    }
}
