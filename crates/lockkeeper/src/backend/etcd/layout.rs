//! Where things are in the keyspace.
//!
//! A name never has an empty segment or one that is a single dot. So what begins with `./` is never
//! the key of a lock, and `NAME//` is never the beginning of another name's keys.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::backend::Kind;
use crate::name::Name;
use crate::owner::RequestId;

/// The first byte of the leases that we make: an `L`. It keeps ids positive and their text 16 digits
/// long, as other clients expect.
const OURS: u64 = 0x4c << 56;

/// More leases than any request has in a row.
const GENERATIONS: u32 = 1000;

/// The keys of one name.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// What the keys of its queue begin with, and where they end.
    queue: (String, String),
    /// The queue of the other family: locks or permits.
    rivals: (String, String),
    latch: String,
    evicted: String,
    permits: bool,
}

impl Keys {
    /// Those of a lock.
    pub(super) fn lock(prefix: &str, name: &Name) -> Self {
        let permits = format!("{prefix}./permit/{name}//");
        Self {
            queue: (format!("{prefix}{name}/"), format!("{prefix}{name}/g")),
            rivals: (permits.clone(), after(&permits)),
            latch: format!("{prefix}./latch/{name}//"),
            evicted: format!("{prefix}./evicted/{name}//"),
            permits: false,
        }
    }

    /// Those of a semaphore.
    pub(super) fn permits(prefix: &str, name: &Name) -> Self {
        let keys = Self::lock(prefix, name);
        Self { queue: keys.rivals, rivals: keys.queue, permits: true, ..keys }
    }

    pub(super) fn of(prefix: &str, name: &Name, kind: Kind) -> Self {
        match kind {
            Kind::Permit { .. } => Self::permits(prefix, name),
            _ => Self::lock(prefix, name),
        }
    }

    /// Its lock when it is the semaphore, and the other way round.
    pub(super) fn rivals(&self) -> Self {
        Self {
            queue: self.rivals.clone(),
            rivals: self.queue.clone(),
            permits: !self.permits,
            ..self.clone()
        }
    }

    /// The key of a request, which is named after its first lease.
    pub(super) fn own(&self, lease: i64) -> Vec<u8> {
        format!("{}{lease:x}", self.queue.0).into_bytes()
    }

    /// The range in which its queue is. Other names' keys may be in it: see [`is_queued`](Self::is_queued).
    pub(super) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let first = if self.permits { self.queue.0.clone() } else { format!("{}0", self.queue.0) };
        (first.into_bytes(), self.queue.1.clone().into_bytes())
    }

    /// Whether the key is of this queue, and not of a name that begins with this one.
    pub(super) fn is_queued(&self, key: &[u8]) -> bool {
        key.strip_prefix(self.queue.0.as_bytes()).is_some_and(is_lease)
    }

    /// The latch, and the range of all that belongs to it.
    pub(super) fn latch(&self) -> (Vec<u8>, Vec<u8>) {
        (self.latch.clone().into_bytes(), after(&self.latch).into_bytes())
    }

    /// What remembers that a count-down was done.
    pub(super) fn counted(&self, id: RequestId) -> Vec<u8> {
        format!("{}{id}", self.latch).into_bytes()
    }

    /// Where an evicted holder finds the reason.
    pub(super) fn evicted(&self, own: &[u8]) -> Vec<u8> {
        let lease = own.strip_prefix(self.queue.0.as_bytes()).unwrap_or(own);
        [self.evicted.as_bytes(), lease].concat()
    }

    /// What an eviction of nobody writes.
    pub(super) fn raised(&self) -> Vec<u8> {
        format!("{}raised", self.evicted).into_bytes()
    }
}

/// The leases of a request. The first one names its key; the others only take its place, when it is
/// to last longer. The same request has the same leases, so a resend finds what it made.
pub(super) fn lease(keys: &Keys, id: RequestId, generation: u32) -> i64 {
    let mut hash = DefaultHasher::new();
    (&keys.queue.0, id.to_bytes(), generation).hash(&mut hash);
    i64::try_from(OURS | hash.finish() >> 8).unwrap_or(i64::MAX)
}

/// Which of a request's leases this is, or one that it has not reached yet.
pub(super) fn generation(keys: &Keys, id: RequestId, found: i64) -> u32 {
    (0..GENERATIONS).find(|at| lease(keys, id, *at) == found).unwrap_or(GENERATIONS)
}

/// Where the keys that begin with this end.
pub(super) fn after(prefix: &str) -> String {
    // All of ours end with a slash, and the next character is a zero.
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}

/// Whether it is a lease as Go's package writes it.
fn is_lease(text: &[u8]) -> bool {
    let hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    (1..=16).contains(&text.len()) && text.iter().all(hex)
}

/// The name that a key belongs to, if it is that of a lock, a permit or a latch.
pub(super) fn name_of(prefix: &str, key: &[u8]) -> Option<Name> {
    let key = str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let ours = ["./permit/", "./latch/"].iter().find_map(|kind| key.strip_prefix(kind));
    if let Some(rest) = ours {
        return rest.split_once("//")?.0.parse().ok();
    }
    let (name, lease) = key.rsplit_once('/')?;
    is_lease(lease.as_bytes()).then(|| name.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// Other clients rely on it: do *not* change this.
    #[test]
    fn a_key_is_where_go_has_it() {
        let keys = Keys::lock("", &name("a"));
        assert_eq!(keys.own(0x694d_5a3b_c001), b"a/694d5a3bc001");
        let id = RequestId::from_bytes([7; 16]);
        let lease = lease(&keys, id, 0);
        assert!(lease > 0 && format!("{lease:x}").starts_with("4c"));
        assert_eq!(format!("{lease:x}").len(), 16);
        assert!(keys.is_queued(&keys.own(lease)));
    }

    #[test]
    fn a_name_below_another_is_another() {
        let (outer, inner) = (Keys::lock("p/", &name("a")), Keys::lock("p/", &name("a/b")));
        for lease in [1, 0x4c00_0000_0000_0001] {
            assert!(!outer.is_queued(&inner.own(lease)));
            assert!(!inner.is_queued(&outer.own(lease)));
            let (first, end) = outer.range();
            assert!(outer.own(lease) >= first && outer.own(lease) < end);
            assert_eq!(name_of("p/", &inner.own(lease)), Some(name("a/b")));
        }
        let (outer, inner) = (Keys::permits("", &name("a")), Keys::permits("", &name("a/b")));
        let (first, end) = outer.range();
        assert!(!(first..end).contains(&inner.own(1)));
        assert_eq!(name_of("", &inner.own(1)), Some(name("a/b")));
        assert_eq!(name_of("", &inner.latch().0), Some(name("a/b")));
        assert_eq!(name_of("", &inner.evicted(&inner.own(1))), None);
        assert_eq!(name_of("", b"a/user-data"), None);
    }

    #[test]
    fn each_generation_and_each_name_has_its_own_lease() {
        let id = RequestId::from_bytes([1; 16]);
        let keys = |text| Keys::lock("", &name(text));
        assert_ne!(lease(&keys("a"), id, 0), lease(&keys("a"), id, 1));
        assert_ne!(lease(&keys("a"), id, 0), lease(&keys("b"), id, 0));
        assert_eq!(generation(&keys("a"), id, lease(&keys("a"), id, 3)), 3);
        assert_eq!(generation(&keys("a"), id, 1), GENERATIONS);
    }
}
