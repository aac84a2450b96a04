//! When a job runs.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use croner::Cron;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The moments at which a job is to run, its *ticks*: the same on every node, for they are counted by
/// the calendar and not from when a node was started.
///
/// In UTC, so that no hour is missing or twice where clocks are changed.
///
/// ```
/// # use lockkeeper::Schedule;
/// # use std::time::{Duration, UNIX_EPOCH};
/// let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
/// let minutely = Schedule::cron("0 */1 * * * *")?;
/// assert_eq!(minutely.latest(at(130)), Some(at(120)));
/// assert_eq!(minutely.next(at(130)), Some(at(180)));
/// // Without seconds, as in a crontab.
/// assert_eq!(Schedule::cron("30 6 * * MON-FRI")?.next(at(0)), Some(at(6 * 3600 + 30 * 60)));
/// assert_eq!(Schedule::every(Duration::from_secs(45))?.latest(at(100)), Some(at(90)));
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule(Pace);

#[derive(Clone, Debug)]
enum Pace {
    Cron(Box<Cron>),
    /// In ms, from the start of 1970.
    Every(u64),
}

/// The scheduled time of a tick, in ms since the start of 1970. Two ticks of a schedule never have
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub(crate) struct Tick(u64);

/// The last one that people have a way to write: the end of the year 9999.
const LAST: Tick = Tick(253_402_300_799_999);

/// The start of 2026, before any clock that is right: whether a schedule comes to a tick at all is
/// counted from here.
const START: Tick = Tick(1_767_225_600_000);

/// A pattern has at most so many bytes.
const LONGEST: usize = 1000;

impl From<Tick> for u64 {
    fn from(tick: Tick) -> Self {
        tick.0
    }
}

impl TryFrom<u64> for Tick {
    type Error = &'static str;

    fn try_from(millis: u64) -> Result<Self, Self::Error> {
        Some(Self(millis)).filter(|tick| *tick <= LAST).ok_or("a time after the year 9999")
    }
}

impl Tick {
    /// The tick at this moment, whether or not there is one.
    pub(crate) fn at(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).map_or(LAST, Self).min(LAST)
    }

    pub(crate) fn time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0)
    }
}

impl Schedule {
    /// The shortest time between two ticks.
    pub const SHORTEST: Duration = Duration::from_millis(100);

    /// As in a crontab: minute, hour, day of the month, month, day of the week; with six fields the
    /// first one is the second, and with seven the last one the year. Names (`MON`, `JAN`), lists,
    /// ranges and steps are understood, and `L`, `W`, `#` and `@daily` as other crons know them.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for what is no such pattern, or never comes to a tick.
    pub fn cron(pattern: &str) -> Result<Self> {
        // What is wrong may be said in the words of the pattern.
        let shown = |text: &str| -> String {
            text.chars().take(100).flat_map(char::escape_debug).collect()
        };
        let wrong = |why: &str| {
            let text = format!("the schedule '{}' cannot be used: {}", shown(pattern), shown(why));
            Error::Config(text)
        };
        if pattern.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let cron = Cron::from_str(pattern).map_err(|error| wrong(&error.to_string()))?;
        let schedule = Self(Pace::Cron(Box::new(cron)));
        match schedule.next_tick(START) {
            Some(_) => Ok(schedule),
            None => Err(wrong("there is no such day")),
        }
    }

    /// Every so often, counted from the start of 1970: every 15 minutes is at :00, :15, :30 and :45.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for less than [`SHORTEST`](Self::SHORTEST), for parts of a millisecond, and for what
    /// never comes to a tick.
    pub fn every(period: Duration) -> Result<Self> {
        let wrong = |why| {
            let period = humantime::format_duration(period);
            Error::Config(format!("every {period} cannot be meant: {why}"))
        };
        let millis = u64::try_from(period.as_millis()).ok();
        match millis.filter(|millis| Duration::from_millis(*millis) == period) {
            Some(millis) if period >= Self::SHORTEST => {
                let schedule = Self(Pace::Every(millis));
                let next = schedule.next_tick(START);
                next.map(|_| schedule).ok_or_else(|| wrong("there is no such day"))
            }
            _ => Err(wrong("at least 100ms, and in whole milliseconds")),
        }
    }

    /// The last tick up to this moment.
    pub fn latest(&self, at: SystemTime) -> Option<SystemTime> {
        self.latest_tick(Tick::at(at)).map(Tick::time)
    }

    /// The first tick after this moment.
    pub fn next(&self, at: SystemTime) -> Option<SystemTime> {
        self.next_tick(Tick::at(at)).map(Tick::time)
    }

    pub(crate) fn latest_tick(&self, at: Tick) -> Option<Tick> {
        match &self.0 {
            Pace::Every(period) => Some(Tick(at.0 - at.0 % period)),
            Pace::Cron(cron) => tick(cron.find_previous_occurrence(&second(at)?, true).ok()?),
        }
    }

    pub(crate) fn next_tick(&self, at: Tick) -> Option<Tick> {
        match &self.0 {
            Pace::Every(period) => (at.0 - at.0 % period).checked_add(*period)?.try_into().ok(),
            Pace::Cron(cron) => tick(cron.find_next_occurrence(&second(at)?, false).ok()?),
        }
    }
}

/// The whole second that a moment is in: patterns know nothing smaller.
fn second(at: Tick) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(i64::try_from(at.0 / 1000).ok()?, 0)
}

fn tick(at: DateTime<Utc>) -> Option<Tick> {
    u64::try_from(at.timestamp_millis()).ok()?.try_into().ok()
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Pace::Cron(cron) => f.write_str(cron.as_str()),
            Pace::Every(period) => {
                write!(f, "every {}", humantime::format_duration(Duration::from_millis(*period)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_due_from_its_moment_on() {
        for schedule in [
            Schedule::cron("*/10 * * * * *").unwrap(),
            Schedule::every(Duration::from_secs(10)).unwrap(),
        ] {
            for (now, latest, next) in
                [(9_999, 0, 10_000), (10_000, 10_000, 20_000), (10_001, 10_000, 20_000)]
            {
                assert_eq!(schedule.latest_tick(Tick(now)), Some(Tick(latest)), "{schedule}");
                assert_eq!(schedule.next_tick(Tick(now)), Some(Tick(next)), "{schedule}");
            }
        }
    }

    #[test]
    fn ticks_only_grow() {
        for pattern in ["0 */1 * * * *", "0 0 29 2 *", "0 0 L * *", "*/7 * * * MON#2", "@weekly"] {
            let schedule = Schedule::cron(pattern).unwrap();
            let mut at = Tick(1_793_000_000_123);
            for _ in 0..50 {
                let next = schedule.next_tick(at).unwrap();
                assert!(next > at, "{pattern}");
                assert_eq!(schedule.latest_tick(next), Some(next), "{pattern}");
                assert_eq!(schedule.next_tick(schedule.latest_tick(at).unwrap_or(at)), Some(next));
                at = next;
            }
        }
    }

    /// Of the source note, as Java writes it.
    #[test]
    fn a_question_mark_stands_for_any_day() {
        let schedule = Schedule::cron("0 */1 * * * ?").unwrap();
        assert_eq!(schedule.next_tick(Tick(0)), Some(Tick(60_000)));
    }

    #[test]
    fn nonsense_is_refused() {
        let long = format!("0 0 {} * *", ["1"; 1000].join(","));
        let never =
            ["0 0 31 2 *", "0 0 30 2 *", "0 0 0 30 FEB *", "0 0 0 1 1 * 2020", "0 0 31 4,6 *"];
        let wrong =
            ["", "x", "* * *", "61 * * * *", "* * * * * * * *", "\u{1b}[31m * * * *", &long];
        for pattern in [&never[..], &wrong].concat() {
            let error = Schedule::cron(pattern).unwrap_err().to_string();
            assert!(error.starts_with("the schedule '") && !error.contains('\u{1b}'), "{error}");
        }
        for period in [Duration::ZERO, Duration::from_millis(99), Duration::from_micros(100_500)] {
            assert!(Schedule::every(period).is_err(), "{period:?}");
        }
        for period in
            [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_millis(LAST.0 + 1)]
        {
            assert!(Schedule::every(period).is_err(), "{period:?}");
        }
    }

    #[test]
    fn what_is_far_away_is_known_at_once() {
        let once = Schedule::cron("0 0 0 29 2 * 2096").unwrap();
        let leap = Tick(3_981_312_000_000);
        assert_eq!((once.latest_tick(START), once.next_tick(START)), (None, Some(leap)));
        assert_eq!((once.latest_tick(LAST), once.next_tick(leap)), (Some(leap), None));
        let century = Schedule::every(Duration::from_hours(24 * 36_525)).unwrap();
        assert_eq!(century.latest_tick(START), Some(Tick(0)));
        assert_eq!(Tick::at(UNIX_EPOCH + Duration::from_secs(u64::MAX >> 2)), LAST);
    }

    /// An hour that a clock on the wall has twice or not at all is one like any other.
    #[test]
    fn ticks_know_no_time_zone() {
        let hourly = Schedule::cron("0 0 * * * *").unwrap();
        // The last Sundays of March and October 2026, from midnight.
        for midnight in [1_774_742_400_000, 1_792_886_400_000] {
            for hour in 0..24 {
                let at = Tick(midnight + hour * 3_600_000);
                assert_eq!(hourly.next_tick(at), Some(Tick(at.0 + 3_600_000)));
            }
        }
    }
}
