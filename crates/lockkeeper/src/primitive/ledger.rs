//! What is remembered of a job, and what follows from it. Pure; [ADR 17](../../docs/adr/0017-schedule.md)
//! says why it is enough.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::schedule::Tick;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::Token;

/// What becomes of a run that never ended: its process died, or lost the lock, or could not write down
/// that it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rerun {
    /// Its tick is over: a tick is begun at most once.
    #[default]
    Never,
    /// Its tick is run once more as soon as the lock is free, unless a later one is due by then: a tick is
    /// begun at most twice, and never twice at the same time.
    Once,
}

/// The last time that a job was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    pub(crate) tick: Tick,
    pub(crate) attempt: u32,
    pub(crate) claim: RequestId,
    pub(crate) owner: Owner,
    pub(crate) token: Token,
    pub(crate) started: Tick,
    pub(crate) schedule: String,
    pub(crate) ended: Option<Ended>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) took_ms: u64,
}

impl LastRun {
    /// The one that a value tells of, if it is the value of a job.
    pub(crate) fn read(name: &Name, value: &[u8]) -> Option<Self> {
        Ledger::read(name, value).ok()??.last
    }

    /// The scheduled time that it was for.
    pub fn tick(&self) -> SystemTime {
        self.tick.time()
    }

    /// 1; 2 for the second try of a tick whose first one did not end.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Who ran it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Under which token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// When it began, by that node's clock.
    pub fn started(&self) -> SystemTime {
        self.started.time()
    }

    /// By which schedule, as its node [writes](std::fmt::Display) it.
    pub fn schedule(&self) -> &str {
        &self.schedule
    }

    /// What it ended with. `None`: it runs, or it died; if nobody holds the lock, it died.
    pub fn code(&self) -> Option<i32> {
        self.ended.map(|ended| ended.code)
    }

    /// How long it took.
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| Duration::from_millis(ended.took_ms))
    }
}

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// No tick up to this one is begun any more. Only grows.
    pub(crate) through: Tick,
    pub(crate) last: Option<LastRun>,
    /// Other in each version, so that no text comes again.
    pub(crate) version: RequestId,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Nothing, before the next tick.
    Nothing,
    /// This tick is nobody's yet.
    Run(Tick),
    /// This one has not ended. Whoever has the lock knows that it died, and runs it again.
    Again(Tick),
}

impl Ledger {
    /// What a value says. One that cannot be read is an error and not a job that never ran: it may be the
    /// stock of the same name.
    pub(crate) fn read(name: &Name, value: &[u8]) -> Result<Option<Self>> {
        if value.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(value).map(Some).map_err(|error| {
            let text = format!("the store keeps something else under {name} than a job: {error}");
            Error::Config(text)
        })
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        // There is nothing in it that JSON could not say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether what another version says is in this one, or was before it.
    pub(crate) fn has(&self, sent: &Self) -> bool {
        let claim = |ledger: &Self| ledger.last.as_ref().map(|last| (last.claim, last.ended));
        self.version == sent.version || (claim(self) == claim(sent) && self.through >= sent.through)
    }

    /// What to do if `due` is the latest tick, and ticks up to `floor` are over whatever is known.
    pub(crate) fn todo(
        known: Option<&Self>,
        due: Option<Tick>,
        floor: Option<Tick>,
        rerun: Rerun,
    ) -> Todo {
        let through = known.map(|ledger| ledger.through).max(floor);
        if let Some(due) = due
            && through.is_none_or(|through| due > through)
        {
            return Todo::Run(due);
        }
        match known.and_then(|ledger| ledger.last.as_ref()) {
            Some(last) if rerun == Rerun::Once && last.attempt == 1 && last.ended.is_none() => {
                Todo::Again(last.tick)
            }
            _ => Todo::Nothing,
        }
    }

    /// With this run begun.
    pub(crate) fn begun(known: Option<&Self>, last: LastRun) -> Self {
        let through = known.map_or(last.tick, |ledger| ledger.through.max(last.tick));
        Self { through, version: last.claim, last: Some(last) }
    }

    /// With this tick left out.
    pub(crate) fn skipped(known: Option<&Self>, tick: Tick, version: RequestId) -> Self {
        let through = known.map_or(tick, |ledger| ledger.through.max(tick));
        Self { through, version, last: known.and_then(|ledger| ledger.last.clone()) }
    }

    /// With this run ended, if it is still the last one and has not.
    pub(crate) fn ended(&self, claim: RequestId, how: Ended, version: RequestId) -> Option<Self> {
        let unended = |last: &LastRun| last.claim == claim && last.ended.is_none();
        let last = self.last.clone().filter(unended)?;
        Some(Self { version, last: Some(LastRun { ended: Some(how), ..last }), ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tick(second: u32) -> Tick {
        Tick::at(SystemTime::UNIX_EPOCH + SECOND * second)
    }

    fn id(number: u8) -> RequestId {
        RequestId::from_bytes([number; 16])
    }

    fn run(at: u32, attempt: u32, claim: u8) -> LastRun {
        LastRun {
            tick: tick(at),
            attempt,
            claim: id(claim),
            owner: Owner::try_from("me:1".to_owned()).unwrap(),
            token: Token::MIN,
            started: tick(at),
            schedule: String::new(),
            ended: None,
        }
    }

    fn todo(known: &Ledger, due: u32, rerun: Rerun) -> Todo {
        Ledger::todo(Some(known), Some(tick(due)), None, rerun)
    }

    #[test]
    fn a_tick_is_taken_once_and_an_older_one_never() {
        let known = Ledger::begun(None, run(20, 1, 1));
        assert_eq!(todo(&known, 10, Rerun::Never), Todo::Nothing, "a clock that is behind");
        assert_eq!(todo(&known, 20, Rerun::Never), Todo::Nothing);
        assert_eq!(todo(&known, 30, Rerun::Never), Todo::Run(tick(30)));
        assert_eq!(todo(&known, 90, Rerun::Never), Todo::Run(tick(90)), "the latest only");
        let skipped = Ledger::skipped(Some(&known), tick(30), id(2));
        assert_eq!(todo(&skipped, 30, Rerun::Never), Todo::Nothing);
        let forgotten = Ledger::todo(Some(&known), Some(tick(30)), Some(tick(30)), Rerun::Never);
        assert_eq!(forgotten, Todo::Nothing, "we know better");
        assert_eq!(skipped.last, known.last);
        assert_eq!(Ledger::skipped(Some(&skipped), tick(10), id(3)).through, tick(30), "grows");
    }

    #[test]
    fn a_run_that_died_is_tried_again_once_if_that_is_wanted() {
        let known = Ledger::begun(None, run(20, 1, 1));
        assert_eq!(todo(&known, 20, Rerun::Once), Todo::Again(tick(20)));
        assert_eq!(todo(&known, 10, Rerun::Once), Todo::Again(tick(20)), "a clock that is behind");
        assert_eq!(todo(&known, 30, Rerun::Once), Todo::Run(tick(30)), "the latest only");
        let skipped = Ledger::skipped(Some(&known), tick(30), id(2));
        assert_eq!(todo(&skipped, 30, Rerun::Once), Todo::Again(tick(20)), "skipped is not run");
        let again = Ledger::begun(Some(&skipped), run(20, 2, 3));
        assert_eq!(again.through, tick(30));
        assert_eq!(todo(&again, 30, Rerun::Once), Todo::Nothing, "no third time");
    }

    #[test]
    fn an_end_is_written_to_its_own_run_alone() {
        let known = Ledger::begun(None, run(20, 1, 1));
        let how = Ended { code: 3, took_ms: 1500 };
        let ended = known.ended(id(1), how, id(9)).unwrap();
        assert_eq!(ended.last.as_ref().and_then(LastRun::code), Some(3));
        assert_eq!(todo(&ended, 20, Rerun::Once), Todo::Nothing);
        assert_eq!(ended.ended(id(1), how, id(10)), None, "the first word counts");
        // Ticks that were skipped meanwhile stay so.
        let skipped = Ledger::skipped(Some(&known), tick(30), id(2));
        assert_eq!(skipped.ended(id(1), how, id(9)).unwrap().through, tick(30));
        let again = Ledger::begun(Some(&known), run(20, 2, 3));
        assert_eq!(again.ended(id(1), how, id(9)), None);
    }

    #[test]
    fn a_job_that_nobody_knows_begins_with_the_next_tick() {
        let todo = |due, floor| Ledger::todo(None, due, floor, Rerun::Once);
        assert_eq!(todo(Some(tick(20)), Some(tick(20))), Todo::Nothing);
        assert_eq!(todo(Some(tick(30)), Some(tick(20))), Todo::Run(tick(30)));
        assert_eq!(todo(Some(tick(20)), None), Todo::Run(tick(20)));
        assert_eq!(todo(None, None), Todo::Nothing);
    }

    #[test]
    fn what_was_sent_is_found_also_below_what_others_wrote_since() {
        let before = Ledger::begun(None, run(20, 1, 1));
        let sent = Ledger::begun(Some(&before), run(30, 1, 2));
        assert!(!before.has(&sent) && sent.has(&sent));
        assert!(Ledger::skipped(Some(&sent), tick(40), id(3)).has(&sent));
        assert!(!Ledger::skipped(Some(&before), tick(40), id(3)).has(&sent));
        assert!(!Ledger::begun(Some(&before), run(30, 1, 4)).has(&sent), "another's");
        let ended = sent.ended(id(2), Ended { code: 0, took_ms: 1 }, id(5)).unwrap();
        assert!(!sent.has(&ended));
        assert!(Ledger::skipped(Some(&ended), tick(50), id(6)).has(&ended));
    }

    /// Do not change: nodes of two versions share it.
    #[test]
    fn the_value_is_read_again() {
        let name: Name = "job".parse().unwrap();
        let known = Ledger::begun(None, run(20, 1, 1));
        let ended = known.ended(id(1), Ended { code: -1, took_ms: 7 }, id(9)).unwrap();
        for ledger in [known, ended] {
            assert_eq!(Ledger::read(&name, &ledger.to_value()).unwrap(), Some(ledger));
        }
        assert_eq!(Ledger::read(&name, b"").unwrap(), None, "it was never written");
    }

    #[test]
    fn what_is_no_ledger_is_an_error() {
        let name: Name = "job".parse().unwrap();
        let stock = r#"{"of":1,"amount":5,"writes":1,"last":[[1,1,1]]}"#;
        let mut future = Ledger::begun(None, run(20, 1, 1));
        future.through = serde_json::from_str("253402300799999").unwrap();
        let last = String::from_utf8(future.to_value()).unwrap();
        assert!(Ledger::read(&name, last.as_bytes()).unwrap().is_some());
        // Nobody could write down when that is.
        let beyond = last.replace("253402300799999", "253402300800000");
        for value in ["x", "7", "{}", stock, &beyond] {
            let error = Ledger::read(&name, value.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error}");
            assert_eq!(LastRun::read(&name, value.as_bytes()), None);
        }
    }
}
