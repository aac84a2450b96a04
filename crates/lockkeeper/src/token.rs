//! Fencing tokens: the number that lets a resource refuse a holder that came too late.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// A fencing token: grows with every grant of a name and is never used twice.
///
/// Hand it to whatever the lock protects and let *that* refuse a token smaller than the largest it
/// has seen. Only this makes a lock safe against a holder that was paused past its lease.
///
/// ```
/// # use lockkeeper::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locks = Locks::memory();
/// let first = locks.mutex("report").lock().await?;
/// let earlier = first.token();
/// first.release().await?;
/// assert!(locks.mutex("report").lock().await?.token() > earlier);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(NonZeroU64);

impl Token {
    /// The smallest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The token with this number; `None` for zero, which no grant ever has.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, as a resource stores and compares it.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The consecutive tokens that one grant brings: the first for whoever asked, the rest for tasks of
/// the same process that take the hold over in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBlock {
    first: Token,
    count: u32,
}

impl TokenBlock {
    /// The block of `count` tokens that begins with `first`. A count of zero counts as one.
    pub fn new(first: Token, count: u32) -> Self {
        Self { first, count: count.max(1) }
    }

    /// The same block, so many tokens further on.
    #[must_use]
    pub(crate) fn shifted(self, by: u64) -> Self {
        Self { first: Token(self.first.0.saturating_add(by)), count: self.count }
    }

    /// Takes the next `count` tokens off a counter that holds the last one issued.
    pub fn issue(counter: &mut u64, count: u32) -> Self {
        let count = count.max(1);
        let first = NonZeroU64::MIN.saturating_add(*counter);
        *counter = counter.saturating_add(u64::from(count));
        Self { first: Token(first), count }
    }

    /// The smallest token of the block.
    pub const fn first(self) -> Token {
        self.first
    }

    /// The token that is `passes` hand-overs after the first, while the block lasts.
    pub fn nth(self, passes: u32) -> Option<Token> {
        (passes < self.count).then(|| Token(self.first.0.saturating_add(u64::from(passes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_without_overlap() {
        let mut counter = 0;
        let one = TokenBlock::issue(&mut counter, 3);
        let two = TokenBlock::issue(&mut counter, 0);
        assert_eq!((one.first().get(), counter), (1, 4));
        assert_eq!(one.nth(2).map(Token::get), Some(3));
        assert_eq!(one.nth(3), None);
        assert_eq!((two.first().get(), two.nth(1)), (4, None));
    }
}
