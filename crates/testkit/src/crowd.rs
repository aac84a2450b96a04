//! Parties of several libraries around one lock, moved one step at a time, and a referee who knows
//! what each step must give.
//!
//! # How it works
//!
//! Each party sits in a task of its own and is asked one thing at a time; one that waits for the lock
//! simply has not answered yet. After every step the crowd *settles*: whoever is owed the lock must
//! get it soon. Then nothing is under way, so the next answer is known in advance: a try succeeds if
//! and only if nobody is in the way. Whoever is granted the lock against the rule, refused it although
//! it is free, or not woken, is a violation, and the panic tells the steps that led there.
//!
//! A party that crashes leaves a *ghost*: its hold lasts at least until the end of the lease that the
//! server showed before, and at most for a time that the test gives. In between both is right.
//!
//! The referee shares no code with the library, and what it accepted is checked once more, by the
//! checkers, as a history.

mod rule;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::rule::{Stand, who};
pub use self::rule::{verdict, who as in_history};
use crate::checker::Verdict;
use crate::history::{History, Op, Stage};
use crate::party::{Answer, Ask, Party, Probe, Way};
use crate::random::Random;
use crate::wait::LONG;

/// So many steps are told when something is wrong.
const TOLD: usize = 80;

/// Somebody in the crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat(usize);

/// What a party can do besides trying, locking and unlocking.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skills {
    /// Takes again what it holds.
    pub reentrant: bool,
    /// Waits for a bounded time.
    pub bounded: bool,
    /// Says how often it holds the lock.
    pub counts: bool,
    /// Tries in ways other than [`Way::Mutex`].
    pub tries: bool,
    /// Waits in the line that [`Locks`] show.
    pub ours: bool,
    /// Its wait can be dropped, and it can downgrade.
    pub here: bool,
    /// Takes the lock as a mutex, whatever the others do.
    pub mutex: bool,
}

struct Sitting {
    name: String,
    skills: Skills,
    inbox: mpsc::UnboundedSender<Ask>,
    /// So many things it was asked, and up to which of them it shall stop to wait.
    asked: u64,
    cancel: watch::Sender<u64>,
    probe: Option<Probe>,
    task: JoinHandle<()>,
}

impl Drop for Sitting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The parties around one lock.
pub struct Crowd {
    seats: Vec<Sitting>,
    stands: Vec<Stand>,
    answers: mpsc::UnboundedReceiver<(usize, Answer)>,
    answer: mpsc::UnboundedSender<(usize, Answer)>,
    history: History,
    log: VecDeque<String>,
    began: Instant,
    /// How long whoever is owed the lock may take to have it.
    woken: Duration,
    /// What the others may take, if that is more.
    theirs: Duration,
    /// Shows the line of our waiters.
    line: (Locks, Name),
    /// A waiter of ours gave up: its place is taken back in the background.
    gave_up: bool,
    steps: usize,
}

impl std::fmt::Debug for Crowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crowd").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl Crowd {
    /// Nobody yet, around the lock of this name. Whoever is owed it must have it within `woken`.
    pub fn new(locks: &Locks, name: &Name, woken: Duration) -> Self {
        let (answer, answers) = mpsc::unbounded_channel();
        Self {
            seats: Vec::new(),
            stands: Vec::new(),
            answers,
            answer,
            history: History::default(),
            log: VecDeque::new(),
            began: Instant::now(),
            woken,
            theirs: woken,
            line: (locks.clone(), name.clone()),
            gave_up: false,
            steps: 0,
        }
    }

    /// Others may take this long to wake up: their own messages can miss them.
    pub fn others_within(&mut self, theirs: Duration) {
        self.theirs = theirs;
    }

    /// Lets a party in.
    pub fn seat(&mut self, name: &str, skills: Skills, mut party: impl Party) -> Seat {
        let number = self.seats.len();
        let (inbox, mut asked) = mpsc::unbounded_channel();
        let (cancel, mut cancelled) = watch::channel(0);
        let (answer, probe) = (self.answer.clone(), party.probe());
        let task = tokio::spawn(async move {
            for asking in 1.. {
                let Some(ask) = asked.recv().await else { return };
                let given = tokio::select! {
                    biased;
                    given = party.ask(ask) => given,
                    Ok(_) = cancelled.wait_for(|up_to| *up_to >= asking) => Answer::Busy,
                };
                if answer.send((number, given)).is_err() {
                    return;
                }
            }
        });
        let name = format!("{name}#{number}");
        self.seats.push(Sitting { name, skills, inbox, asked: 0, cancel, probe, task });
        self.stands.push(Stand { ours: skills.ours, ..Stand::default() });
        Seat(number)
    }

    /// So many steps were taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether it waits.
    pub fn waits(&self, seat: Seat) -> bool {
        self.stands[seat.0].waits.is_some()
    }

    /// Whether it holds the lock.
    pub fn holds(&self, seat: Seat) -> bool {
        !self.stands[seat.0].held.is_empty()
    }

    /// Whether nobody holds the lock, not even a ghost.
    pub fn is_free(&self) -> bool {
        let held = |stand: &Stand| stand.dead.is_none() && !stand.held.is_empty();
        !self.stands.iter().any(held) && !rule::has_ghosts(&self.stands)
    }

    /// Whether nobody but these holds the lock, ghosts counted.
    pub fn are_alone(&self, seats: &[Seat]) -> bool {
        let others = |(at, _): &(usize, &Stand)| !seats.contains(&Seat(*at));
        let mut others = self.stands.iter().enumerate().filter(others);
        others.all(|(_, stand)| stand.held.is_empty())
    }

    fn note(&mut self, what: &str) {
        let at = Instant::now().since(self.began).as_millis();
        if self.log.len() == TOLD {
            self.log.pop_front();
        }
        self.log.push_back(format!("{at:>6} ms  {what}"));
    }

    fn violation(&self, what: &str) -> ! {
        let mut text = format!("{what}\n");
        for line in &self.log {
            let _ = writeln!(text, "  {line}");
        }
        for (seat, stand) in self.seats.iter().zip(&self.stands) {
            if stand.dead.is_none() || !stand.held.is_empty() {
                let _ = writeln!(text, "  {}: {stand:?}", seat.name);
            }
        }
        panic!("{text}");
    }

    /// Takes in one answer; says whether it came from this seat.
    fn take_in(&mut self, (from, answer): (usize, Answer), asked: Option<(usize, Ask)>) -> bool {
        if self.stands[from].dead.is_some() {
            return false;
        }
        let name = self.seats[from].name.clone();
        self.note(&format!("{name} answers {answer:?}"));
        let here = asked.is_some_and(|(seat, _)| seat == from);
        let waited = self.stands[from].waits.take();
        let (way, bounded, tried) = match (waited, asked.filter(|_| here)) {
            (Some((way, bounded)), _) => (way, bounded, false),
            (None, Some((_, Ask::Try(way)))) => (way, true, true),
            (None, Some((_, ask))) => {
                if let Answer::Failed(error) = answer {
                    self.violation(&format!("{name} cannot {ask:?}: {error}"));
                }
                if let (Ask::Count(way), Answer::Count(count)) = (ask, answer) {
                    let kind = |held: &&Way| held.is_read() == way.is_read();
                    let held = self.stands[from].held.iter().filter(kind).count();
                    if count != held {
                        self.violation(&format!("{name} holds it {held} times, says {count}"));
                    }
                }
                return here;
            }
            (None, None) => self.violation(&format!("{name} was not asked")),
        };
        match answer {
            Answer::Has(token) => {
                if rule::is_in_the_way(&self.stands, from, way, true) {
                    self.violation(&format!("{name} has the lock against the rule"));
                }
                self.history.record(who(from, way), Op::Acquire, Stage::Ok(token));
                self.stands[from].held.push(way);
            }
            Answer::Busy => {
                // One of those who wait may have just been served, if it was a ghost that was in
                // its way; and who is fair stands behind them.
                let line = self.stands.iter().any(|stand| stand.waits.is_some());
                let doubt = line && (way.is_fair() || rule::has_ghosts(&self.stands));
                if tried && !doubt && !rule::is_in_the_way(&self.stands, from, way, false) {
                    self.violation(&format!("{name} is refused what is free"));
                }
                if !bounded {
                    self.violation(&format!("{name} came back without the lock"));
                }
                self.gave_up |= self.seats[from].skills.ours && !tried;
            }
            other => self.violation(&format!("{name}: {other:?}")),
        }
        here
    }

    async fn next(&mut self, time: Duration) -> Option<(usize, Answer)> {
        tokio::time::timeout(time, self.answers.recv()).await.ok().flatten()
    }

    /// Asks for something and waits for the answer; who waits for the lock answers later.
    ///
    /// # Panics
    ///
    /// At a violation.
    pub async fn step(&mut self, seat: Seat, ask: Ask) {
        self.steps += 1;
        let at = seat.0;
        if matches!(
            ask,
            Ask::Unlock(Way::Read | Way::Write | Way::FairRead | Way::FairWrite)
                | Ask::Downgrade(_)
        ) {
            self.hold_still().await;
        }
        self.note(&format!("{} {ask:?}", self.seats[at].name));
        match ask {
            Ask::Lock(way) => self.stands[at].waits = Some((way, false)),
            Ask::Within(way, _) => self.stands[at].waits = Some((way, true)),
            Ask::Unlock(way) | Ask::Downgrade(way) => {
                let held = &mut self.stands[at].held;
                let place = held.iter().rposition(|held| *held == way).expect("held");
                held.remove(place);
                self.history.record(who(at, way), Op::Release, Stage::Invoke);
                if matches!(ask, Ask::Downgrade(_)) {
                    let reads = if way.is_fair() { Way::FairRead } else { Way::Read };
                    self.stands[at].held.push(reads);
                    self.history.record(who(at, reads), Op::Acquire, Stage::Ok(0));
                }
            }
            _ => {}
        }
        let mut answered = self.waits(seat);
        self.seats[at].asked += 1;
        self.seats[at].inbox.send(ask).expect("it sits there");
        let since = Instant::now();
        while !answered {
            let left = LONG.saturating_sub(Instant::now().since(since));
            let Some(told) = self.next(left).await else {
                self.violation(&format!("{} does not answer", self.seats[at].name));
            };
            answered = self.take_in(told, Some((at, ask)));
        }
        self.settle().await;
    }

    /// Waits until those who wait can be woken: see [`Probe`].
    async fn hold_still(&mut self) {
        let since = Instant::now();
        for at in 0..self.seats.len() {
            while let Some(probe) = self.seats[at].probe.clone()
                && self.stands[at].waits.is_some()
                && !probe.is_blocked().await
            {
                if let Some(told) = self.next(Duration::from_millis(1)).await {
                    self.take_in(told, None);
                }
                if Instant::now().since(since) > LONG {
                    self.violation(&format!(
                        "{} neither waits nor comes back",
                        self.seats[at].name
                    ));
                }
            }
        }
    }

    /// Drops the wait of one of ours.
    ///
    /// # Panics
    ///
    /// At a violation.
    pub async fn cancel(&mut self, seat: Seat) {
        self.note(&format!("{} is cancelled", self.seats[seat.0].name));
        let sitting = &self.seats[seat.0];
        if let Some((_, bounded)) = &mut self.stands[seat.0].waits {
            *bounded = true;
            sitting.cancel.send_replace(sitting.asked);
        }
        let since = Instant::now();
        while self.waits(seat) {
            let left = LONG.saturating_sub(Instant::now().since(since));
            match self.next(left).await {
                Some(told) => drop(self.take_in(told, None)),
                None => self.violation("a wait cannot be cancelled"),
            }
        }
        self.settle().await;
    }

    /// Ends some parties at once, without a word, all of one process. What they hold lasts until
    /// `at_least`, and `over` is after how long it must be over.
    ///
    /// # Panics
    ///
    /// At a violation.
    pub async fn crash(&mut self, seats: &[Seat], at_least: Instant, over: Duration) {
        for Seat(at) in seats {
            self.note(&format!("{} crashes", self.seats[*at].name));
            let seat = &mut self.seats[*at];
            seat.task.abort();
            // The party is gone only when its task is.
            let _ = (&mut seat.task).await;
            let now = Instant::now();
            let stand = &mut self.stands[*at];
            stand.dead = Some((at_least, now + over));
            for way in &stand.held {
                self.history.record(who(*at, *way), Op::Release, Stage::Invoke);
            }
            if let Some((way, _)) = stand.waits.take() {
                // It may get the lock after its death.
                stand.held.push(way);
                stand.dead = Some((now, now + over));
            }
        }
        while let Ok(told) = self.answers.try_recv() {
            self.take_in(told, None);
        }
        self.settle().await;
    }

    /// Waits until nobody is owed the lock.
    ///
    /// # Panics
    ///
    /// At a violation.
    pub async fn settle(&mut self) {
        while let Ok(told) = self.answers.try_recv() {
            self.take_in(told, None);
        }
        let since = Instant::now();
        while let Some(who) = rule::owed(&self.stands) {
            let waited = Instant::now().since(since);
            let bound =
                if self.stands[who].ours { self.woken } else { self.woken.max(self.theirs) };
            if waited > bound {
                self.violation(&format!("{} is not woken within {waited:?}", self.seats[who].name));
            }
            if let Some(told) = self.next(bound.saturating_sub(waited)).await {
                self.take_in(told, None);
            }
        }
        if std::mem::take(&mut self.gave_up) {
            self.tidy().await;
        }
    }

    /// Waits until those of ours who gave up have left the line: until then the lock may be on its way
    /// to nobody.
    async fn tidy(&mut self) {
        let since = Instant::now();
        loop {
            let shown = self.line.0.admin().show(&self.line.1).await.unwrap();
            while let Ok(told) = self.answers.try_recv() {
                self.take_in(told, None);
            }
            let now = Instant::now();
            let may_wait = |stand: &&Stand| match stand.dead {
                None => stand.ours && stand.waits.is_some(),
                Some((_, end)) => stand.ours && now < end,
            };
            let in_line = self.stands.iter().filter(may_wait).count();
            // Who waits may have it by now; who reads and writes is there twice.
            let holders = in_line + self.stands.iter().map(rule::places).sum::<usize>();
            if shown.waiters.len() <= in_line && shown.holders.len() <= holders {
                return;
            }
            if now.since(since) > LONG {
                self.violation(&format!("one that gave up is still there: {shown:?}"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Who can be asked something.
    pub fn ready(&self) -> Vec<Seat> {
        let ready =
            |at: &usize| self.stands[*at].waits.is_none() && self.stands[*at].dead.is_none();
        (0..self.seats.len()).filter(ready).map(Seat).collect()
    }

    /// One random step, in these ways. A party that holds the lock gives it back soon, so that all
    /// get it.
    ///
    /// # Panics
    ///
    /// At a violation.
    pub async fn wander(&mut self, random: &mut Random, ways: &[Way]) {
        let waiting: Vec<Seat> =
            (0..self.seats.len()).map(Seat).filter(|seat| self.waits(*seat)).collect();
        let here = |seat: &&Seat| self.seats[seat.0].skills.here;
        let cancellable: Vec<Seat> = waiting.iter().filter(here).copied().collect();
        if !cancellable.is_empty() && random.below(12) == 0 {
            return self.cancel(pick(random, &cancellable)).await;
        }
        let ready = self.ready();
        if ready.is_empty() {
            // Everybody waits for a ghost.
            if let Some(told) = self.next(self.woken).await {
                self.take_in(told, None);
            }
            return self.settle().await;
        }
        let seat = pick(random, &ready);
        let ways = if self.seats[seat.0].skills.mutex { &[Way::Mutex] } else { ways };
        let (stand, skills) = (&self.stands[seat.0], self.seats[seat.0].skills);
        if stand.held.is_empty() {
            let way = pick(random, ways);
            let bound = Duration::from_millis(1 + random.below(80));
            let ask = match random.below(10) {
                0..4 if skills.tries || way == Way::Mutex => Ask::Try(way),
                4..7 if skills.bounded => Ask::Within(way, bound),
                _ => Ask::Lock(way),
            };
            return self.step(seat, ask).await;
        }
        let held = pick(random, &stand.held);
        let alone = stand.held.iter().all(|way| way.is_read());
        let again = pick(random, ways);
        let ask = match random.below(10) {
            0..2 if skills.reentrant && stand.held.len() < 3 && (!alone || again.is_read()) => {
                if random.below(2) == 0 {
                    Ask::Try(again)
                } else {
                    Ask::Lock(again)
                }
            }
            // An owner that took the lock as a mutex before has one hold for both, which stays one.
            2 if skills.here
                && stand.held.len() == 1
                && matches!(held, Way::Write | Way::FairWrite)
                && !(skills.reentrant && ways.contains(&Way::Mutex)) =>
            {
                Ask::Downgrade(held)
            }
            3..5 if skills.counts => Ask::Count(held),
            3..5 if skills.here => Ask::Check,
            _ => {
                // Redisson wakes nobody when a writer that reads too stops to write.
                let reads = stand.held.iter().find(|way| way.is_read()).copied();
                Ask::Unlock(reads.filter(|_| !waiting.is_empty()).unwrap_or(held))
            }
        };
        self.step(seat, ask).await;
    }

    /// Lets everybody finish: who holds the lock gives it back, who waits gets it first.
    ///
    /// # Panics
    ///
    /// At a violation, or when it does not end.
    pub async fn finish(&mut self) {
        let since = Instant::now();
        loop {
            self.settle().await;
            let holder = self.ready().into_iter().find(|seat| self.holds(*seat));
            let waiting = self.stands.iter().any(|stand| stand.waits.is_some());
            match holder {
                Some(seat) => {
                    let held = &self.stands[seat.0].held;
                    let way = held.iter().find(|way| way.is_read()).or(held.last());
                    let way = *way.expect("it holds it");
                    self.step(seat, Ask::Unlock(way)).await;
                }
                // Not before the ghosts are gone, so that the next step is certain again.
                None if !waiting && self.is_free() => return,
                None => {
                    if let Some(told) = self.next(Duration::from_millis(20)).await {
                        self.take_in(told, None);
                    }
                }
            }
            if Instant::now().since(since) > 3 * LONG {
                self.violation("they do not finish");
            }
        }
    }

    /// What the checkers say to all of it; see [`verdict`].
    ///
    /// # Errors
    ///
    /// The first violation.
    pub fn verdict(&self, permits: Option<u32>) -> Verdict {
        verdict(&self.history.events(), permits)
    }
}

/// One of several.
fn pick<T: Copy>(random: &mut Random, among: &[T]) -> T {
    let at = random.below(among.len() as u64);
    among[usize::try_from(at).unwrap()]
}
