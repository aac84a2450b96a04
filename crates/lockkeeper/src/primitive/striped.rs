//! Many locks for very many keys.

use std::time::Duration;

use super::multi::Multi;
use super::mutex::Mutex;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::Locks;

/// There are at most so many stripes: all of them can be taken as one.
const MOST: usize = 1024;

/// A fixed number of mutexes for any number of keys: a key always has the same one, in every process and
/// every version of this crate, so two that work on one key exclude each other; two keys may share one.
///
/// Made by [`Locks::striped`]. The mutexes are called `NAME/0`, `NAME/1` and so on; everybody must use
/// the same number of them.
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let accounts = Locks::memory().striped("accounts", 16);
/// let one = accounts.lock("alice").await?;
/// assert!(accounts.try_lock("alice").await?.is_none());
/// one.release().await?;
/// // Two keys at a time, or everything: never with a guard of another key in hand.
/// let both = accounts.keys(["alice", "bob"])?.lock().await?;
/// both.release().await?;
/// accounts.all()?.lock().await?.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Striped {
    locks: Locks,
    name: String,
    stripes: usize,
}

impl Striped {
    pub(crate) fn new(locks: &Locks, name: &str, stripes: usize) -> Self {
        Self { locks: locks.clone(), name: name.to_owned(), stripes }
    }

    /// The mutex of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when the number of stripes is not between 1 and 1024.
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> Result<Mutex> {
        let stripes = self.checked()? as u64;
        // Smaller than the number of stripes.
        let at = usize::try_from(hash(key.as_ref()) % stripes).unwrap_or(0);
        Ok(self.at(at))
    }

    /// Waits for the mutex of a key.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`] and [`stripe`](Self::stripe).
    ///
    /// # Cancel safety
    ///
    /// As for [`Mutex::lock`].
    pub async fn lock(&self, key: impl AsRef<[u8]> + Send) -> Result<Guard> {
        self.stripe(key)?.lock().await
    }

    /// Asks once; `None` when somebody has this key or another one of its stripe.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`] and [`stripe`](Self::stripe).
    pub async fn try_lock(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Guard>> {
        self.stripe(key)?.try_lock().await
    }

    /// Waits for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock_timeout`] and [`stripe`](Self::stripe).
    pub async fn lock_timeout(
        &self,
        key: impl AsRef<[u8]> + Send,
        timeout: Duration,
    ) -> Result<Guard> {
        self.stripe(key)?.lock_timeout(timeout).await
    }

    /// The mutexes of several keys as one, taken in an order that is the same for everybody.
    ///
    /// # Errors
    ///
    /// As for [`stripe`](Self::stripe).
    pub fn keys<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Multi> {
        let stripes: Result<Vec<_>> = keys.into_iter().map(|key| self.stripe(key)).collect();
        Ok(Multi::new(stripes?))
    }

    /// All of them as one, in the same order.
    ///
    /// # Errors
    ///
    /// As for [`stripe`](Self::stripe).
    pub fn all(&self) -> Result<Multi> {
        Ok(Multi::new((0..self.checked()?).map(|at| self.at(at))))
    }

    fn at(&self, at: usize) -> Mutex {
        self.locks.mutex(format!("{}/{at}", self.name))
    }

    fn checked(&self) -> Result<usize> {
        match self.stripes {
            1..=MOST => Ok(self.stripes),
            other => Err(Error::Config(format!("1 to {MOST} stripes are possible, not {other}"))),
        }
    }
}

/// The same in every program (FNV-1a, and its halves mixed: the lower bits alone know little of the
/// upper ones). Do *not* change this: two versions must agree.
fn hash(key: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = key
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other processes rely on it: do *not* change this.
    #[test]
    fn a_key_has_the_same_stripe_for_ever() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325 ^ 0xcbf2_9ce4);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c ^ 0xaf63_dc4c);
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8 ^ 0x8594_4171);
    }

    #[test]
    fn keys_are_spread_over_all_stripes() {
        let mut counts = [0_u32; 16];
        for key in 0..16_000 {
            counts[usize::try_from(hash(format!("order/{key}").as_bytes()) % 16).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
