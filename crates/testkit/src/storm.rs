//! Parties of several libraries around one lock, all at once and as fast as they can: what a
//! [referee](crate::crowd) cannot follow, and a history can.
//!
//! Each party records that it has the lock after it got it, and that it gives it back before it does,
//! so what the history shows as two holders were two.

use std::time::Duration;

use lockkeeper::clock::Instant;

use crate::checker::Verdict;
use crate::crowd::{in_history, verdict};
use crate::history::History;
use crate::party::{Answer, Ask, Elsewhere, Party, Way};
use crate::random::Random;
use crate::wait::soon;

/// What a killed process of ours held is free after this time.
const MORTAL: Duration = Duration::from_millis(500);

/// A storm around one lock.
#[derive(Debug)]
pub struct Storm {
    name: String,
    until: Instant,
    history: History,
}

impl Storm {
    /// Around the lock of this name, for so long.
    pub fn new(name: &str, time: Duration) -> Self {
        let until = Instant::now() + time;
        Self { name: name.to_owned(), until, history: History::default() }
    }

    /// What the checkers say to all of it; see [`verdict`].
    ///
    /// # Errors
    ///
    /// The first violation.
    pub fn verdict(&self, permits: Option<u32>) -> Verdict {
        verdict(&self.history.events(), permits)
    }

    /// Takes the lock in these ways until time is over; how often it had it. Each party has a number
    /// of its own.
    ///
    /// Nobody waits for a bounded time: a thread of Redisson that does so can be woken, find that its
    /// time is over, and leave without a word to the next one, who then waits for the whole lease.
    ///
    /// # Panics
    ///
    /// When it is kept waiting for too long, or something fails.
    pub async fn rounds(
        &self,
        number: usize,
        mut party: impl Party,
        ways: &[Way],
        mut random: Random,
    ) -> usize {
        let mut turns = 0;
        while Instant::now() < self.until {
            let way = pick(ways, &mut random);
            let ask = if random.below(4) == 0 { Ask::Try(way) } else { Ask::Lock(way) };
            match soon(&format!("{number} {ask:?}"), party.ask(ask)).await {
                Answer::Has(token) => self.history.has(in_history(number, way), token),
                Answer::Busy => continue,
                other => panic!("{number} {ask:?}: {other:?}"),
            }
            tokio::time::sleep(random.duration(Duration::from_millis(1))).await;
            self.give(number, &mut party, way).await;
            turns += 1;
        }
        turns
    }

    async fn give(&self, number: usize, party: &mut impl Party, way: Way) {
        self.history.gives(in_history(number, way));
        assert_eq!(soon("the end", party.ask(Ask::Unlock(way))).await, Answer::Done);
    }

    /// Is a process of ours that is killed in the middle of things, again and again, until time is
    /// over.
    ///
    /// # Panics
    ///
    /// When it cannot be started, or something fails.
    pub async fn mortal(&self, number: usize, url: &str, ways: &[Way], mut random: Random) {
        while Instant::now() < self.until {
            let mut party = Elsewhere::start(url, &self.name, MORTAL).await;
            let way = pick(ways, &mut random);
            let life = Duration::from_millis(500) + random.duration(Duration::from_secs(1));
            let end = Instant::now() + life;
            while Instant::now() < end {
                let asked = tokio::time::timeout(life, party.ask(Ask::Lock(way))).await;
                // Killed while it waits.
                let Ok(answer) = asked else { break };
                let Answer::Has(token) = answer else { panic!("{answer:?}") };
                self.history.has(in_history(number, way), token);
                if random.below(50) == 0 {
                    // Killed while it holds the lock.
                    self.history.gives(in_history(number, way));
                    break;
                }
                self.give(number, &mut party, way).await;
            }
        }
    }
}

fn pick(ways: &[Way], random: &mut Random) -> Way {
    ways[usize::try_from(random.below(ways.len() as u64)).unwrap()]
}
