//! Several stores for one set of keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use indexmap::IndexMap;

use super::{Claim, Cursor, Page, Positions, Result, Seen, Store};
use crate::breaker::{Phase, Policy};
use crate::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use crate::error::StoreError;
use crate::first::Watch;
use crate::group::{Group, GroupError};
use crate::guard::health::Health;

/// Several stores, each with its share of the keys; one that is down is down alone.
///
/// # How it works
///
/// A key belongs to one of them by a hash of the key and their names, up or down (see [`group`](crate::group)). Each
/// is left alone for a while when it does not answer, whatever patience those have who ask; what reads of its keys get then is for
/// [`when_down`](crate::Builder::when_down) to say. The others notice nothing.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use lockkeeper_cache::{Cache, Error, Grouped, Loaded, Memory, Store};
///
/// // `Redis::connect(…)` for each of several servers that know nothing of each other.
/// let nodes = ["a", "b", "c"].map(|name| (name, Arc::new(Memory::new()) as Arc<dyn Store>));
/// let cache = Cache::builder(Grouped::new(nodes)?)
///     .namespace("user")
///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id * 2)))?;
/// assert_eq!(cache.get(&21).await?.as_deref(), Some(&42));
/// # Ok(())
/// # }
/// ```
///
/// # What it promises
///
/// What each of them promises, for its keys.
///
/// # When it breaks
///
/// Two processes with different names for them disagree about where keys are, and miss each other's invalidations.
/// Where their clocks do not agree, ages are wrong by as much.
///
/// A [first level](crate::FirstLevel) knows as much as it hears from the one that it hears least of. While one of them
/// is down it serves nothing by itself, of no store's keys: the others are then asked for what it would have spared
/// them. With [`Down::Stale`](crate::Down::Stale) it has copies for the keys of the one that is down, and for no others.
///
/// # Cost
///
/// A hash for each key. Many keys take one round trip to each store, all at the same time, and have their answer together. Reads of
/// one key each have a round trip of their own, however many there are at a time: those of a store that hangs hold up no others.
pub struct Grouped {
    group: Group<Node>,
}

struct Node {
    store: Arc<dyn Store>,
    health: Health,
}

impl Grouped {
    /// These stores. The names say which keys are theirs: a store that moves to another machine keeps its name.
    ///
    /// # Errors
    ///
    /// Without a store, or with two of one name.
    pub fn new<N: Into<String>>(
        nodes: impl IntoIterator<Item = (N, Arc<dyn Store>)>,
    ) -> std::result::Result<Self, GroupError> {
        let nodes = nodes.into_iter().map(|(name, store)| {
            let name = name.into();
            let health = Health::new(format!("the store {name:?}"));
            (name, Node { store, health })
        });
        // What the group itself would do with one that fails is not used: it does not count who gave up waiting.
        Ok(Self { group: Group::new(nodes, Policy::default())? })
    }

    /// The names of all, and how they are.
    pub fn phases(&self) -> Vec<(&str, Phase)> {
        self.group.nodes().map(|(name, node, _)| (name, node.health.phase())).collect()
    }

    fn stores(&self) -> impl Iterator<Item = (&str, &Arc<dyn Store>)> {
        self.group.nodes().map(|(name, node, _)| (name, &node.store))
    }

    fn of(&self, key: &str) -> &Arc<dyn Store> {
        &self.group.of(key.as_bytes()).1.store
    }

    /// The keys of each with their places in the list.
    fn parts<'a>(&'a self, keys: &[&'a str]) -> Vec<Part<'a>> {
        let mut parts = IndexMap::<&str, Part<'a>>::new();
        for (at, key) in keys.iter().enumerate() {
            let (name, node) = self.group.of(key.as_bytes());
            let none = || Part { store: &node.store, places: Vec::new(), keys: Vec::new() };
            let part = parts.entry(name).or_insert_with(none);
            part.places.push(at);
            part.keys.push(key);
        }
        parts.into_values().collect()
    }

    fn positions_of(&self, follower: &str) -> Result<&dyn Positions> {
        let positions = self.of(follower).positions();
        positions.ok_or_else(|| StoreError::new("store", "it keeps no positions"))
    }

    async fn look(&self, keys: &[&str]) -> Vec<Seen> {
        let first = keys.first().map_or(&[][..], |key| key.as_bytes());
        let (name, node) = self.group.of(first);
        if let Ok(look) = node.health.enter() {
            let found = node.store.get(keys).await;
            look.answered(found.is_ok());
            match found {
                Ok(found) => return found,
                Err(error) => tracing::warn!(node = name, "looking: {error}"),
            }
        }
        vec![Seen::Down; keys.len()]
    }
}

/// Each has the followers whose names are its own.
#[async_trait]
impl Positions for Grouped {
    async fn claim(
        &self,
        follower: &str,
        ticket: Ticket,
        token: u64,
        patience: Duration,
    ) -> Result<Claim> {
        self.positions_of(follower)?.claim(follower, ticket, token, patience).await
    }

    async fn save(&self, follower: &str, ticket: Ticket, position: &str) -> Result<bool> {
        self.positions_of(follower)?.save(follower, ticket, position).await
    }

    async fn forget(&self, follower: &str) -> Result<()> {
        self.positions_of(follower)?.forget(follower).await
    }
}

/// What one of them has to do with a list of keys.
struct Part<'a> {
    store: &'a Arc<dyn Store>,
    places: Vec<usize>,
    keys: Vec<&'a str>,
}

#[async_trait]
impl Store for Grouped {
    fn now(&self) -> Millis {
        self.stores().map(|(_, store)| store.now()).max().unwrap_or(0)
    }

    fn leaves_alone(&self) -> bool {
        true
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        if keys.len() == 1 {
            return Ok(self.look(keys).await);
        }
        let parts = self.parts(keys);
        let looks = join_all(parts.iter().map(|part| self.look(&part.keys))).await;
        let mut found = vec![Seen::Nothing; keys.len()];
        for (part, seen) in parts.iter().zip(looks) {
            for (at, seen) in part.places.iter().zip(seen) {
                found[*at] = seen;
            }
        }
        Ok(found)
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.of(key).begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.of(key).fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.of(key).put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.of(key).give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        let parts = self.parts(keys);
        // All of them, also when one fails: each is worth something.
        let done = join_all(parts.iter().map(|part| part.store.invalidate(&part.keys, how))).await;
        done.into_iter().collect()
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        let parts = self.parts(keys);
        let done = parts.iter().map(|part| part.store.intend(&part.keys, writer, ttl));
        join_all(done).await.into_iter().collect()
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        let parts = self.parts(keys);
        let done = join_all(parts.iter().map(|part| part.store.settle(&part.keys, writer, how)));
        let mut all = Settled::Held;
        for settled in done.await {
            all = if settled? == Settled::Held { all } else { Settled::Lapsed };
        }
        Ok(all)
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        let keys: Vec<&str> = updates.iter().map(|(key, ..)| *key).collect();
        let parts = self.parts(&keys);
        let done = parts.iter().map(|part| async {
            let updates: Vec<_> = part.places.iter().map(|at| updates[*at]).collect();
            part.store.update(&updates, how).await
        });
        let mut stored = vec![false; updates.len()];
        for (part, done) in parts.iter().zip(join_all(done).await) {
            for (at, done) in part.places.iter().zip(done?) {
                stored[*at] = done;
            }
        }
        Ok(stored)
    }

    fn positions(&self) -> Option<&dyn Positions> {
        let all = self.stores().all(|(_, store)| store.positions().is_some());
        all.then_some(self as &dyn Positions)
    }

    async fn tag(&self, key: &str, tags: &[&str], time: Duration) -> Result<()> {
        let parts = self.parts(tags);
        let done = join_all(parts.iter().map(|part| part.store.tag(key, &part.keys, time))).await;
        done.into_iter().collect()
    }

    async fn tagged(&self, tag: &str, from: Cursor) -> Result<Page> {
        self.of(tag).tagged(tag, from).await
    }

    /// All of them, or it is no use: what is not heard of one is not known of the whole.
    fn follow(&self, prefix: &str, changes: &Arc<Watch>) -> bool {
        let parts = changes.split(self.stores().count());
        self.stores().zip(&parts).all(|((_, store), part)| store.follow(prefix, part))
    }

    /// One after the other. The part is the name of a store, and what that one calls its own.
    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        let (name, part) = from.part.split_once('\n').unwrap_or_default();
        let mut stores = self.stores().skip_while(|(store, _)| !name.is_empty() && *store != name);
        let Some((name, store)) = stores.next() else { return Ok(Page::default()) };
        let page = store.list(prefix, Cursor { part: part.to_owned(), at: from.at }).await?;
        let next = match (page.next, stores.next()) {
            (Some(Cursor { part, at }), _) => Some(Cursor { part: format!("{name}\n{part}"), at }),
            (None, Some((name, ..))) => Some(Cursor { part: format!("{name}\n"), at: 0 }),
            (None, None) => None,
        };
        Ok(Page { keys: page.keys, next })
    }
}

impl fmt::Debug for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.phases()).finish()
    }
}
