//! Jobs that run once per tick on one of many nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper::{Error, Job, Locks, Rerun, Schedule};
use parking_lot::Mutex;

use super::{Harness, faulty, idle, not_applicable};
use crate::faulty::Mode;
use crate::wait::{eventually, soon};

/// A tick that stays the latest as long as a test takes.
fn rarely(locks: &Locks) -> Job {
    locks.job("x", Schedule::cron("0 0 1 1 *").unwrap())
}

/// Whether the store can have jobs; if not, it says so in a way that a program can tell.
async fn can(locks: &Locks, case: &str) -> bool {
    match rarely(locks).last().await {
        Err(Error::Unsupported { .. }) => {}
        last => return last.unwrap().is_none(),
    }
    not_applicable(case, &format!("{} has no jobs", locks.backend().name()));
    let next = rarely(locks).next().await.unwrap_err();
    let due = rarely(locks).due().await.unwrap_err();
    assert!(matches!((&next, &due), (Error::Unsupported { .. }, Error::Unsupported { .. })));
    assert_eq!(locks.last_run("x").await.unwrap(), None);
    false
}

/// Three nodes, each tick on one of them, and never again.
pub async fn each_tick_is_run_once(harness: &dyn Harness) {
    if !can(&harness.locks().await, "each_tick_is_run_once").await {
        return;
    }
    let often = Schedule::every(Duration::from_millis(100)).unwrap();
    let runs = Arc::<Mutex<HashMap<SystemTime, u32>>>::default();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let (locks, runs) = (harness.locks().await, Arc::clone(&runs));
        let job = locks.job("x", often.clone());
        nodes.push(tokio::spawn(async move {
            loop {
                let run = job.next().await.unwrap();
                *runs.lock().entry(run.tick()).or_default() += 1;
                run.finish(0).await.unwrap();
            }
        }));
    }
    eventually("ten ticks", async || runs.lock().len() >= 10).await;
    nodes.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(runs.lock().values().all(|runs| *runs == 1), "{runs:?}");
}

/// A run that was left without an end is run again by who wants that, once.
pub async fn a_run_that_died_is_run_again_once(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "a_run_that_died_is_run_again_once").await {
        return;
    }
    let run = rarely(&one).due().await.unwrap().unwrap();
    let (tick, token) = (run.tick(), run.guard().token());
    assert!(rarely(&two).due().await.unwrap().is_none(), "it is somebody's");
    assert!(rarely(&two).rerun(Rerun::Once).due().await.unwrap().is_none(), "it goes on");
    drop(run);
    idle(&two, "x").await;
    assert!(rarely(&two).due().await.unwrap().is_none(), "never");
    let again = soon("once", rarely(&two).rerun(Rerun::Once).next()).await.unwrap();
    assert_eq!((again.tick(), again.attempt()), (tick, 2));
    assert!(again.guard().token() > token);
    again.finish(7).await.unwrap();
    assert!(rarely(&one).rerun(Rerun::Once).due().await.unwrap().is_none(), "no third time");
    let last = one.last_run("x").await.unwrap().unwrap();
    assert_eq!((last.tick(), last.attempt(), last.code()), (tick, 2, Some(7)));
}

/// The store took the claim and the answer was lost: it is ours all the same, and nobody else's.
pub async fn a_claim_whose_answer_was_lost_is_ours(harness: &dyn Harness) {
    let other = harness.locks().await;
    if !can(&other, "a_claim_whose_answer_was_lost_is_ours").await {
        return;
    }
    let (locks, faults) = faulty(harness).await;
    let (mine, theirs) = (rarely(&locks).rerun(Rerun::Once), rarely(&other).rerun(Rerun::Once));
    faults.swap.set(Mode::LoseReply);
    let run = mine.due().await.unwrap().expect("ours");
    assert_eq!((run.attempt(), faults.swap.done()), (1, 1), "found, and not written again");
    assert!(theirs.due().await.unwrap().is_none());
    // What is there cannot even be read at first.
    faults.read.set(Mode::Hang);
    let finishing = tokio::spawn(run.finish(0));
    eventually("the end is looked for", async || faults.read.begun() > faults.read.done()).await;
    faults.read.set(Mode::Pass);
    soon("the end", finishing).await.unwrap().unwrap();
    assert_eq!(faults.swap.done(), 2);
    assert_eq!(other.last_run("x").await.unwrap().unwrap().code(), Some(0));
    assert!(mine.due().await.unwrap().is_none() && theirs.due().await.unwrap().is_none());
}

/// The claim did not get to the store: it is sent again, and nobody else has it.
pub async fn a_claim_that_did_not_arrive_is_sent_again(harness: &dyn Harness) {
    let other = harness.locks().await;
    if !can(&other, "a_claim_that_did_not_arrive_is_sent_again").await {
        return;
    }
    let (locks, faults) = faulty(harness).await;
    faults.swap.set(Mode::Fail);
    let taking = tokio::spawn(async move { rarely(&locks).due().await });
    eventually("it is sent again", async || faults.swap.begun() >= 2).await;
    faults.swap.set(Mode::Pass);
    let run = soon("ours", taking).await.unwrap().unwrap().expect("ours");
    assert!(rarely(&other).due().await.unwrap().is_none());
    run.finish(0).await.unwrap();
}

/// Stopped between the claim and the run until the lock is lost: nothing is run.
pub async fn a_claim_that_was_too_late_is_not_run(harness: &dyn Harness) {
    let other = harness.locks().await;
    if !can(&other, "a_claim_that_was_too_late_is_not_run").await {
        return;
    }
    let (locks, faults) = faulty(harness).await;
    let ttl = Duration::from_secs(2);
    faults.renew.set(Mode::Fail);
    faults.swap.set(Mode::HoldReply);
    let taking = tokio::spawn(async move { rarely(&locks.ttl(ttl)).due().await });
    eventually("it is written down", async || faults.swap.done() == 1).await;
    idle(&other, "x").await;
    faults.swap.set(Mode::Pass);
    faults.swap.deliver();
    assert!(soon("the end", taking).await.unwrap().unwrap().is_none());
    let last = other.last_run("x").await.unwrap().unwrap();
    assert_eq!((last.attempt(), last.code()), (1, None), "it counts as one that died");
}

/// What is a stock is no job, nor the other way round; neither writes over the other.
pub async fn a_stock_of_the_same_name_is_left_alone(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_stock_of_the_same_name_is_left_alone").await {
        return;
    }
    locks.stock("x", 3).restock(5).await.unwrap();
    let error = rarely(&locks).due().await.unwrap_err();
    assert!(matches!(&error, Error::Config(text) if text.contains("x")), "{error}");
    assert!(matches!(rarely(&locks).next().await, Err(Error::Config(_))));
    assert_eq!(locks.last_run("x").await.unwrap(), None);
    assert_eq!(locks.stock("x", 3).remaining().await.unwrap(), 5);
    let job = locks.job("y", Schedule::cron("0 0 1 1 *").unwrap());
    job.due().await.unwrap().expect("ours").finish(3).await.unwrap();
    assert!(locks.stock("y", 1).restock(5).await.is_err());
    assert_eq!(job.last().await.unwrap().and_then(|run| run.code()), Some(3));
}
