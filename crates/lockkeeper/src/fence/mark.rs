//! The alternative to tokens: a mark on the resource, left before the work and compared by the write.

use std::fmt;

use super::{Error, Result};
use crate::guard::Guard;

/// The longest mark, in bytes.
const LONGEST: usize = 255;

/// What a holder leaves on a resource, to see when it writes whether somebody else has been there since:
/// compare-and-set, for locks whose holders have a value of their own but no tokens that grow.
///
/// 1. Take the lock.
/// 2. *Mark* the resource: whatever mark was there is gone.
/// 3. Read what the work needs, *after* marking.
/// 4. Write on condition that the mark is still there. If not: [`Error::Overtaken`], and nothing is written.
///
/// # What it promises
///
/// Between a holder's mark and its write nobody else has marked, so nobody else has written who keeps to
/// the same steps. Of two holders at the same time at most one writes what it has worked out from what it
/// has read.
///
/// # When it breaks
///
/// There is no order. A holder that was stopped *before* step 2 wakes up, marks, and it is the rightful
/// holder that is refused: it has to begin again, although it has the lock. No update is lost by that, as
/// long as the late one too reads only after it has marked; what it read before is stale. A
/// [`Token`](crate::Token) refuses the late one at once: use tokens where the lock has them, and here all have.
///
/// A mark that is left again by a message that was under way all the time, because a driver has sent it twice, is taken
/// for one that was never gone.
///
/// # Cost
///
/// One more round trip than with tokens: marking is a write.
///
/// ```
/// # use lockkeeper::Locks;
/// use lockkeeper::fence::Mark;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Locks::memory();
/// let first = Mark::of(&locks.mutex("report").lock().await?);
/// let second = Mark::of(&locks.mutex("report").lock().await?);
/// assert_ne!(first, second);
/// assert!(Mark::new("5f1c0c4e").is_ok(), "the value of another library's lock");
/// assert!(Mark::new("").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mark(String);

impl Mark {
    /// The mark of a grant: no other grant of the name has the same.
    pub fn of(guard: &Guard) -> Self {
        let odd = |c: char| if c.is_ascii_graphic() { c } else { '?' };
        let owner: String = guard.owner().to_string().chars().map(odd).take(200).collect();
        Self(format!("{owner}#{}", guard.token()))
    }

    /// A mark of your own. It must be another one each time that the lock is taken, or it says nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless it is 1 to 255 characters of ASCII that can be seen: databases take other
    /// ones for equal that are not.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        match text.len() {
            1..=LONGEST if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(text)),
            _ => Err(Error::Invalid(format!(
                "a mark has 1 to {LONGEST} characters of ASCII, without spaces"
            ))),
        }
    }

    /// As it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_a_database_could_confuse_are_refused() {
        for fine in ["a", "host-1-ab:3#7", &"x".repeat(255)] {
            assert_eq!(Mark::new(fine).unwrap().as_str(), fine);
        }
        for odd in ["", "a b", "a ", "ä", "a\0", "a\n", &"x".repeat(256)] {
            assert!(Mark::new(odd).is_err(), "{odd:?}");
        }
    }
}
