//! How new a value must be.

use std::time::Duration;

use crate::entry::Millis;
use crate::store::millis;

/// What one read asks for. Nobody else pays for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freshness {
    /// A value that nobody has invalidated.
    #[default]
    Any,
    /// The same, or one that was invalidated no longer ago than this, rather than wait while another is loaded. Needs
    /// [`keep_last`](crate::Builder::keep_last).
    Stale(Duration),
    /// As [`Any`](Self::Any), and read from the database no longer ago than this. What is loaded for it, others find a moment
    /// later.
    MaxAge(Duration),
    /// As [`Any`](Self::Any), and of this version or a later one: what a writer was told, so that it reads its own
    /// write. Where the database itself has only an older one, [`Error::TooOld`](crate::Error::TooOld). A value without a
    /// version is loaded anew. What is loaded for it, others find a moment later. 0, which a writer is told where no
    /// version is known: what is at the store, and not what the [first level](crate::FirstLevel) of this process may have
    /// from before.
    AtLeast(u64),
    /// From the database, by a load that begins now. The cache is neither asked nor filled.
    Latest,
}

impl Freshness {
    /// Whether a value of this version, loaded then, will do.
    pub(crate) fn accepts(self, version: u64, made: Millis, now: Millis) -> bool {
        match self {
            Self::Any | Self::Stale(_) => true,
            Self::MaxAge(age) => now.saturating_sub(made) <= millis(age),
            Self::AtLeast(wanted) => version >= wanted,
            Self::Latest => false,
        }
    }

    /// Whether a value that was invalidated then will do.
    pub(crate) fn accepts_dead(self, died: Millis, now: Millis) -> bool {
        matches!(self, Self::Stale(age) if now.saturating_sub(died) <= millis(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_asks_for_what_it_says() {
        let second = Duration::from_secs(1);
        for (freshness, now, accepted, dead) in [
            (Freshness::Any, 9999, true, false),
            (Freshness::Stale(second), 2000, true, true),
            (Freshness::Stale(second), 2001, true, false),
            (Freshness::MaxAge(second), 2000, true, false),
            (Freshness::MaxAge(second), 2001, false, false),
            (Freshness::AtLeast(5), 9999, true, false),
            (Freshness::AtLeast(6), 1000, false, false),
            (Freshness::Latest, 1000, false, false),
        ] {
            assert_eq!(freshness.accepts(5, 1000, now), accepted, "{freshness:?} at {now}");
            assert_eq!(freshness.accepts_dead(1000, now), dead, "{freshness:?} at {now}");
        }
    }
}
