//! Names of keys and channels: those of Redisson, byte for byte, and our own beside them.

use crate::name::Name;
use crate::owner::RequestId;

/// The keys and channels that a script on one name is given, in the order of `model.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys(pub(super) [String; 8]);

impl Keys {
    pub(super) fn of(prefix: &str, name: &Name) -> Self {
        let raw = format!("{prefix}{name}");
        Self([
            raw.clone(),
            // Ours alone, so it can do better than Redisson, where `foo` and `{foo}` share theirs.
            if raw.contains('{') {
                format!("lockkeeper::{raw}")
            } else {
                before("lockkeeper", &raw)
            },
            before("redisson_lock_token", &raw),
            after(&raw, "timeout"),
            before("redisson_lock__channel", &raw),
            before("redisson_rwlock", &raw),
            before("redisson_sc", &raw),
            // Here Redisson adds braces whatever the name is.
            format!("redisson_countdownlatch__channel__{{{raw}}}"),
        ])
    }

    /// What a request leaves behind that was given up and may still arrive. A key each, for a while:
    /// in our state they would make every step slower.
    pub(super) fn given_up(&self, id: RequestId) -> String {
        format!("{}:late:{id}", self.0[1])
    }

    /// Where Redisson's clients say that they have let go of it.
    pub(super) fn lock_channels(&self) -> [&str; 3] {
        [&self.0[4], &self.0[5], &self.0[6]]
    }

    pub(super) fn latch_channel(&self) -> &str {
        &self.0[7]
    }
}

/// Redisson's rule: braces only around a name that has none. The test is for any `{`, not for a
/// valid hash tag.
fn before(prefix: &str, raw: &str) -> String {
    if raw.contains('{') { format!("{prefix}:{raw}") } else { format!("{prefix}:{{{raw}}}") }
}

fn after(raw: &str, suffix: &str) -> String {
    if raw.contains('{') { format!("{raw}:{suffix}") } else { format!("{{{raw}}}:{suffix}") }
}

/// Our clients' channels are called this and the client.
pub(super) const WAKE: &str = "lockkeeper_wake:";

/// The name behind a key of our state.
pub(super) fn name_of_state(key: &str, prefix: &str) -> Option<Name> {
    let raw = key.strip_prefix("lockkeeper:")?;
    let raw = raw.strip_prefix(':').or_else(|| raw.strip_prefix('{')?.strip_suffix('}'))?;
    raw.strip_prefix(prefix)?.parse().ok()
}

/// What is published to a client: the request that it concerns.
pub(super) fn parse_id(text: &str) -> Option<RequestId> {
    u128::from_str_radix(text, 16).ok().map(|id| RequestId::from_bytes(id.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Do not change: other clients, ours and Redisson's, use the same keys.
    #[test]
    fn keys_are_those_of_redisson() {
        let keys = |name: &str| Keys::of("", &name.parse().unwrap()).0;
        assert_eq!(
            keys("foo"),
            [
                "foo",
                "lockkeeper:{foo}",
                "redisson_lock_token:{foo}",
                "{foo}:timeout",
                "redisson_lock__channel:{foo}",
                "redisson_rwlock:{foo}",
                "redisson_sc:{foo}",
                "redisson_countdownlatch__channel__{foo}",
            ]
        );
        assert_eq!(
            keys("{a}:b"),
            [
                "{a}:b",
                "lockkeeper::{a}:b",
                "redisson_lock_token:{a}:b",
                "{a}:b:timeout",
                "redisson_lock__channel:{a}:b",
                "redisson_rwlock:{a}:b",
                "redisson_sc:{a}:b",
                "redisson_countdownlatch__channel__{{a}:b}",
            ]
        );
    }

    #[test]
    fn names_are_found_again() {
        for (prefix, name) in [("", "foo"), ("app:", "foo/1"), ("", "{a}:b"), ("", "a}b")] {
            let name: Name = name.parse().unwrap();
            let keys = Keys::of(prefix, &name);
            assert_eq!(name_of_state(&keys.0[1], prefix), Some(name));
        }
        assert_eq!(name_of_state("lockkeeper:{other}", "app:"), None);
    }
}
