//! A cache in front of a database that cannot put stale data back.
//!
//! The usual recipe, "read the cache, else read the database and set; after a write, delete", leaves old values behind
//! for as long as they live: a reader that read the database before the write may set after the delete. Here a miss
//! takes a **lease**, an invalidation takes it away, and a fill without a live lease is dropped. Each is one atomic step
//! at the store; a hit is a plain `GET`.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper_cache::{Cache, Error, Freshness, Loaded, Memory};
//!
//! let prices = Cache::builder(Memory::new()) // or Redis::connect("redis://localhost").await?, for several processes
//!     .namespace("price")
//!     .build(async |article: String| {
//!         // SELECT price, version FROM articles WHERE id = $1
//!         Ok::<_, Error>(Loaded::found(article.len() * 100).version(5))
//!     })?;
//! let pen = "pen".to_owned();
//! assert_eq!(prices.get(&pen).await?.as_deref(), Some(&300));
//!
//! // From the commit on nobody reads the old price, and a writer that dies leaves nothing stale behind.
//! let update = async { /* UPDATE … RETURNING version; COMMIT */ Ok::<_, Error>(5) };
//! let written = prices.write(&[pen.clone()], update).await?;
//! written.cache?; // The database has it in any case. An error: this price is not cached for half a minute.
//! // Or with a round trip less: after a commit, and before whoever asked for it is told.
//! prices.invalidate_to(&[pen.clone()], 5).await?;
//! // Who must see a version says so, and nobody else pays for it.
//! let read = prices.read(&pen, Freshness::AtLeast(5)).await?;
//! assert_eq!(read.version, 5);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - After [`Cache::invalidate`] has returned, no read that begins gets the value that was there before, in this process
//!   or another; and no load that began before can bring it back. Lost answers, pauses of any length, leases that end and
//!   a store that forgets everything make no difference.
//! - With [`Cache::intend`] before the commit, that is so from the commit on.
//! - One load for each key at a time, across tasks and processes, as long as loads are shorter than the lease.
//! - No read waits longer than [`Builder::timeout`], and there are never more than [`Builder::max_loads`] loads.
//!
//! # When it breaks
//!
//! - A writer that does not invalidate, or dies between the commit and the invalidation: the value stays until its time to
//!   live ends, except after [`Cache::intend`] or with an [outbox].
//! - An invalidation **before** the commit: a load in between reads the old value and fills it.
//! - A loader that reads a replica which lags: give values their [version](Loaded::version), and name it when
//!   [invalidating](Cache::invalidate_to).
//! - A Redis replica that takes over without the last invalidations, after [`Redis::connect_warm`].
//!
//! # Writing
//!
//! | | what is promised |
//! | --- | --- |
//! | [`Cache::invalidate`] after the commit | as above: old values only while the write is under way |
//! | [`Cache::write`], or [`Cache::intend`] before the commit | nobody reads the old value from the commit on, and a writer that dies leaves nothing stale behind |
//! | [`Cache::transaction`] | the first of these, for the keys of several caches, and no way to do it before the commit; with an [outbox] a writer may die, too |
//! | [`Table`] | what its [`Strategy`] promises: the second of these by default, or any of the usual ones, chosen by name |
//!
//! # What else there is
//!
//! - Values inside the process, with a bound on their age: [`FirstLevel`].
//! - The database is spared: [`Builder::limit`], [`Builder::breaker`], [`Builder::max_loads`], [`Builder::when_down`] for the time
//!   when the store is down, a [`filter`] for keys that do not exist, [`Builder::validate`], [`Builder::early`] for hot keys. **Only
//!   `max_loads` has a default that limits anything**: before production, set a limit that the database bears.
//! - [`Freshness`] of each read; [`Cache::get_many`], [`Cache::set_many`]; [tags](Builder::tags).
//! - Whether it is right: [`Cache::explain`], [`Cache::audit`], [`Stats`].
//! - Stores: [`Redis`] with Sentinel, Cluster or neither, [`Memory`], several as [`Grouped`].
//! - The database tells the cache: `cdc`; writes go to a queue: [`through`].
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `redis` (default) | [`Redis`], and filters there |
//! | `postgres`, `mysql` | an [outbox] in that database |
//! | `cdc` | invalidation from the log of PostgreSQL and MariaDB; has both of the above |
//!
//! # Cost
//!
//! A hit is one `GET`, and many at once share an `MGET`. A miss is one more round trip before the load; after the load the
//! value is sent to the store, and its answer is not waited for ([`Cache::idle`] does that). An invalidation is one, for any
//! number of keys.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![doc(test(attr(deny(warnings))))]

mod audit;
pub mod breaker;
mod builder;
mod cache;
#[cfg(feature = "cdc")]
pub mod cdc;
mod codec;
mod database;
mod debt;
pub mod entry;
mod error;
mod events;
pub mod explain;
mod fill;
pub mod filter;
mod first;
mod flight;
mod freshness;
mod get;
pub mod group;
mod guard;
mod hash;
mod hot;
mod intent;
pub mod jitter;
pub mod limit;
mod load;
mod loader;
mod look;
mod names;
pub mod outbox;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod provider;
mod read;
mod stats;
pub mod store;
pub mod strategy;
mod tags;
pub mod through;
mod transaction;
mod turn;
mod unreadable;
mod update;

pub use audit::Audit;
pub use builder::Builder;
pub use cache::{Cache, Read, Source};
pub use codec::{Codec, Json};
pub use database::{Database, Order};
pub use error::{BoxError, Error, Result, SharedError, StoreError};
pub use events::Event;
pub use explain::Explanation;
pub use first::{FirstLevel, Watch};
pub use freshness::Freshness;
pub use guard::Down;
pub use hot::HotKey;
pub use intent::Write;
pub use loader::{Loaded, Loader};
pub use stats::{Stat, Stats};
#[cfg(feature = "redis")]
pub use store::Redis;
pub use store::{Grouped, Memory, Seen, Store};
pub use strategy::{Strategy, Table, Written};
pub use transaction::{Committed, Invalidate, Touched, Transaction, WriteError};
pub use unreadable::Unreadable;
