//! `lockkeeper run` on a schedule: the command again and again, each tick on one node of many.

use std::time::Duration;

use lockkeeper::{Error, Job, Locks, Name, Result, Url};
use rustix::process::Signal;

use crate::args::Run;
use crate::exit::{Code, Failure, chain};
use crate::report::{Event, Report};
use crate::run::{RELEASE, failed, make_whole, start, verdict};
use crate::signals::{ENDING, Signals};
use crate::supervisor::Ended;

/// How long to wait before the store is asked again that could not be used.
const RETRY: Duration = Duration::from_secs(1);

/// What stays the same from tick to tick.
pub(crate) struct Scheduled<'a> {
    locks: &'a Locks,
    run: &'a Run,
    url: &'a Url,
    report: &'a Report,
    signals: Signals,
    /// Signals for the command are listened to.
    has_run: bool,
}

/// What to do next.
enum Next {
    Run(Box<lockkeeper::Run>),
    Retry,
    Exit(Code),
}

impl<'a> Scheduled<'a> {
    pub(crate) fn new(
        locks: &'a Locks,
        run: &'a Run,
        url: &'a Url,
        report: &'a Report,
        signals: Signals,
    ) -> Self {
        Self { locks, run, url, report, signals, has_run: false }
    }

    /// Runs the command at every tick that is ours, until told to end; with `--now` at most once.
    pub(crate) async fn run(mut self, job: Job) -> Result<Code, Failure> {
        let Run { at_least, .. } = *self.run;
        let job = job.at_least(at_least).overlap(self.run.overlap()).rerun(self.run.rerun());
        loop {
            match self.next(&job).await? {
                Next::Exit(code) => return Ok(code),
                Next::Retry => {}
                Next::Run(one) => {
                    let (code, told) = self.one(*one).await?;
                    if told || self.run.now {
                        return Ok(code);
                    }
                }
            }
        }
    }

    async fn next(&mut self, job: &Job) -> Result<Next, Failure> {
        let taken = {
            let taking =
                async { if self.run.now { job.due().await } else { job.next().await.map(Some) } };
            tokio::select! {
                biased;
                signal = ending(&mut self.signals) => return Ok(Next::Exit(of(signal))),
                taken = taking => taken,
            }
        };
        match taken {
            Ok(Some(one)) => Ok(Next::Run(Box::new(one))),
            Ok(None) => {
                let name = crate::args::name(&self.run.name)?;
                self.report.event(&Event::Taken { name: &name });
                Ok(Next::Exit(Code(self.run.conflict_exit_code)))
            }
            // Who stays, stays: the store may come back before the next tick.
            Err(error) if !self.run.now && Code::of(&error) == Code::UNAVAILABLE => {
                self.report.warn(chain(&error));
                tokio::select! {
                    signal = ending(&mut self.signals) => Ok(Next::Exit(of(signal))),
                    () = tokio::time::sleep(RETRY) => Ok(Next::Retry),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Runs the command for one tick; what it ended with, and whether we were told to end.
    async fn one(&mut self, one: lockkeeper::Run) -> Result<(Code, bool), Failure> {
        let name = one.guard().name().clone();
        let tick = humantime::format_rfc3339_millis(one.tick()).to_string();
        let attempt = one.attempt();
        self.report.event(&Event::Tick { name: &name, tick: tick.clone(), attempt });
        if !std::mem::replace(&mut self.has_run, true) {
            let system = |error| Failure::system("cannot listen to signals", &error);
            self.signals.while_running().map_err(system)?;
        }
        let variables = [("LOCKKEEPER_TICK", tick), ("LOCKKEEPER_ATTEMPT", attempt.to_string())];
        let whole = make_whole(one.guard()).await;
        let started = whole.and_then(|()| {
            start(self.locks, self.run, one.guard(), self.url, &variables, self.report)
        });
        let ended = match started {
            Ok(supervisor) => supervisor.supervise(&mut self.signals).await,
            Err(failure) => failed(&failure, self.report),
        };
        let (lost, told) = match ended.lost {
            // It is left without an end: what became of it is not for us to say.
            true => (true, ended.told),
            false => self.finish(one, &ended).await,
        };
        Ok((verdict(ended.code, lost, self.run.on_lost), told))
    }

    /// Writes down what the command ended with, keeps the lock as long as it is to be kept and we are not
    /// told to end, and releases it. Whether it was lost, and whether we are to end.
    async fn finish(&mut self, one: lockkeeper::Run, ended: &Ended) -> (bool, bool) {
        let (name, mut told) = (one.guard().name().clone(), ended.told);
        let mut lost = self.written(&name, one.end(i32::from(ended.code.0)).await);
        if !told && !lost {
            tokio::select! {
                biased;
                _ = ending(&mut self.signals) => told = true,
                _ = one.guard().lost() => {}
                () = tokio::time::sleep(one.left()) => {}
            }
        }
        match tokio::time::timeout(RELEASE, one.release()).await {
            Ok(released) => lost |= self.written(&name, released),
            Err(_elapsed) => self.report.warn(format!(
                "the store did not confirm the release of {name}; it is over when the lease ends"
            )),
        }
        if !lost {
            self.report.event(&Event::Released { name: &name });
        }
        (lost, told)
    }

    /// Says what went wrong; whether the lock was lost.
    fn written(&self, name: &Name, outcome: Result<()>) -> bool {
        match outcome {
            Ok(()) => false,
            Err(error) => {
                let lost = matches!(error, Error::Lost { .. });
                self.report.warn(format!("{name}: {}", chain(&error)));
                lost
            }
        }
    }
}

/// A signal that ends us while the command does not run.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if ENDING.contains(&signal) {
            return signal;
        }
        if signal == Signal::TSTP {
            // What it would have done if we did not listen; if it cannot be done we go on.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        }
    }
}

fn of(signal: Signal) -> Code {
    Code::of_signal(signal.as_raw())
}
