//! Jobs that run once per tick, on the stores that need no server.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper::backend::Write;
use lockkeeper::{Error, Job, Locks, Name, Rerun, Schedule, blocking};
use parking_lot::Mutex;
use testkit::wait::soon;

const TICK: Duration = Duration::from_millis(100);

fn job(locks: &Locks) -> Job {
    locks.job("job", Schedule::every(TICK).unwrap())
}

/// A tick that stays the latest as long as a test takes.
fn rarely() -> Schedule {
    Schedule::cron("0 0 1 1 *").unwrap()
}

async fn directory() -> (tempfile::TempDir, Vec<Locks>) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file:{}", directory.path().display());
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(Locks::connect(&url).await.unwrap());
    }
    (directory, nodes)
}

/// Writes something else over what is remembered of a job.
async fn rewrite(locks: &Locks, change: impl Fn(String) -> String) {
    let (cells, name): (_, Name) = (locks.backend().cells().unwrap(), "job".parse().unwrap());
    let cell = cells.read(&name, 1).await.unwrap().remove(0);
    let value = change(String::from_utf8(cell.value).unwrap()).into_bytes();
    assert!(cells.swap(&name, &[Write { cell: 0, version: cell.version, value }]).await.unwrap());
}

/// Writes another tick where this one is.
async fn shift(locks: &Locks, tick: SystemTime, by: i64) {
    let millis = i64::try_from(millis(tick)).unwrap();
    rewrite(locks, |text| text.replace(&millis.to_string(), &(millis + by).to_string())).await;
}

fn millis(tick: SystemTime) -> u128 {
    tick.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// Runs of each tick.
type Log = Arc<Mutex<HashMap<SystemTime, Vec<u32>>>>;

async fn node(job: Job, log: Log, ticks: usize) {
    for _ in 0..ticks {
        let run = job.next().await.unwrap();
        log.lock().entry(run.tick()).or_default().push(run.attempt());
        run.finish(0).await.unwrap();
    }
}

#[tokio::test]
async fn each_tick_is_run_by_one_node() {
    let (_directory, nodes) = directory().await;
    let log = Log::default();
    let running: Vec<_> =
        nodes.iter().map(|locks| tokio::spawn(node(job(locks), Arc::clone(&log), 1000))).collect();
    let (since, wanted) = (tokio::time::Instant::now(), 20);
    while log.lock().len() < wanted {
        tokio::time::sleep(TICK).await;
    }
    running.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(log.lock().values().all(|runs| runs == &[1]), "{log:?}");
    assert!(since.elapsed() >= TICK * (u32::try_from(wanted).unwrap() - 2));
    let last = job(&nodes[0]).last().await.unwrap().unwrap();
    assert!(last.tick() <= last.started() && last.attempt() == 1);
}

#[tokio::test]
async fn a_run_that_is_dropped_died() {
    for rerun in [Rerun::Never, Rerun::Once] {
        let locks = Locks::memory();
        let job = locks.job("job", rarely()).rerun(rerun);
        let run = job.due().await.unwrap().unwrap();
        let tick = run.tick();
        assert!(job.due().await.unwrap().is_none(), "it goes on");
        drop(run);
        let last = job.last().await.unwrap().unwrap();
        assert_eq!((last.code(), last.took(), last.attempt()), (None, None, 1));
        if rerun == Rerun::Once {
            let again = soon("once more", job.next()).await.unwrap();
            assert_eq!((again.tick(), again.attempt()), (tick, 2));
        } else {
            assert!(tokio::time::timeout(TICK, job.next()).await.is_err());
        }
        assert!(job.due().await.unwrap().is_none(), "there is no third time");
    }
}

/// Whoever has the lock and takes no tick is slow, or has died: others run it when the lock is free.
#[tokio::test]
async fn a_tick_that_somebody_was_about_to_take_is_not_left_out() {
    let locks = Locks::memory();
    let lease = Duration::from_secs(3);
    let _dead = locks.lease(lease).mutex("job").lock().await.unwrap();
    let run = soon("the lock is free", locks.job("job", rarely()).due()).await.unwrap();
    run.expect("nobody has it").finish(0).await.unwrap();
}

/// The one who waits for the lock to see whether a run died runs nothing if it did not.
#[tokio::test]
async fn a_run_that_ended_is_not_run_again() {
    let locks = Locks::memory();
    let job = locks.job("job", rarely()).rerun(Rerun::Once);
    let run = job.due().await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let job = job.clone();
        async move { tokio::time::timeout(Duration::from_millis(300), job.next()).await.is_ok() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    run.finish(1).await.unwrap();
    assert!(!waiting.await.unwrap());
    assert_eq!(job.last().await.unwrap().unwrap().code(), Some(1));
}

#[tokio::test]
async fn the_lock_is_kept_for_so_long() {
    let locks = Locks::memory();
    let time = Duration::from_millis(350);
    let job = job(&locks).at_least(time);
    let (first, since) = (job.due().await.unwrap().unwrap(), tokio::time::Instant::now());
    let other = tokio::spawn({
        let job = job.clone();
        async move { (job.next().await.unwrap(), tokio::time::Instant::now()) }
    });
    first.finish(0).await.unwrap();
    let (second, at) = other.await.unwrap();
    assert!(at - since >= time);
    second.finish(0).await.unwrap();
}

#[tokio::test]
async fn a_job_that_never_ran_begins_with_the_next_tick_and_one_that_did_catches_up() {
    let locks = Locks::memory();
    let yearly = || locks.job("job", rarely());
    assert!(tokio::time::timeout(TICK, yearly().next()).await.is_err(), "not for the last tick");
    assert_eq!(yearly().last().await.unwrap(), None);
    // As if it had run an hour before.
    let run = yearly().due().await.unwrap().unwrap();
    run.finish(0).await.unwrap();
    let through = yearly().last().await.unwrap().unwrap().tick();
    shift(&locks, through, -3_600_000).await;
    let run = soon("the latest", yearly().next()).await.unwrap();
    assert_eq!(run.tick(), through);
    run.finish(0).await.unwrap();
}

/// A ledger from the future, as a clock that is ahead leaves it: nobody repeats, or goes back.
#[tokio::test]
async fn a_clock_that_is_behind_runs_nothing() {
    let locks = Locks::memory();
    let run = job(&locks).due().await.unwrap().unwrap();
    let tick = run.tick();
    run.finish(0).await.unwrap();
    shift(&locks, tick, 500).await;
    assert!(job(&locks).due().await.unwrap().is_none());
    let run = job(&locks).next().await.unwrap();
    assert!(millis(run.tick()) > millis(tick) + 500);
    run.finish(0).await.unwrap();
}

/// A store that was restarted without its data: who has seen a tick does not run it again.
#[tokio::test]
async fn a_node_remembers_what_the_store_has_forgotten() {
    let locks = Locks::memory();
    let yearly = || locks.job("job", rarely());
    let (one, two, new) = (yearly(), yearly(), yearly());
    one.due().await.unwrap().unwrap().finish(0).await.unwrap();
    assert!(two.due().await.unwrap().is_none());
    rewrite(&locks, |_| String::new()).await;
    assert!(one.due().await.unwrap().is_none() && two.due().await.unwrap().is_none());
    assert!(new.due().await.unwrap().is_some(), "who has not cannot know");
}

#[tokio::test]
async fn what_is_no_ledger_is_an_error_and_not_a_job_that_never_ran() {
    let locks = Locks::memory();
    rewrite(&locks, |_| "mine".to_owned()).await;
    assert!(matches!(job(&locks).next().await, Err(Error::Config(_))));
    locks.shutdown(Duration::ZERO).await;
    let other = locks.job("other", Schedule::every(TICK).unwrap());
    assert!(matches!(other.next().await, Err(Error::ShutDown)));
}

/// The end cannot be written, and yet no other run begins before its time.
#[tokio::test]
async fn the_lock_is_kept_for_so_long_also_if_the_end_cannot_be_written() {
    let locks = Locks::memory();
    let time = Duration::from_millis(300);
    let job = job(&locks).at_least(time);
    let (run, since) = (job.due().await.unwrap().unwrap(), tokio::time::Instant::now());
    rewrite(&locks, |_| "mine".to_owned()).await;
    let finishing = tokio::spawn(run.finish(0));
    let guard = locks.mutex("job").lock().await.unwrap();
    assert!(since.elapsed() >= time);
    assert!(matches!(finishing.await.unwrap(), Err(Error::Config(_))));
    guard.release().await.unwrap();
}

/// The first word about how it ended counts, and it is said before the lock is given back.
#[tokio::test]
async fn a_run_ends_once() {
    let locks = Locks::memory();
    let job = job(&locks).at_least(Duration::MAX);
    let run = job.due().await.unwrap().unwrap();
    run.end(1).await.unwrap();
    run.end(2).await.unwrap();
    assert_eq!(job.last().await.unwrap().unwrap().code(), Some(1));
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    assert!(run.left() > Duration::from_hours(24 * 365 * 100));
    run.release().await.unwrap();
    assert!(locks.mutex("job").try_lock().await.unwrap().is_some());
}

#[test]
fn jobs_need_no_runtime() {
    let locks = blocking::Locks::connect("memory:").unwrap();
    let job = locks.job("job", Schedule::every(TICK).unwrap());
    let first = job.due().unwrap().expect("ours");
    let (tick, token) = (first.tick(), first.guard().token());
    first.finish(3).unwrap();
    assert_eq!(job.last().unwrap().and_then(|run| run.code()), Some(3));
    let second = job.next().unwrap();
    assert!(second.tick() > tick && second.guard().token() > token && second.attempt() == 1);
    second.finish(0).unwrap();
}
