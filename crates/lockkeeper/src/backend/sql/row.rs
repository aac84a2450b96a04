//! What is stored of one name.
//!
//! # Times and tokens
//!
//! A row that was inserted in one step, without looking first, was made by a client that knew neither
//! the server's clock nor the tokens: in such a row all times count from `clock`, which the server set
//! in the same statement, and all tokens from the `epoch` that it drew. Every later step has read both
//! and writes them as they are; `clock` is null then.
//!
//! An epoch is drawn for each row and never again, and has room for [`EPOCH`] tokens: so tokens grow
//! although the row goes with the last hold. A row that has used its tokens up draws another one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Instant;
use crate::model::State;
use crate::owner::RequestId;

/// The tokens of one epoch. They stay below 2^53 until half a billion million rows were made.
const EPOCH: u64 = 1 << 14;
/// More are not granted at once: they must fit into one epoch.
pub(super) const MOST_TOKENS: u32 = 8000;
/// How long a count-down of a latch is remembered in case it is sent again.
const COUNTED: Duration = Duration::from_secs(60);

/// A client of ours, where the model speaks of parties.
pub(super) type ClientId = u64;
pub(super) type NameState = State<ClientId>;

/// A row as the server has it.
pub(super) struct RawRow {
    pub(super) epoch: u64,
    pub(super) version: u64,
    /// What its times count from, in µs since 1970.
    pub(super) clock: Option<u64>,
    pub(super) token: u64,
    pub(super) state: Vec<u8>,
}

/// Which row, in which version: what a write is conditional on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) epoch: u64,
    pub(super) version: u64,
}

/// What the column `state` holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) model: NameState,
    /// Who has counted a latch down, and when: a request that is sent again does not count twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    counted: Vec<(RequestId, Instant)>,
    /// Which closing of a latch this is: one that is closed again is another.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) closing: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Stored {
    /// Whether this count-down is here already. If not, it is from now on.
    pub(super) fn has_counted(&mut self, id: RequestId, now: Instant) -> bool {
        if self.counted.iter().any(|(counted, _)| *counted == id) {
            return true;
        }
        self.counted.retain(|(_, at)| *at + COUNTED > now);
        self.counted.push((id, now));
        false
    }

    /// Moves every time and every token on.
    fn shift(&mut self, time: Duration, tokens: u64) {
        self.model.shift(time, tokens);
        for (_, at) in &mut self.counted {
            *at = *at + time;
        }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        if self.model.is_latch() || (self.counted.is_empty() && self.closing == 0) {
            return serde_json::to_vec(self);
        }
        serde_json::to_vec(&Self { model: self.model.clone(), ..Self::default() })
    }
}

/// What a step begins with.
#[derive(Clone)]
pub(super) struct Loaded {
    /// The server's clock.
    pub(super) now: Instant,
    /// `None`: there is no row.
    pub(super) known: Option<Known>,
    /// The last token issued.
    pub(super) counter: u64,
    pub(super) stored: Stored,
}

impl Loaded {
    /// No row; times count from zero, and tokens from the beginning of this epoch.
    pub(super) fn absent(epoch: u64) -> Self {
        let now = Instant::from_nanos(0);
        Self { now, known: None, counter: epoch * EPOCH, stored: Stored::default() }
    }

    /// `now` in µs since 1970.
    pub(super) fn read(now: u64, row: Option<RawRow>) -> Result<Self, serde_json::Error> {
        let now = Instant::from_nanos(now.saturating_mul(1000));
        let Some(row) = row else {
            return Ok(Self { now, ..Self::absent(0) });
        };
        let mut stored: Stored = serde_json::from_slice(&row.state)?;
        let first = row.epoch * EPOCH;
        let counter = match row.clock {
            Some(clock) => {
                stored.shift(Duration::from_micros(clock), first);
                first + row.token
            }
            None => row.token.max(first),
        };
        let known = Some(Known { epoch: row.epoch, version: row.version });
        Ok(Self { now, known, counter, stored })
    }

    /// Whether a counter is still within the tokens of the row's epoch.
    pub(super) fn has_room_for(&self, counter: u64) -> bool {
        self.known.is_none_or(|known| counter <= (known.epoch + 1) * EPOCH)
    }
}

/// What is written.
pub(super) struct Written {
    pub(super) token: u64,
    /// When nothing in it is of any use any more: µs since 1970, or from `clock`.
    pub(super) ends: u64,
    pub(super) state: Vec<u8>,
}

impl Written {
    pub(super) fn new(counter: u64, stored: &Stored) -> Result<Self, serde_json::Error> {
        // Everything here has a lease. In whole µs, and not a moment too early.
        let ends = stored.model.last_expiry().unwrap_or(Instant::from_nanos(0));
        let ends = ends.as_nanos() / 1000 + 1;
        // A signed column holds it, and the server can add to it.
        Ok(Self { token: counter, ends: ends.min(u64::MAX >> 2), state: stored.to_bytes()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Kind;
    use crate::model::{Answer, Ask, News, Place, World};
    use crate::owner::Owner;

    fn take(loaded: &mut Loaded, id: u8) -> Answer {
        let ask = Ask {
            id: RequestId::from_bytes([id; 16]),
            owner: Owner::try_from(format!("me:{id}")).unwrap(),
            kind: Kind::Mutex,
            ttl: Some(Duration::from_secs(30)),
            tokens: 3,
            place: Place::None,
            party: 7,
        };
        let mut news = News::default();
        let mut world = World {
            now: loaded.now,
            counter: &mut loaded.counter,
            alive: &|_| true,
            news: &mut news,
        };
        loaded.stored.model.acquire(ask, &mut world)
    }

    fn raw(written: Written, clock: Option<u64>) -> RawRow {
        let Written { token, state, .. } = written;
        RawRow { epoch: 5, version: 1, clock, token, state }
    }

    #[test]
    fn a_row_made_without_looking_is_read_by_the_servers_clock_and_epoch() {
        let mut blind = Loaded::absent(0);
        take(&mut blind, 1);
        let written = Written::new(blind.counter, &blind.stored).unwrap();
        assert_eq!((written.token, written.ends), (3, 30_000_001));
        let clock = 1_800_000_000_000_000;
        let mut read = Loaded::read(clock + 1, Some(raw(written, Some(clock)))).unwrap();
        assert_eq!(read.counter, 5 * EPOCH + 3);
        let ends = Instant::from_nanos((clock + 30_000_000) * 1000);
        assert_eq!(read.stored.model.next_expiry(), Some(ends));
        let Answer::Granted { tokens, .. } = take(&mut read, 1) else { panic!("its own") };
        assert_eq!(tokens.first().get(), 5 * EPOCH + 1);
        // Written again it reads the same.
        let again = raw(Written::new(read.counter, &read.stored).unwrap(), None);
        let again = Loaded::read(clock + 2, Some(again)).unwrap();
        assert_eq!(again.stored.to_bytes().unwrap(), read.stored.to_bytes().unwrap());
        assert_eq!(again.counter, read.counter);
    }

    #[test]
    fn an_epoch_has_room_for_its_tokens_and_no_more() {
        let row = RawRow { epoch: 5, version: 1, clock: None, token: 0, state: b"{}".to_vec() };
        let state = serde_json::to_vec(&Stored::default()).unwrap();
        let loaded = Loaded::read(1, Some(RawRow { state, ..row })).unwrap();
        assert_eq!(loaded.counter, 5 * EPOCH);
        assert!(loaded.has_room_for(6 * EPOCH) && !loaded.has_room_for(6 * EPOCH + 1));
        assert_eq!(Loaded::absent(6).counter, 6 * EPOCH);
    }

    #[test]
    fn count_downs_are_remembered_not_for_ever() {
        let mut stored = Stored::default();
        let id = |number: u8| RequestId::from_bytes([number; 16]);
        let at = |time: Duration| Instant::from_nanos(7) + time;
        for number in 0..200 {
            assert!(!stored.has_counted(id(number), at(Duration::ZERO)));
            assert!(stored.has_counted(id(number), at(Duration::ZERO)));
        }
        assert!(stored.has_counted(id(0), at(COUNTED)), "however many there are");
        assert!(!stored.has_counted(id(200), at(COUNTED)));
        assert_eq!(stored.counted.len(), 1, "for so long");
    }
}
