//! Waiting for the lock.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Locks, Name, Result};
use rustix::process::Signal;

use crate::args::Run;
use crate::duration::millis;
use crate::report::{Event, Report, Seen};
use crate::signals::Signals;

/// How long the store may take to say who holds the lock.
const WHO_HOLDS_IT: Duration = Duration::from_millis(500);

/// How a wait ended.
pub(crate) enum Waited {
    Granted(Guard),
    Busy,
    Signalled(Signal),
}

/// Waits for the lock, until it is granted, patience runs out, or a signal comes.
pub(crate) async fn wait(
    locks: &Locks,
    run: &Run,
    name: &Name,
    signals: &mut Signals,
    report: &Report,
) -> Result<Waited> {
    let since = Instant::now();
    let mut seen = Vec::new();
    let ended = {
        let granted = std::pin::pin!(acquire(locks, run, name));
        let notice = async {
            match report.notice_after() {
                Some(after) => tokio::time::sleep(after).await,
                None => pending().await,
            }
            seen = holders(locks, name).await;
            let waited_ms = millis(Instant::now().since(since));
            report.event(&Event::Waiting { name, waited_ms, holders: seen.clone() });
            // One line is enough.
            pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            granted = granted => Ok(granted?),
            never = notice => match never {},
        }
    };
    let waited_ms = millis(Instant::now().since(since));
    match ended {
        Ok(Some(guard)) => {
            let (token, owner) = (guard.token(), guard.owner());
            report.event(&Event::Acquired { name, token, owner, waited_ms, holders: seen });
            Ok(Waited::Granted(guard))
        }
        Ok(None) => {
            let waited_ms = if run.patience() == Some(Duration::ZERO) { 0 } else { waited_ms };
            let holders = holders(locks, name).await;
            report.event(&Event::Busy { name, waited_ms, holders });
            Ok(Waited::Busy)
        }
        Err(signal) => {
            // The wait is withdrawn by now or about to be; a question to the store comes after it.
            holders(locks, name).await;
            Ok(Waited::Signalled(signal))
        }
    }
}

/// Who holds the lock, as far as the store tells in a moment.
async fn holders(locks: &Locks, name: &Name) -> Vec<Seen> {
    match tokio::time::timeout(WHO_HOLDS_IT, locks.admin().show(name)).await {
        Ok(Ok(status)) => Seen::all(&status),
        _ => Vec::new(),
    }
}

/// Asks for the lock in the way that the options say; `None`: patience ran out.
async fn acquire(locks: &Locks, run: &Run, name: &Name) -> Result<Option<Guard>> {
    let granted = match (run.shared, run.slots) {
        (true, _) => {
            let lock = locks.rw_lock(name);
            let lock = if run.fair { lock.fair() } else { lock };
            match run.patience() {
                None => lock.read().await.map(Some),
                Some(Duration::ZERO) => lock.try_read().await,
                Some(patience) => lock.read_timeout(patience).await.map(Some),
            }
        }
        (false, Some(slots)) => {
            let lock = locks.semaphore(name, slots);
            match run.patience() {
                None => lock.acquire().await.map(Some),
                Some(Duration::ZERO) => lock.try_acquire().await,
                Some(patience) => lock.acquire_timeout(patience).await.map(Some),
            }
        }
        (false, None) => {
            let lock = locks.mutex(name);
            let lock = if run.fair { lock.fair() } else { lock };
            match run.patience() {
                None => lock.lock().await.map(Some),
                Some(Duration::ZERO) => lock.try_lock().await,
                Some(patience) => lock.lock_timeout(patience).await.map(Some),
            }
        }
    };
    match granted {
        Err(Error::Timeout { .. }) => Ok(None),
        granted => granted,
    }
}
