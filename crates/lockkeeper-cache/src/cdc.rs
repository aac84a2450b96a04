//! The database tells the cache what has changed, whoever changed it.
//!
//! A [`Follower`] reads the log that the database writes for its replicas, finds out by [rules](Rule) which keys each change
//! is about, and invalidates them. What a log cannot say is taken for the worst: a table, or all of them.
//!
//! # How it works
//!
//! 1. Followers of one name take turns by a lock. Who has it [looks](Source::check) whether the database is set up as it
//!    must be, claims the record of that name at the store of the cache, and finds there where the last one has stopped.
//! 2. It reads the log from there on. The keys of each batch are invalidated, each once: leases are taken away like by any other
//!    invalidation, so loads that began before fill nothing.
//! 3. When the store has acknowledged all of them, the position is saved in that record, and then the database may throw away what
//!    is before it. Who dies in between leaves the next one something to do twice, which costs loads.
//! 4. Only the one who claimed last can save, and only at the server where it did (see [`Positions`](crate::store::Positions)):
//!    who was stopped for long and wakes up has done no harm.
//! 5. Where nobody knows what was missed, it **begins anew**: no position is saved, the database does not have it any
//!    more, or the rules are others than those it was saved by. Then it is saved that nobody knows, the log is opened at its end, every
//!    namespace with a rule is cleared, and that end is saved; in this order.
//!
//! The record is a hash under `!cdc:` and the name, after the prefix of the URL, at the store of the first cache that is given.
//! It has no end, and [`forget`](crate::store::Positions::forget) removes it.
//!
//! # What it promises
//!
//! - What is committed is invalidated, at least once and soon, whichever program has written it, as long as one follower lives and
//!   reaches the database and the store. Crashes of followers at any moment, lost answers and pauses of any length make no
//!   difference.
//! - One follower works at a time; another one takes over when its lock ends.
//! - After a fail-over of Redis it goes on from where the new server has it, which may be further back: what the old one
//!   has acknowledged and not passed on is done again. Entries of the old server do not count ([`Redis`](crate::Redis)).
//! - Lost history is not passed over: it is said in the log and in [`Status::resets`], and nothing old is left.
//! - The log is read in pieces: the memory does not grow with a transaction.
//!
//! # When it breaks
//!
//! - What comes between a commit and its invalidation is what the log takes: readers get old values for so long. Who must
//!   not, uses [`Cache::write`](crate::Cache::write) as well.
//! - A rule makes other keys than the application does: see [`Rule`]. Nobody notices.
//! - Changes that the database does not write into its log: see the sources.
//! - A loader that reads a replica: it may read what was there before the change although the change is invalidated already.
//! - A server of a **cluster**, of a [group](crate::Grouped), or of a second cache elsewhere that fails over: the
//!   position is not kept there. What such a server acknowledges after another one has taken over from it, and before the client
//!   hears of that, is not done again.
//! - [Filters](crate::filter) hear of keys, and not of namespaces that are cleared: rebuild them when [`Status::cleared`] grows.
//! - Two versions of a program with different rules under one name: each turn of the other begins anew. Give them another name,
//!   or change all of them at a time.
//! - Followers of two databases with one name at one store.
//!
//! # Cost
//!
//! For each batch one round trip to the store for its keys, up to 1000 of them each and all at the same time, and another one for
//! the position; when nothing changes, one in a second. Clearing looks at every key that the servers have:
//! see [`Cache::clear`](crate::Cache::clear). Rules with [`refresh`](Builder::refresh) cost a load for each key that changes.
//!
//! ```no_run
//! # #![allow(dead_code)]
//! use lockkeeper::Locks;
//! use lockkeeper_cache::Cache;
//! use lockkeeper_cache::cdc::{Follower, Rule, Source};
//!
//! # async fn example(source: impl Source + 'static, users: Cache<u64, String>, orders: Cache<String, u64>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let follower = Follower::builder(source)
//!     .name("shop")
//!     .rule(Rule::new("public.users", "{id}")?, &users)
//!     .rule(Rule::new("public.orders", "{customer}/{number}")?, &orders)
//!     .locks(Locks::connect("redis://localhost").await?)
//!     .start()?;
//! let status = follower.status();
//! println!("{:?}, behind by {:?}", status.state, status.lag);
//! follower.stop().await;
//! # Ok(())
//! # }
//! ```

mod change;
mod finding;
mod follower;
mod log;
pub mod mariadb;
pub mod postgres;
mod rule;
mod status;
mod target;

pub use self::change::{Cell, Change, Row, TableName};
pub use self::finding::{Finding, Severity};
pub use self::follower::{Builder, Follower};
pub use self::log::{Batch, Lag, Log, LogError, Position, Source, Wanted};
pub use self::mariadb::MariaDb;
pub use self::postgres::Postgres;
pub use self::rule::Rule;
pub use self::status::{Failure, State, Status};
