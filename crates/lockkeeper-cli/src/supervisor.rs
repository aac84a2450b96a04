//! Watching the command while the lock is held.
//!
//! One loop, and one rule: it ends only when nobody in the command's process group lives any more.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard};
use rustix::process::Signal;

use crate::args::OnLost;
use crate::child::{Change, Child};
use crate::deadline::Policy;
use crate::duration::millis;
use crate::exit::Code;
use crate::guardian::Guardian;
use crate::report::{Event, Report};
use crate::signals::{ENDING, Signals};
use crate::terminal::Terminal;

/// How often to kill again: somebody may have joined the group in between.
const DYING: Duration = Duration::from_millis(100);

/// How long to sleep when only signals and losses can bring news.
const IDLE: Duration = Duration::from_hours(1);

/// How the command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) code: Code,
    /// Whether the lock was lost before that.
    pub(crate) lost: bool,
    /// Whether we were told to end as well.
    pub(crate) told: bool,
}

/// A command that runs under a lock.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    guard: &'a Guard,
    policy: Policy,
    child: Child,
    guardian: Guardian,
    terminal: Option<Terminal>,
    report: &'a Report,
    /// When what is left of the group is killed, once it was told to end.
    kill_at: Option<Instant>,
    ended: Option<Code>,
    stopped: bool,
    lost: bool,
    told: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        guard: &'a Guard,
        policy: Policy,
        child: Child,
        guardian: Guardian,
        terminal: Option<Terminal>,
        report: &'a Report,
    ) -> Self {
        Self {
            guard,
            policy,
            child,
            guardian,
            terminal,
            report,
            kill_at: None,
            ended: None,
            stopped: false,
            lost: false,
            told: false,
        }
    }

    /// Lets the command go on and watches it to its end.
    pub(crate) async fn supervise(mut self, signals: &mut Signals) -> Ended {
        let group = self.child.group();
        self.guardian.group(group, self.report);
        self.act();
        if Terminal::is_undivided()
            && let Some(terminal) = &self.terminal
        {
            terminal.give_to(group);
        }
        self.report.event(&Event::Started { pid: group.0.as_raw_nonzero().get() });
        self.go_on();
        let code = loop {
            self.look();
            if let Some(code) = self.ended
                && group.living().is_empty()
            {
                break code;
            }
            let next = self.act();
            tokio::select! {
                signal = signals.next() => self.on_signal(signal),
                _ = self.guard.lost(), if !self.lost => self.on_loss(),
                () = group.a_death(), if self.ended.is_some() => {}
                () = tokio::time::sleep(next) => {}
            }
        };
        self.close(code)
    }

    fn close(mut self, code: Code) -> Ended {
        let group = self.child.group();
        self.guardian.done(self.report);
        if let Some(terminal) = &self.terminal {
            terminal.take_back(group);
            if code.0 > 128 {
                terminal.restore_modes();
            }
        }
        self.child.reap();
        self.report.event(&Event::Exited { code: code.0 });
        Ended { code, lost: self.lost, told: self.told }
    }

    /// Takes note of what became of the command and of the guardian.
    fn look(&mut self) {
        self.guardian.check(self.report);
        while let Some(change) = self.child.change() {
            match change {
                Change::Stopped(signal) => self.on_stop(signal),
                Change::Continued => {
                    if std::mem::replace(&mut self.stopped, false) {
                        self.report.event(&Event::Continued);
                    }
                }
            }
        }
        if self.ended.is_none() {
            self.ended = self.child.ended();
            if self.ended.is_some() {
                self.end_leftovers();
            }
        }
    }

    /// Whoever the command has left behind works under the lock, and must not.
    fn end_leftovers(&mut self) {
        let count = self.child.group().living().len();
        if count > 0 {
            self.report.event(&Event::Leftovers { count });
            self.end_within(self.policy.grace);
        }
    }

    /// Does what the clock asks for; how long until it may ask again.
    fn act(&mut self) -> Duration {
        let expires = self.guard.expires_at();
        let last = self.policy.kill_at(expires);
        self.guardian.until(last, self.report);
        let stop_at = self.policy.stop_at(expires);
        if !self.lost && Instant::now() >= stop_at {
            self.on_loss();
        }
        let now = Instant::now();
        let mut next = if expires.is_some() { self.policy.tick() } else { IDLE };
        if !self.lost {
            next = next.min(stop_at.since(now));
        }
        if let Some(at) = self.kill_at.map(|at| at.min(last)) {
            if now >= at {
                self.signal(Signal::KILL);
                return DYING;
            }
            next = next.min(at.since(now));
        }
        next
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::CHILD => {}
            Signal::CONT => self.on_continue(),
            // The one that stopped the whole job, seen late.
            Signal::TSTP if self.stopped => {}
            _ => {
                self.told |= ENDING.contains(&signal);
                self.signal(signal);
                if matches!(signal, Signal::TERM | Signal::HUP) {
                    // Who is stopped cannot end.
                    self.signal(Signal::CONT);
                }
            }
        }
    }

    /// The command has stopped: as a job of a shell we stop with it.
    fn on_stop(&mut self, signal: i32) {
        let group = self.child.group();
        let wants_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if wants_terminal && self.terminal.as_ref().is_some_and(|tty| tty.give_to(group)) {
            return self.go_on();
        }
        self.stopped = true;
        let killed_at = self.policy.kill_at(self.guard.expires_at());
        let left = killed_at.since(Instant::now());
        let left = (killed_at != Instant::NEVER).then(|| millis(left));
        let job = self.terminal.as_ref().filter(|terminal| terminal.has_job_control());
        let Some(terminal) = job else {
            return self.report.event(&Event::Stopped { lease_left_ms: None });
        };
        terminal.take_back(group);
        self.report.event(&Event::Stopped { lease_left_ms: left });
        // When we are continued, a signal tells us so.
        if let Err(error) = terminal.stop_job() {
            self.report.warn(format!("cannot stop with the command: {error}"));
        }
    }

    /// We were stopped and go on.
    fn on_continue(&mut self) {
        if self.guard.is_lost() && self.policy.on_lost != OnLost::Ignore {
            // Not one more step.
            self.signal(Signal::KILL);
            return;
        }
        if self.stopped
            && let Some(terminal) = &self.terminal
        {
            terminal.give_to(self.child.group());
        }
        self.go_on();
    }

    fn go_on(&self) {
        if self.guard.is_lost() && self.policy.on_lost != OnLost::Ignore {
            self.signal(Signal::KILL);
        } else {
            self.signal(Signal::CONT);
        }
    }

    /// The lock is lost, or would be before the command could end in peace.
    fn on_loss(&mut self) {
        self.lost = true;
        let cause = match self.guard.check() {
            Err(Error::Lost { cause, .. }) => cause.to_string(),
            _ => "its lease is about to end and was not renewed".into(),
        };
        let action = match self.policy.on_lost {
            OnLost::Ignore => "the command goes on without it",
            OnLost::Kill => "killing the command",
            OnLost::Term => "ending the command",
        };
        let (name, token) = (self.guard.name(), self.guard.token());
        self.report.event(&Event::Lost { name, token, cause, action });
        if self.policy.on_lost != OnLost::Ignore {
            self.end_within(self.policy.grace_on_loss());
        }
    }

    /// Tells the group to end, and sets the time when it is killed.
    fn end_within(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        if grace.is_zero() {
            return self.signal(Signal::KILL);
        }
        self.signal(Signal::TERM);
        // Who is stopped cannot end.
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.child.group().signal(signal) {
            let number = signal.as_raw();
            self.report.warn(format!("cannot send signal {number} to the command: {error}"));
        }
    }
}
