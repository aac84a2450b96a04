//! Where values are written to.

use async_trait::async_trait;

use crate::error::BoxError;
use crate::loader::Loader;

/// A database that is read and written through a [`Table`](crate::Table). The example `shop` is one for PostgreSQL.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use async_trait::async_trait;
/// use lockkeeper_cache::{BoxError, Database, Loaded, Loader, Order};
///
/// /// A table of names, so to speak.
/// #[derive(Default)]
/// struct Names(Mutex<HashMap<u64, String>>);
///
/// #[async_trait]
/// impl Loader<u64, String> for Names {
///     async fn load(&self, id: &u64) -> Result<Loaded<String>, BoxError> {
///         // SELECT name, version FROM users WHERE id = $1
///         Ok(self.0.lock().map_err(|_| "broken")?.get(id).cloned().into())
///     }
/// }
///
/// #[async_trait]
/// impl Database<u64, String> for Names {
///     async fn store(
///         &self,
///         id: &u64,
///         name: Option<&String>,
///         order: Option<Order>,
///     ) -> Result<u64, BoxError> {
///         if order.is_some() {
///             return Err("no order is kept here, which write-behind needs".into());
///         }
///         // INSERT … ON CONFLICT (id) DO UPDATE SET name = $2, version = nextval('user_versions') RETURNING version
///         let mut names = self.0.lock().map_err(|_| "broken")?;
///         match name {
///             Some(name) => drop(names.insert(*id, name.clone())),
///             None => drop(names.remove(id)),
///         }
///         Ok(0)
///     }
/// }
/// # drop(Names::default());
/// ```
#[async_trait]
pub trait Database<K, V>: Loader<K, V> {
    /// Makes this the value of a key, committed when it returns; `None` deletes it. Returns the version that it has now;
    /// 0 where none is known. For a deletion that is 0 as well, unless [`load`](Loader::load) knows the version of
    /// what is not there.
    ///
    /// `order`: given by [write-behind](crate::strategy::write_behind) and [cache-through](crate::through), where a change
    /// may come twice, or after a later one. Then a change that is not later than the last one that was applied to the key must change nothing,
    /// and succeed.
    ///
    /// # Errors
    ///
    /// Whatever it likes. It is then taken to be unknown whether the value was changed.
    async fn store(
        &self,
        key: &K,
        value: Option<&V>,
        order: Option<Order>,
    ) -> Result<u64, BoxError>;
}

/// The place of a change among all changes of a table: the larger one is later.
///
/// As two numbers, for two columns of a database, or as text that sorts alike.
///
/// ```
/// use lockkeeper_cache::Order;
/// let [one, other] = [Order::new(1_700_000_000_000, 9), Order::new(1_700_000_000_000, 10)];
/// assert!(one < other);
/// assert!(one.to_string() < other.to_string());
/// assert_eq!(other.to_string(), "01700000000000-0000000010");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Order {
    ms: u64,
    seq: u64,
}

impl Order {
    /// From its two numbers.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// The first number: milliseconds by the clock of the store.
    pub const fn ms(self) -> u64 {
        self.ms
    }

    /// The second number, which tells apart the changes of one millisecond.
    pub const fn seq(self) -> u64 {
        self.seq
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:014}-{:010}", self.ms, self.seq)
    }
}
