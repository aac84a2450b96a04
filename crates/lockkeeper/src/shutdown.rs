//! The end: everything that is held is given back, on demand or when the process is told to go.

use std::pin::{Pin, pin};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::time::Sleep;

use crate::backend::Term;
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::lease::Lease;
use crate::locks::{Inner, Locks};
use crate::loss::Cause;
use crate::undo::UNDOING;

/// Leases longer than this are given back at shutdown; shorter ones may as well end by themselves.
const LONG_LEASE: Duration = Duration::from_secs(30);

/// How long the guards of a process that is told to go have to go.
const GRACE: Duration = Duration::from_secs(10);

/// How long giving back what is left may take after that.
const LAST: Duration = Duration::from_secs(5);

/// How long those who wait have to leave their place in line.
const LEAVE: Duration = Duration::from_secs(1);

/// How often that is looked at, and what was parked meanwhile.
const LOOK: Duration = Duration::from_millis(2);

/// What [`Locks::shutdown`] found still held after the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// So many locks were given back.
    pub released: usize,
    /// So many were left to end by themselves.
    pub left: usize,
}

impl Locks {
    /// Ends the use of these locks: refuses new ones, ends all waits, tells every holder that its
    /// lock is lost, waits up to `grace` for the guards to go and for their locks to be back at the
    /// store, and then gives back what is still held, except fixed leases that were never taken or renewed
    /// for more than 30 s, which end by themselves soon enough. Those who wait leave their place in line
    /// before it returns, if they can within the grace and a second.
    ///
    /// Stop the work first: what is given back while its holder still works is no longer exclusive.
    pub async fn shutdown(&self, grace: Duration) -> Shutdown {
        shut_down(&self.inner.keeper, Some(&self.inner), grace).await
    }

    /// From now on SIGINT, SIGTERM and SIGHUP [shut these locks down](Self::shutdown) with a grace of
    /// 10 s, and then end the process as they would have done without this. A second signal ends it at
    /// once. Without this call a process that is told to go leaves its locks to their leases.
    ///
    /// For a program without a shutdown of its own. One that has requests to finish, such as a service
    /// with a graceful shutdown, finishes them first and then calls [`shutdown`](Self::shutdown): see
    /// `examples/graceful_service.rs`.
    ///
    /// A signal that is ignored, as `nohup` does with SIGHUP, stays ignored. For several [`Locks`] call
    /// it on each: the process ends when all are done, and after 15 s in any case. A guard that outlives
    /// its [`Locks`] is given back as well. A thread waits for the signals; it is the same one for all, and
    /// does not need the runtime to be alive. A child that is forked without `exec` has no such thread: it
    /// hears these signals, and nothing happens.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when there is no thread or no handler to be had.
    pub fn release_on_signal(&self) -> Result<()> {
        let mut told = TOLD.lock();
        let keeper = Arc::downgrade(&self.inner.keeper);
        told.locks.retain(|(other, _)| other.strong_count() > 0 && !other.ptr_eq(&keeper));
        told.locks.push((keeper, Arc::downgrade(&self.inner)));
        if !told.listening {
            listen()
                .map_err(|error| Error::Config(format!("signals cannot be waited for: {error}")))?;
            told.listening = true;
        }
        Ok(())
    }
}

/// See [`Locks::shutdown`]. Without the locks themselves there are guards of theirs at most.
async fn shut_down(keeper: &Arc<Keeper>, locks: Option<&Inner>, grace: Duration) -> Shutdown {
    keeper.closing.declare(Cause::ShutDown);
    let mut cohorts: Vec<_> = locks.map_or_else(Vec::new, |locks| {
        locks.cohorts.lock().values().filter_map(Weak::upgrade).collect()
    });
    // Where nobody is now nobody comes who is not told: it need not be looked at again.
    cohorts.retain(|cohort| !cohort.tidy());
    for lease in keeper.leases() {
        lease.hold().loss().declare(Cause::ShutDown);
    }
    let back = async {
        while tokio::time::timeout(LOOK, keeper.empty()).await.is_err() {
            // A guard that just went on another thread may not have heard of it, and parked its hold.
            cohorts.retain(|cohort| !cohort.tidy());
        }
    };
    // Whether they went in time or not, what is left is dealt with next.
    let mut over = pin!(tokio::time::sleep(grace));
    unless(over.as_mut(), back).await;
    // Requests that have been told leave their place in line, in the background. What else is undone there
    // may be of other locks, and is not worth more time.
    let gone = async {
        while !(keeper.waiting.is_zero() && UNDOING.is_zero()) {
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(grace.min(LEAVE), gone).await;
    // What is granted in the last moment is in care before it no longer waits. Its holder has been told as well,
    // so it parks nothing, and has what is left of the same grace.
    unless(over, keeper.empty()).await;
    let mut report = Shutdown { released: 0, left: keeper.still_leaving() };
    let is_short = |lease: &Arc<Lease>| {
        matches!(lease.terms.term, Term::Fixed(_)) && lease.longest() <= LONG_LEASE
    };
    let (short, rest): (Vec<_>, Vec<_>) = keeper.leases().into_iter().partition(is_short);
    report.left += short.len();
    let releases = rest.iter().map(|lease| lease.release(lease.hold().tokens().first()));
    for (lease, released) in rest.iter().zip(join_all(releases).await) {
        match released {
            // `Lost` is what every one of them answers: that is what they were told above.
            Ok(()) | Err(Error::Lost { .. }) => report.released += 1,
            Err(error) => {
                tracing::warn!(name = %lease.terms.name, %error, "not released at shutdown");
                report.left += 1;
            }
        }
    }
    report
}

/// Waits for the guards to go, unless the grace is over before.
async fn unless(over: Pin<&mut Sleep>, gone: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = gone => {}
        () = over => {}
    }
}

/// Who is to be shut down by a signal.
struct Told {
    /// The keeper too, which lives as long as any guard does.
    locks: Vec<(Weak<Keeper>, Weak<Inner>)>,
    listening: bool,
}

static TOLD: Mutex<Told> = Mutex::new(Told { locks: Vec::new(), listening: false });

/// Starts the thread that waits for signals.
fn listen() -> std::io::Result<()> {
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status")?);
    let heeded = [SIGINT, SIGTERM, SIGHUP];
    let (hand_over, handed_over) = mpsc::channel::<Signals>();
    let named = std::thread::Builder::new().name("lockkeeper-signals".into());
    // Before the handlers, which stay: without somebody who waits they would swallow every signal.
    named.spawn(move || {
        let Ok(mut signals) = handed_over.recv() else { return };
        let mut signals = signals.forever();
        let Some(signal) = signals.next() else { return };
        // Not in this thread, which has to hear the second one.
        let shutting_down = std::thread::Builder::new().spawn(move || {
            at_most(GRACE + LAST, shut_all_down);
            end_by(signal);
        });
        let again = shutting_down.ok().and_then(|_| signals.next());
        end_by(again.unwrap_or(signal))
    })?;
    let signals = Signals::new(heeded.into_iter().filter(|at| ignored >> (at - 1) & 1 == 0))?;
    // The thread is there and waits for them.
    let _ = hand_over.send(signals);
    Ok(())
}

/// Does something in a thread of its own, and does not wait for longer: not if a backend blocks instead of
/// waiting, nor if it panics.
fn at_most(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let working = std::thread::Builder::new().spawn(move || {
        work();
        // Nobody listens any more when it took too long.
        let _ = done.send(());
    });
    if working.is_ok() && is_done.recv_timeout(time).is_err() {
        tracing::warn!("not everything could be given back in time");
    }
}

/// Shuts all down that asked for it.
fn shut_all_down() {
    // A runtime of its own: those of the program may be busy, or gone.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
        return;
    };
    let told = TOLD.lock();
    let locks: Vec<_> =
        told.locks.iter().map(|(keeper, locks)| (keeper.upgrade(), locks.upgrade())).collect();
    drop(told);
    let all = locks.iter().filter_map(|(keeper, locks)| {
        keeper.as_ref().map(|keeper| shut_down(keeper, locks.as_deref(), GRACE))
    });
    runtime.block_on(join_all(all));
}

/// Ends this process by a signal, so that whoever started it sees that.
fn end_by(signal: i32) -> ! {
    // Returns only if it cannot: the signal's own way is to end the process.
    let _ = emulate_default_handler(signal);
    std::process::exit(128 + signal)
}

/// The mask of ignored signals in `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found() {
        let mask = ignored("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t00000000000000ff\n");
        assert_eq!((mask >> (SIGHUP - 1) & 1, mask >> (SIGTERM - 1) & 1), (1, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_guard_that_outlives_its_locks_is_told_too() {
        let locks = Locks::memory().lease(Duration::from_secs(60));
        let guard = locks.mutex("x").lock().await.unwrap();
        locks.release_on_signal().unwrap();
        drop(locks);
        let shutting_down = std::thread::spawn(shut_all_down);
        let told = tokio::time::timeout(GRACE / 2, guard.lost()).await;
        assert_eq!(told, Ok(Cause::ShutDown));
        drop(guard);
        tokio::task::spawn_blocking(|| shutting_down.join().unwrap()).await.unwrap();
    }

    #[test]
    fn a_guard_without_a_runtime_is_told_too() {
        let locks = crate::blocking::Locks::connect("memory:").unwrap();
        let guard = locks.mutex("x").lock().unwrap();
        locks.release_on_signal().unwrap();
        let shutting_down = std::thread::spawn(shut_all_down);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let told = runtime.block_on(async { tokio::time::timeout(GRACE / 2, guard.lost()).await });
        assert_eq!(told, Ok(Cause::ShutDown));
        drop(guard);
        shutting_down.join().unwrap();
    }

    #[tokio::test]
    async fn who_asks_again_is_told_once() {
        let locks = Locks::memory();
        for again in [locks.clone(), locks.ttl(Duration::from_secs(9)), locks.clone()] {
            again.release_on_signal().unwrap();
        }
        let (mine, told) = (Arc::downgrade(&locks.inner), TOLD.lock());
        assert_eq!(told.locks.iter().filter(|(_, other)| other.ptr_eq(&mine)).count(), 1);
    }

    #[test]
    fn what_blocks_or_panics_does_not_keep_the_process() {
        let (since, brief) = (crate::clock::Instant::now(), Duration::from_millis(50));
        at_most(brief, || {
            loop {
                std::thread::park();
            }
        });
        at_most(GRACE, || panic!("on command"));
        assert!(crate::clock::Instant::now().since(since) < GRACE);
    }
}
