//! Who asks: owners and request ids.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Who holds or waits for a lock. Make one with [`Locks::new_owner`](crate::Locks::new_owner) and
/// give it to [`Locks::owned_by`](crate::Locks::owned_by) to make locks reentrant: the same owner
/// gets the same lock again.
///
/// Without one every acquisition has an owner of its own, so nothing is reentrant by accident.
///
/// Written `host-pid-random:number`, which is what `lockkeeper show` prints.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner {
    // First, because it is what tells two of them apart.
    number: u64,
    client: Arc<str>,
}

impl Owner {
    /// Whether it has the form that ours have. Other programs have others: a UUID and the number of a
    /// thread, or any text.
    pub(crate) fn is_ours(&self) -> bool {
        let mut parts = self.client.rsplitn(3, '-');
        let hex = |part: &str| part.len() == 8 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        parts.next().is_some_and(hex) && parts.next().is_some_and(number) && self.number > 0
    }

    /// Whether it was made later. Of any two owners one is younger, and everybody agrees which: by the
    /// clock of their machine, and where that cannot be compared, by how they are written.
    pub(crate) fn is_younger_than(&self, other: &Self) -> bool {
        (self.number, &self.client) > (other.number, &other.client)
    }

    /// Somebody who uses the same store with another program, and another form of owners.
    #[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
    pub(crate) fn foreign(text: &str) -> Self {
        Self { client: text.into(), number: 0 }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.to_string()
    }
}

impl TryFrom<String> for Owner {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.rsplit_once(':')
            .and_then(|(client, number)| {
                Some(Self { client: client.into(), number: number.parse().ok()? })
            })
            .ok_or_else(|| format!("{text:?} is not an owner: expected client:number"))
    }
}

/// Names one acquisition. Sent with every request that belongs to it, so that a request which is
/// repeated after a lost reply finds its own grant instead of asking for a second one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(u128);

impl RequestId {
    /// The 16 bytes of the id.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id with these 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes the owners and request ids of one [`Locks`](crate::Locks); no two are ever alike.
#[derive(Debug)]
pub(crate) struct Identity {
    client: Arc<str>,
    random: u64,
    next: AtomicU64,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let random = random();
        let host = rustix::system::uname();
        let host: String = host
            .nodename()
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' })
            .take(40)
            .collect();
        let client = format!("{host}-{}-{:08x}", std::process::id(), random >> 32);
        Self { client: client.into(), random, next: AtomicU64::new(1) }
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { client: Arc::clone(&self.client), number: self.number() }
    }

    /// An owner whose number tells, on one machine, when it was made: microseconds since that was started.
    pub(crate) fn lasting_owner(&self) -> Owner {
        self.next.fetch_max(crate::clock::Instant::now().as_nanos() / 1000, Ordering::Relaxed);
        self.owner()
    }

    pub(crate) fn request_id(&self) -> RequestId {
        RequestId(u128::from(self.random) << 64 | u128::from(self.number()))
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// 64 random bits from the keys that the standard library draws from the kernel for its hash maps.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(crate::clock::Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_unique_and_survive_a_round_trip() {
        let identity = Identity::new();
        let owner = identity.owner();
        assert_ne!(owner, identity.owner());
        assert_ne!(owner, Identity::new().owner());
        assert_eq!(Owner::try_from(owner.to_string()), Ok(owner));
        assert!(Owner::try_from("no number:".to_owned()).is_err());
    }

    #[test]
    fn owners_of_other_programs_are_told_apart() {
        assert!(Identity::new().owner().is_ours());
        let uuid = "5e1d2a31-7b0a-4c39-8a59-0123456789ab:1";
        for other in [uuid, "9f86d081884c7d65:0", "host-1-0123abcd:0", "-0123abcd:1"] {
            assert!(!Owner::try_from(other.to_owned()).unwrap().is_ours(), "{other}");
        }
    }

    #[test]
    fn of_two_owners_the_one_made_later_is_younger() {
        let [one, other] = [Identity::new(), Identity::new()];
        let mut older = one.lasting_owner();
        for identity in [&other, &one, &one, &other] {
            std::thread::yield_now();
            let younger = identity.lasting_owner();
            // Within a microsecond they count as made at the same time.
            let same = younger.number == older.number;
            assert!(same || younger.is_younger_than(&older), "{younger} {older}");
            assert_ne!(younger.is_younger_than(&older), older.is_younger_than(&younger));
            older = younger;
        }
        assert!(!older.is_younger_than(&older.clone()));
        assert_ne!(one.owner(), older, "numbers go on from there");
    }

    #[test]
    fn request_ids_survive_a_round_trip() {
        let id = Identity::new().request_id();
        assert_eq!(RequestId::from_bytes(id.to_bytes()), id);
        assert_eq!(id.to_string().len(), 32);
    }
}
