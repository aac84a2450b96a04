//! `lockkeeper run`: wait, start, watch, release, in this order and no other.

use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::backend::Term;
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Locks, Name, Url};

use crate::args::{self, OnLost, Run};
use crate::child::{Child, Unstopped};
use crate::deadline::Policy;
use crate::exit::{Code, Failure, chain};
use crate::guardian::Guardian;
use crate::report::{Event, Report};
use crate::scheduled::Scheduled;
use crate::signals::Signals;
use crate::supervisor::{Ended, Supervisor};
use crate::terminal::Terminal;
use crate::wait::{Waited, wait};

/// How long to wait for the store to confirm a release; it goes on by itself after that.
pub(crate) const RELEASE: Duration = Duration::from_secs(10);

pub(crate) async fn run(url: &OsString, run: &Run, report: &Report) -> Result<Code, Failure> {
    let name = args::name(&run.name)?;
    let (text, url) = args::url(url)?;
    let schedule = run.schedule()?;
    report.trace();
    let system = |error| Failure::system("cannot listen to signals", &error);
    let mut signals = Signals::while_waiting().map_err(system)?;
    let connected = tokio::select! {
        biased;
        signal = signals.next() => return Ok(Code::of_signal(signal.as_raw())),
        connected = Locks::connect(text) => connected?,
    };
    outlives_us(&connected)?;
    let locks = options(connected, run);
    if let Some(schedule) = schedule {
        let job = locks.job(&name, schedule);
        return Scheduled::new(&locks, run, &url, report, signals).run(job).await;
    }
    let guard = match wait(&locks, run, &name, &mut signals, report).await? {
        Waited::Granted(guard) => guard,
        Waited::Busy => return Ok(Code(run.conflict_exit_code)),
        Waited::Signalled(signal) => return Ok(Code::of_signal(signal.as_raw())),
    };
    signals.while_running().map_err(system)?;
    make_whole(&guard).await?;
    let ended = match start(&locks, run, &guard, &url, &[], report) {
        Ok(supervisor) => supervisor.supervise(&mut signals).await,
        Err(failure) => failed(&failure, report),
    };
    Ok(finish(guard, ended, &name, run.on_lost, report).await)
}

/// A command that could not be started.
pub(crate) fn failed(failure: &Failure, report: &Report) -> Ended {
    report.failure(failure);
    Ended { code: failure.code, lost: false, told: false }
}

/// Refuses a store that frees our lock the moment we die and lets nobody keep it until the command is dead.
fn outlives_us(locks: &Locks) -> Result<(), Failure> {
    let backend = locks.backend();
    let can = backend.capabilities();
    let system = |error| Failure::system("cannot keep the lock for the guardian", &error);
    if can.frees_on_death && can.across_processes && backend.lifeline().map_err(system)?.is_none() {
        let what = "run with mode=session, where a lock would be free before the command of a killed run \
                    is dead: use mode=lease";
        return Err(Error::Unsupported { backend: backend.name(), what: what.into() }.into());
    }
    Ok(())
}

fn options(locks: Locks, run: &Run) -> Locks {
    let locks = run.ttl.map_or(locks.clone(), |ttl| locks.ttl(ttl));
    let locks = run.lease.map_or(locks.clone(), |lease| locks.lease(lease));
    run.max_hold.map_or(locks.clone(), |max| locks.max_hold(max))
}

/// A lock may begin with a lease shorter than its time to live, on which the deadlines of the command
/// count: then it is renewed before the command starts.
pub(crate) async fn make_whole(guard: &Guard) -> Result<(), Failure> {
    let ttl = guard.term().ttl();
    let left = guard.expires_at().map(|at| at.since(Instant::now()));
    if matches!(guard.term(), Term::Hosted(_)) && left.is_some_and(|left| left < ttl / 3 * 2) {
        guard.renew(ttl).await?;
    }
    Ok(())
}

/// Starts the guardian, then the command.
pub(crate) fn start<'a>(
    locks: &Locks,
    run: &Run,
    guard: &'a Guard,
    url: &Url,
    more: &[(&'static str, String)],
    report: &'a Report,
) -> Result<Supervisor<'a>, Failure> {
    // A ctrl-Z now would stop them while they still are in our group: we would wait for them, and they for
    // somebody who lets them go on.
    let unstopped =
        Unstopped::begin().map_err(|error| Failure::system("cannot start the command", &error))?;
    let guardian = locks
        .backend()
        .lifeline()
        .and_then(Guardian::start)
        .map_err(|error| Failure::system("cannot start the guardian", &error))?;
    let mut variables = vec![
        ("LOCKKEEPER_NAME", guard.name().to_string()),
        ("LOCKKEEPER_TOKEN", guard.token().to_string()),
        ("LOCKKEEPER_OWNER", guard.owner().to_string()),
        ("LOCKKEEPER_URL", url.to_string()),
    ];
    variables.extend_from_slice(more);
    let child = Child::prepare(&run.command, variables)
        .map_err(|error| Failure::system("cannot start the command", &error))?;
    drop(unstopped);
    let policy = Policy { on_lost: run.on_lost, grace: run.grace, ttl: guard.term().ttl() };
    Ok(Supervisor::new(guard, policy, child, guardian, Terminal::of_session(), report))
}

/// Releases the lock, now that nobody works under it any more, and says what to exit with.
async fn finish(guard: Guard, ended: Ended, name: &Name, on_lost: OnLost, report: &Report) -> Code {
    let mut lost = ended.lost;
    match tokio::time::timeout(RELEASE, guard.release()).await {
        Ok(Ok(())) => report.event(&Event::Released { name }),
        Ok(Err(error @ Error::Lost { .. })) => {
            if !lost {
                report.warn(chain(&error));
            }
            lost = true;
        }
        Ok(Err(error)) => report.warn(chain(&error)),
        Err(_elapsed) => report.warn(format!(
            "the store did not confirm the release of {name}; it is over when the lease ends"
        )),
    }
    verdict(ended.code, lost, on_lost)
}

/// What to exit with.
pub(crate) fn verdict(code: Code, lost: bool, on_lost: OnLost) -> Code {
    match on_lost {
        _ if !lost => code,
        OnLost::Ignore if code != Code::SUCCESS => code,
        _ => Code::LOST,
    }
}
