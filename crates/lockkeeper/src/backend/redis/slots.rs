//! Slots of a Redis cluster: which one a key is in, and who has it.

use std::sync::Arc;

use redis::Value;

/// How many there are.
const COUNT: usize = 16384;
/// Nobody has it.
const NOBODY: u16 = u16::MAX;

/// The slot of a key: of the part in its first braces, if there is any.
pub(super) fn slot(key: &str) -> u16 {
    let tag = hash_tag(key).unwrap_or(key);
    crc16(tag.as_bytes()) % 16384
}

fn hash_tag(key: &str) -> Option<&str> {
    let (_, after) = key.split_once('{')?;
    let (tag, _) = after.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// Whether all keys of a lock are in one slot. Redisson's rule puts braces around a name without an
/// opening one, so a closing one ends the tag too early; and a name with braces must have a tag.
pub(super) fn is_in_one_slot(lock: &str) -> bool {
    if lock.contains('{') { hash_tag(lock).is_some() } else { !lock.contains('}') }
}

/// CRC-16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Who has which slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    addresses: Vec<Arc<str>>,
    /// For each slot an index of those.
    owners: Vec<u16>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { addresses: Vec::new(), owners: vec![NOBODY; COUNT] }
    }

    /// Takes the answer to `CLUSTER SLOTS` apart, which the server at `asked` gave.
    pub(super) fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut slots = Self::new();
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
                return None;
            };
            let [host, Value::Int(port), ..] = &master[..] else { return None };
            let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?;
            let address = address(&host.unwrap_or_default(), &port.to_string(), asked);
            for slot in *first..=*last {
                slots.set(u16::try_from(slot).ok()?, &address);
            }
        }
        (!slots.addresses.is_empty()).then_some(slots)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<str>> {
        self.addresses.get(usize::from(self.owners[usize::from(slot)])).cloned()
    }

    pub(super) fn set(&mut self, slot: u16, address: &str) {
        let known = self.addresses.iter().position(|known| &**known == address);
        let at = known.unwrap_or_else(|| {
            self.addresses.push(address.into());
            self.addresses.len() - 1
        });
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = u16::try_from(at).unwrap_or(NOBODY);
        }
    }

    /// Everybody who has a slot.
    pub(super) fn masters(&self) -> Vec<Arc<str>> {
        let has = |at: usize| self.owners.iter().any(|owner| usize::from(*owner) == at);
        let all = self.addresses.iter().enumerate();
        all.filter(|(at, _)| has(*at)).map(|(_, address)| Arc::clone(address)).collect()
    }
}

/// An address; a server that does not say its host has that by which it was asked.
fn address(host: &str, port: &str, asked: &str) -> String {
    match host {
        "" | "?" => {
            let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
            format!("{host}:{port}")
        }
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

/// The same for `HOST:PORT` as a redirection has it.
pub(super) fn redirected(to: &str, asked: &str) -> String {
    let (host, port) = to.rsplit_once(':').unwrap_or((to, "6379"));
    address(host, port, asked)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::redis::layout::{release_channels, write_keys};
    use crate::owner::RequestId;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_ne!(slot("foo{}{bar}"), slot("bar"), "an empty tag is none");
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    }

    proptest! {
        /// Exactly the names that Redisson's keys and ours spread over slots are refused.
        #[test]
        fn names_whose_keys_are_in_several_slots_are_known(lock in "[ab{}]{1,6}") {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let id = RequestId::from_bytes([7; 16]);
            write_keys(&mut keys, &lock, id);
            let keys = keys.into_iter().map(|key| String::from_utf8(key).unwrap());
            let all: Vec<u16> =
                keys.chain(release_channels(&lock, id)).map(|key| slot(&key)).collect();
            let together = all.iter().all(|one| *one == all[0]);
            prop_assert!(!is_in_one_slot(&lock) || together, "{lock}");
            prop_assert!(is_in_one_slot(&lock) || !together, "{lock}");
        }
    }

    #[test]
    fn the_answer_of_a_server_is_taken_apart() {
        let node = |host: &str, port| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::Nil])
        };
        let range =
            |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![range(0, 99, node("", 1)), range(200, 16383, node("b", 2))]);
        let mut slots = Slots::read(&answer, "a:7").unwrap();
        assert_eq!(slots.owner(99).as_deref(), Some("a:1"));
        assert_eq!(slots.owner(100), None);
        assert_eq!(slots.owner(16383).as_deref(), Some("b:2"));
        slots.set(100, "c:3");
        assert_eq!(slots.owner(100).as_deref(), Some("c:3"));
        assert_eq!(slots.masters().len(), 3);
        assert_eq!(Slots::read(&Value::Array(vec![]), "a:7"), None);
        assert_eq!(redirected(":5", "a:7"), "a:5");
        assert_eq!(redirected("::1:5", "a:7"), "[::1]:5");
    }
}
