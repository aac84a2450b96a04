//! What is under a key, and every decision about it.
//!
//! Nothing here waits, asks for the time or talks to anybody: a step gets what is there and what time it is,
//! and says what is there then. [`Memory`](crate::Memory) takes these very steps; the scripts of the Redis store
//! say the same in Lua, and a test compares the two.
//!
//! | first byte | what it is | what a reader does |
//! | --- | --- | --- |
//! | `V` | a [value](Value), perhaps with the lease of somebody who refreshes it | takes it |
//! | `L` | a [gap](Gap): no value; who loads one, and how new it must be | loads, or waits |
//! | `W` | [intents](Intents): writers are about to change it in the database | asks the database, fills nothing |
//!
//! # The rules
//!
//! 1. A fill counts only if the lease of its ticket is there and lasts.
//! 2. An invalidation, an intent and the loss of the key take the lease away.
//! 3. A ticket is sent to the store once to get a lease. A request that got lost on the way and arrives late then
//!    gives a lease to nobody, and not one that somebody still believes in.
//! 4. A floor only rises: a value of a smaller version is refused although the lease is there.
//! 5. A store that may come back with what it had at an earlier time counts all of that as forgotten: values, and also
//!    leases, which would let somebody fill, and intents, whose writers may have settled since.
//! 6. Without a lease a value may only replace one of a smaller version.

mod codec;
#[cfg(test)]
mod explore;
mod step;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

pub use self::step::{
    Begun, Change, Filled, Invalidation, Settled, begin, fill, give_up, intend, invalidate, set,
    settle, update,
};

/// Milliseconds by the clock of the store.
pub type Millis = u64;

static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0x10ad));

/// Names one load or one write. No two are alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket([u8; 16]);

impl Ticket {
    /// Nobody's.
    pub const NONE: Self = Self([0; 16]);

    /// A new one.
    #[expect(clippy::new_without_default, reason = "a default should be the same each time")]
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(((u128::from(*PROCESS) << 64) | u128::from(count)).to_be_bytes())
    }

    /// Whether this process made it.
    pub fn is_ours(self) -> bool {
        self.0.starts_with(&PROCESS.to_be_bytes())
    }

    /// Its 16 bytes.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The one with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The right to fill, until some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Whose it is.
    pub ticket: Ticket,
    /// When it ends.
    pub until: Millis,
}

impl Lease {
    /// Nobody's.
    pub const NONE: Self = Self { ticket: Ticket::NONE, until: 0 };

    /// Whether somebody has it at that time.
    pub fn is_live(&self, now: Millis) -> bool {
        self.ticket != Ticket::NONE && self.until > now
    }
}

/// A value that may be served, with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// Who refreshes it.
    pub lease: Lease,
    /// The ticket that it was filled with.
    pub fill: Ticket,
    /// Its version in the database; 0 where none is known.
    pub version: u64,
    /// When its load began: the database had it then or later.
    pub made: Millis,
    /// From when on it should be refreshed.
    pub soft: Millis,
    /// How long its load took.
    pub cost: u32,
    /// Which form of value the program wrote.
    pub schema: u32,
    /// `None`: the database has nothing under that key.
    pub payload: Option<Bytes>,
}

/// No value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// Who loads one.
    pub lease: Lease,
    /// The smallest version that may be filled.
    pub floor: u64,
    /// When the last value was invalidated.
    pub died: Millis,
    /// That value, for those who would rather have it than wait.
    pub last: Option<Value>,
}

/// Writers that are about to change the database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intents {
    /// The smallest version that may be filled afterwards.
    pub floor: u64,
    /// Each with the time until which it is believed.
    pub writers: Vec<Lease>,
}

/// What is under a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A value.
    Value(Value),
    /// None.
    Gap(Gap),
    /// None, and none to be filled for now.
    Intents(Intents),
}

impl Entry {
    /// As it is stored.
    ///
    /// ```
    /// use lockkeeper_cache::entry::{Entry, Gap, Lease};
    /// let gap = Entry::Gap(Gap { lease: Lease::NONE, floor: 7, died: 0, last: None });
    /// assert_eq!(Entry::decode(&gap.encode()), Some(gap));
    /// assert_eq!(Entry::decode(b"something else"), None);
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// From what is stored; `None` for what is not ours or of another time.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(Bytes::copy_from_slice(bytes))
    }

    /// The same, where nobody else needs the bytes: a value keeps them as they are.
    pub(crate) fn read(bytes: Bytes) -> Option<Self> {
        codec::decode(bytes)
    }
}

/// What is under a key, and when the store forgets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// What is there.
    pub entry: Entry,
    /// Until when.
    pub expires: Millis,
}
