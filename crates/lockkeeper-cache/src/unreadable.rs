//! Values that could not be read, kept for whoever wants to know why.
//!
//! # How it works
//!
//! What cannot be read is loaded anew, and the next fill is stored over it: by the time that somebody sees the counter
//! `unreadable` rise, the value is gone. So the last ones are kept here, in this process, if that was
//! [asked for](Builder::keep_unreadable).
//!
//! # What it promises
//!
//! There are never more than was said, and of each no more than [`MOST`] bytes. One value is kept once, however often it is
//! read. Nothing of this is written to any log.
//!
//! # Cost
//!
//! Nothing as long as everything can be read. What cannot be takes a lock, a look through what is kept, and a copy.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;

use crate::builder::Builder;
use crate::cache::Cache;
use crate::entry::{Ticket, Value};

/// Of a value no more bytes than this are kept.
const MOST: usize = 16 << 10;

/// Of an error no more than this: some repeat the value.
const MOST_OF_ERROR: usize = 1 << 10;

/// A value that could not be read, from [`Cache::unreadable`].
///
/// It may hold personal data, and so may the text of the error: the one that JSON gives quotes what it did not expect. That
/// is why [`Debug`] shows neither.
#[derive(Clone)]
#[non_exhaustive]
pub struct Unreadable {
    /// The key, as it is written.
    pub key: String,
    /// The value as it was stored, or the first 16 KiB of it. `None`: there was something under the key that is not an
    /// entry, or an entry that says that the database has nothing; nothing of it is kept.
    pub bytes: Option<Vec<u8>>,
    /// How many bytes it had.
    pub length: usize,
    /// Of which schema it was; `None`: it is not an entry.
    pub schema: Option<u32>,
    /// What was wrong with it, or the first KiB of that.
    pub error: String,
    /// So long ago it was first seen here.
    pub ago: Duration,
}

impl fmt::Debug for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, length, schema, ago, .. } = self;
        let mut debug = f.debug_struct("Unreadable");
        debug.field("key", key).field("length", length).field("schema", schema).field("ago", ago);
        debug.finish_non_exhaustive()
    }
}

/// The last ones.
#[derive(Debug)]
pub(crate) struct Shelf {
    room: usize,
    /// With what each was filled by, and when it was seen.
    kept: Mutex<VecDeque<(Ticket, Instant, Unreadable)>>,
}

impl Shelf {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, kept: Mutex::default() }
    }

    /// Keeps a value, unless it is there already.
    pub(crate) fn keep(&self, key: &str, value: &Value, error: &dyn fmt::Display) {
        self.add(key, value.fill, || {
            let bytes = value.payload.as_deref();
            let cut = bytes.map(|bytes| bytes[..bytes.len().min(MOST)].to_vec());
            (cut, bytes.map_or(0, <[u8]>::len), Some(value.schema), cut_text(error.to_string()))
        });
    }

    /// Remembers that there was something that is not an entry.
    pub(crate) fn keep_foreign(&self, key: &str) {
        self.add(key, Ticket::NONE, || (None, 0, None, "it is not an entry".to_owned()));
    }

    fn add(
        &self,
        key: &str,
        fill: Ticket,
        what: impl FnOnce() -> (Option<Vec<u8>>, usize, Option<u32>, String),
    ) {
        if self.room == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        // Who reads it again and again would drive out the others.
        if kept.iter().any(|(of, _, one)| *of == fill && one.key == key) {
            return;
        }
        if kept.len() == self.room {
            kept.pop_front();
        }
        let (bytes, length, schema, error) = what();
        let (key, ago) = (key.to_owned(), Duration::ZERO);
        let one = Unreadable { key, bytes, length, schema, error, ago };
        kept.push_back((fill, Instant::now(), one));
    }

    fn list(&self) -> Vec<Unreadable> {
        let now = Instant::now();
        let one = |(_, at, one): &(_, Instant, Unreadable)| Unreadable {
            ago: now.since(*at),
            ..one.clone()
        };
        self.kept.lock().iter().rev().map(one).collect()
    }
}

fn cut_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MOST_OF_ERROR));
    text
}

impl Builder {
    /// Keeps the last so many values that this process could not read, for [`Cache::unreadable`]: of an older
    /// [schema](Self::schema), or refused by the codec. Default: none.
    ///
    /// They stay in memory, up to 17 KiB each, until others take their place or the cache is dropped; they are not
    /// invalidated, and they may hold **personal data**. So switch it on to find something out, and mind who may ask for
    /// them. Values of a newer program are not kept: they stay where they are.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    ///
    /// let store = Memory::new();
    /// let names = Cache::builder(store.clone())
    ///     .namespace("user")
    ///     .build(async |_: u64| Ok::<_, Error>(Loaded::found("Ada".to_owned())))?;
    /// names.get(&7).await?;
    /// // A later program, whose values are numbers, and nobody has raised the schema.
    /// let numbers = Cache::builder(store)
    ///     .namespace("user")
    ///     .keep_unreadable(10)
    ///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
    /// assert_eq!(numbers.get(&7).await?.as_deref(), Some(&7));
    /// let kept = numbers.unreadable();
    /// assert_eq!((kept[0].key.as_str(), kept[0].bytes.as_deref()), ("7", Some(&b"\"Ada\""[..])));
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_unreadable(mut self, values: usize) -> Self {
        self.settings.keep_unreadable = values;
        self
    }
}

impl<K, V> Cache<K, V> {
    /// The last values that this process could not read, the youngest first; none unless
    /// [`keep_unreadable`](Builder::keep_unreadable) says so. They may hold personal data.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.inner.unreadable.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Lease;

    fn value(payload: &str) -> Value {
        let (lease, fill) = (Lease::NONE, Ticket::new());
        let (version, made, soft, cost, schema) = (0, 0, 0, 0, 3);
        let payload = Some(payload.as_bytes().to_vec().into());
        Value { lease, fill, version, made, soft, cost, schema, payload }
    }

    fn lengths(shelf: &Shelf) -> Vec<usize> {
        shelf.list().into_iter().map(|one| one.length).collect()
    }

    #[test]
    fn the_last_ones_are_kept_and_each_once() {
        let shelf = Shelf::new(3);
        let many = value("1");
        for _ in 0..10 {
            shelf.keep("a", &many, &"no");
        }
        for text in ["12", "123"] {
            shelf.keep("a", &value(text), &"no");
        }
        assert_eq!(lengths(&shelf), [3, 2, 1]);
        shelf.keep_foreign("b");
        shelf.keep_foreign("b");
        assert_eq!(lengths(&shelf), [0, 3, 2], "the oldest goes");
        let none = Shelf::new(0);
        none.keep("a", &many, &"no");
        assert!(lengths(&none).is_empty());
    }

    #[test]
    fn long_ones_are_cut() {
        let shelf = Shelf::new(1);
        shelf.keep("a", &value(&"x".repeat(MOST + 1)), &"é".repeat(MOST_OF_ERROR));
        let [Unreadable { bytes, length, error, .. }] = &shelf.list()[..] else { panic!() };
        assert_eq!((bytes.as_ref().map(Vec::len), *length), (Some(MOST), MOST + 1));
        assert_eq!(error.len(), MOST_OF_ERROR);
    }

    #[test]
    fn what_is_shown_for_a_log_is_not_the_value() {
        let shelf = Shelf::new(1);
        shelf.keep("a", &value("secret"), &"not expected: secret");
        let shown = format!("{:?} {:?}", shelf, shelf.list());
        assert!(shown.contains("length: 6") && !shown.contains("secret"), "{shown}");
        // Nor byte by byte; three digits alone may be a part of the ticket.
        assert!(!shown.contains("115, 101"), "{shown}");
    }
}
