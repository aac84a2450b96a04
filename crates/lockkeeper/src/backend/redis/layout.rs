//! Names of keys and channels: those of Redisson, byte for byte, and our own beside them.

use std::fmt::Display;
use std::time::SystemTime;

use redis::RedisWrite;

use crate::backend::Request;
use crate::name::Name;
use crate::owner::RequestId;

/// So many keys is a step on one lock given.
pub(super) const KEYS: usize = 9;

/// Writes the keys of a step into a command, in the order of `head.lua`.
pub(super) fn write_keys(command: &mut impl RedisWrite, lock: &str, id: RequestId) {
    write_short_keys(command, lock, id);
    command.write_arg_fmt(theirs("redisson_lock_timeout", lock));
    let (before, after) = braces(lock);
    command.write_arg_fmt(format_args!("{before}{lock}{after}:timeout"));
    command.write_arg_fmt(ours("lockkeeper_queue", lock));
    command.write_arg_fmt(ours("lockkeeper_waiters", lock));
}

/// So many keys is the short way given, for each lock.
pub(super) const SHORT_KEYS: usize = 5;

/// Writes the keys of the short way, in the order of `take.lua`.
pub(super) fn write_short_keys(command: &mut impl RedisWrite, lock: &str, id: RequestId) {
    command.write_arg(lock.as_bytes());
    write_state_key(command, lock);
    command.write_arg_fmt(theirs("redisson_lock_token", lock));
    // What a request leaves behind that was given up and may still arrive. A key each, for a while:
    // in our state they would make every step slower.
    command.write_arg_fmt(format_args!("{}:{id}", ours("lockkeeper_late", lock)));
    command.write_arg_fmt(theirs("redisson_lock_queue", lock));
}

pub(super) fn write_state_key(command: &mut impl RedisWrite, lock: &str) {
    command.write_arg_fmt(ours("lockkeeper", lock));
}

/// The key of the values that are compared and set.
pub(super) fn cells_key(lock: &str) -> String {
    ours("lockkeeper_cells", lock).to_string()
}

/// The key of the lock itself.
pub(in crate::backend) fn lock_key(prefix: &str, name: &Name) -> String {
    format!("{prefix}{name}")
}

/// Where Redisson's clients say that they have let go of it: the locks, the read-write locks, the
/// semaphores, and a fair lock whose next waiter is this request of ours.
pub(super) fn release_channels(lock: &str, id: RequestId) -> [String; 4] {
    let locks = theirs("redisson_lock__channel", lock).to_string();
    let next = format!("{locks}:{id}");
    let [rw_locks, semaphores] =
        ["redisson_rwlock", "redisson_sc"].map(|prefix| theirs(prefix, lock).to_string());
    [locks, rw_locks, semaphores, next]
}

/// Where Redisson's clients say that a latch has opened. Here they add braces whatever the name is.
pub(super) fn latch_channel(lock: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{lock}}}")
}

/// Redisson's rule: braces only around a name that has none. The test is for any `{`, not for a
/// valid hash tag.
fn braces(lock: &str) -> (&'static str, &'static str) {
    if lock.contains('{') { ("", "") } else { ("{", "}") }
}

/// A key or channel of Redisson's.
fn theirs(prefix: &'static str, lock: &str) -> impl Display {
    let (before, after) = braces(lock);
    std::fmt::from_fn(move |f| write!(f, "{prefix}:{before}{lock}{after}"))
}

/// A key of ours alone, so it can do better than Redisson, where `foo` and `{foo}` share theirs.
fn ours(prefix: &'static str, lock: &str) -> impl Display {
    let (before, after) = if lock.contains('{') { (":", "") } else { ("{", "}") };
    std::fmt::from_fn(move |f| write!(f, "{prefix}:{before}{lock}{after}"))
}

/// Our clients' channels are called this and the client.
pub(in crate::backend) const WAKE: &str = "lockkeeper_wake:";

/// The name behind a key of our state.
pub(super) fn name_of_state(key: &str, prefix: &str) -> Option<Name> {
    let lock = key.strip_prefix("lockkeeper:")?;
    let lock = lock.strip_prefix(':').or_else(|| lock.strip_prefix('{')?.strip_suffix('}'))?;
    lock.strip_prefix(prefix)?.parse().ok()
}

/// What is published to a client: the request that it concerns, and a word about it.
pub(super) fn parse_message(text: &str) -> Option<(RequestId, Option<&str>)> {
    let (id, word) = text.split_once(' ').map_or((text, None), |(id, word)| (id, Some(word)));
    let id = u128::from_str_radix(id, 16).ok()?;
    Some((RequestId::from_bytes(id.to_be_bytes()), word))
}

/// What a mutex of ours is called where others see it: it says everything about itself, as `take.lua`
/// and `head.lua` know.
#[expect(
    clippy::disallowed_methods,
    reason = "only shown to whoever looks; nothing is decided by it"
)]
pub(super) fn field(request: &Request, party: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let Request { owner, id, term, tokens, .. } = request;
    format!("{owner}#{id}#{party}#{}#{tokens}#{}", term.ttl().as_millis(), since.as_millis())
}

/// Whether a field or a value is one of those.
pub(in crate::backend) fn is_our_field(field: &str) -> bool {
    let mut parts = field.rsplit('#');
    let number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u64>().is_ok());
    let numbers = [parts.next(), parts.next(), parts.next()].into_iter().all(number);
    let hex = |part: Option<&str>, length: usize| {
        part.is_some_and(|part| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit()))
    };
    numbers && hex(parts.next(), 16) && hex(parts.next(), 32) && parts.next().is_some()
}

/// Whether a field of a hash is one that locks have, Redisson's or ours.
pub(super) fn is_lock_field(field: &str) -> bool {
    let owner = field.strip_suffix(":write").unwrap_or(field);
    let is_owner = owner.split_once(':').is_some_and(|(client, thread)| {
        let uuid = client.len() == 36 && client.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        uuid && !thread.is_empty() && thread.chars().all(|c| c.is_ascii_digit())
    });
    is_owner || field == "mode" || is_our_field(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId::from_bytes([7; 16]);

    fn keys(lock: &str) -> Vec<String> {
        let mut written: Vec<Vec<u8>> = Vec::new();
        write_keys(&mut written, lock, ID);
        assert_eq!(written.len(), KEYS);
        written.into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    }

    /// Do not change: other clients, ours and Redisson's, use the same keys.
    #[test]
    fn keys_are_those_of_redisson() {
        assert_eq!(
            keys("foo"),
            [
                "foo",
                "lockkeeper:{foo}",
                "redisson_lock_token:{foo}",
                "lockkeeper_late:{foo}:07070707070707070707070707070707",
                "redisson_lock_queue:{foo}",
                "redisson_lock_timeout:{foo}",
                "{foo}:timeout",
                "lockkeeper_queue:{foo}",
                "lockkeeper_waiters:{foo}",
            ]
        );
        assert_eq!(
            keys("{a}:b"),
            [
                "{a}:b",
                "lockkeeper::{a}:b",
                "redisson_lock_token:{a}:b",
                "lockkeeper_late::{a}:b:07070707070707070707070707070707",
                "redisson_lock_queue:{a}:b",
                "redisson_lock_timeout:{a}:b",
                "{a}:b:timeout",
                "lockkeeper_queue::{a}:b",
                "lockkeeper_waiters::{a}:b",
            ]
        );
        assert_eq!(
            release_channels("foo", ID),
            [
                "redisson_lock__channel:{foo}",
                "redisson_rwlock:{foo}",
                "redisson_sc:{foo}",
                "redisson_lock__channel:{foo}:07070707070707070707070707070707",
            ]
        );
        assert_eq!(release_channels("{a}:b", ID)[1], "redisson_rwlock:{a}:b");
        assert_eq!(latch_channel("foo"), "redisson_countdownlatch__channel__{foo}");
        assert_eq!(latch_channel("{a}:b"), "redisson_countdownlatch__channel__{{a}:b}");
    }

    #[test]
    fn names_are_found_again() {
        for (prefix, name) in [("", "foo"), ("app:", "foo/1"), ("", "{a}:b"), ("", "a}b")] {
            let name: Name = name.parse().unwrap();
            let keys = keys(&lock_key(prefix, &name));
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(name_of_state(key, prefix), (at == 1).then(|| name.clone()), "{key}");
            }
        }
        assert_eq!(name_of_state("lockkeeper:{other}", "app:"), None);
    }

    #[test]
    fn messages_are_taken_apart() {
        let id = "07070707070707070707070707070707";
        assert_eq!(parse_message(id), Some((ID, None)));
        let granted = format!("{id} grant 1 2 3");
        assert_eq!(parse_message(&granted), Some((ID, Some("grant 1 2 3"))));
        assert_eq!(parse_message("0 grant 1").unwrap().1, Some("grant 1"));
        assert_eq!(parse_message("hello"), None);
    }

    #[test]
    fn fields_of_locks_are_known() {
        let id = "8743c9c0-0795-4907-87fd-6c719a6b4586";
        let request = "0123456789abcdef0123456789abcdef";
        let ours = format!("host#1:7#{request}#0123456789abcdef#30000#128#1763210000000");
        for field in [format!("{id}:1"), format!("{id}:77:write"), "mode".into(), ours] {
            assert!(is_lock_field(&field), "{field}");
        }
        let half = format!("{request}#0123456789abcdef#30000#128#1");
        for field in ["name", "a:1", ":1", id, &format!("{id}:x"), &format!("{id}:"), &half] {
            assert!(!is_lock_field(field), "{field}");
        }
    }
}
