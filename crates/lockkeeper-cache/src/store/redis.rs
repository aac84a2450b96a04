//! Entries at a Redis server, at the master that sentinels name, or in a cluster.

mod changes;
mod deletes;
mod list;
mod positions;
mod queue;
mod servers;

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use futures_util::future::join_all;
use lockkeeper::backend::redis::keyspace::Follower;
use lockkeeper::clock::Instant;
use redis::{Cmd, FromRedisValue, Script, Value as Reply};

pub use self::queue::RedisQueue;
pub(crate) use self::servers::Servers;
use super::{Changes, Cursor, Deletes, Page, Positions, Result, Seen, Store, millis};
use crate::entry::{Begun, Entry, Filled, Invalidation, Lease, Millis, Settled, Ticket, Value};
use crate::error::StoreError;
use crate::filter::FilterError;
use crate::filter::redis::RedisFilter;
use crate::first::Watch;

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("redis/", $file))
    };
}

fn script(parts: &[&str]) -> Script {
    Script::new(&[lua!("head.lua"), &parts.concat()].concat())
}

macro_rules! scripts {
    ($($name:ident = $($part:expr),+;)+) => {
        $(static $name: LazyLock<Script> = LazyLock::new(|| script(&[$($part),+]));)+
    };
}

scripts! {
    APPEND = lua!("append.lua");
    APPLIED = lua!("invalidate_one.lua"), lua!("applied.lua");
    CLAIM = lua!("claim.lua");
    BURY = lua!("remember.lua"), lua!("bury.lua");
    DEQUEUE = lua!("remember.lua"), lua!("dequeue.lua");
    ENQUEUE = lua!("enqueue.lua");
    FATE = lua!("fate.lua");
    DONE = lua!("done.lua");
    DUE = lua!("due.lua");
    PUT = lua!("put.lua");
    INVALIDATE = lua!("invalidate_one.lua"), lua!("invalidate.lua");
    INTEND = lua!("intend.lua");
    // All that a load does, so that a server that has granted a lease knows how to fill, too: no answer is waited for then.
    LEASE = "local step = table.remove(ARGV, 1)\nif step == 'begin' then\n", lua!("begin.lua"),
        "elseif step == 'fill' then\n", lua!("fill.lua"), "else\n", lua!("give_up.lua"), "end\n";
    LEAD = lua!("lead.lua");
    RESIGN = lua!("resign.lua");
    SAVE = lua!("save.lua");
    SCHEDULE = lua!("schedule.lua");
    SETTLE = lua!("invalidate_one.lua"), lua!("settle.lua");
    TAG = lua!("tag.lua");
    UNBURY = lua!("remember.lua"), lua!("unbury.lua");
    UPDATE = lua!("invalidate_one.lua"), lua!("update.lua");
}

/// Entries in Redis, shared by all processes that use the same servers.
///
/// # How it works
///
/// An entry is a string, so a hit is a plain `GET` and many are one `MGET`. Each other step is one script with one key,
/// or with several keys of one slot. The time is the server's.
///
/// # What it promises
///
/// Each step as a whole. A server that is started again with old data, and a replica that takes over without the last
/// steps, bring nothing back: each entry names the server that took it in, and what another one has written counts as
/// forgotten. So everything is loaded anew after a fail-over, and what is in a slot of a cluster after that slot has
/// moved; [`connect_warm`](Self::connect_warm) gives that up.
///
/// # When it breaks
///
/// A master that was replaced and does not know it yet is read from until the client hears of the new one: with
/// sentinels within about two seconds, in a cluster and behind one address for as long as it answers. Where servers of a cluster do not agree about the time, ages are wrong by as much.
/// Servers that evict keys forget intents as well: give them `volatile-ttl` or enough memory.
///
/// # Cost
///
/// One round trip for each step on one connection for all, and another connection that listens; one more round trip,
/// every five seconds, for `INFO`. 83 bytes for each value besides its key.
pub struct Redis {
    servers: Arc<Servers>,
    /// What to add to our clock to get the server's, at most.
    ahead_ms: AtomicI64,
}

impl Redis {
    /// Connects to the servers of a URL: `redis:`, `rediss:`, or either with `+sentinel` or `+cluster`, as
    /// [`Url`](lockkeeper::Url) describes them. Of the options, `prefix` and those of TLS count.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::StoreError> {
    /// let store = lockkeeper_cache::Redis::connect("redis://localhost").await?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the URL makes no sense, the server cannot be reached, or its user may not send `INFO`. What a cache does
    /// [while its store is down](crate::Builder::when_down) is about a store that was there: a program that is to start
    /// without one has to try this again, and reads the database meanwhile.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::open(url, false).await
    }

    /// The same, but what other servers have written counts: the cache is warm after a fail-over, and a server may
    /// be started again with the data that it had.
    ///
    /// # When it breaks
    ///
    /// A replica that takes over may not have the last invalidations, and a server that is started again may have
    /// data that is older than they are: what they took away is then there again, until its time to live ends. All
    /// that share a cache must connect in the same way: else each takes what the others fill for something old.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect); `INFO` is not needed.
    pub async fn connect_warm(url: &str) -> Result<Self> {
        Self::open(url, true).await
    }

    async fn open(url: &str, warm: bool) -> Result<Self> {
        let servers = Arc::new(Servers::connect(url, warm).await.map_err(failed)?);
        let store = Self { servers, ahead_ms: AtomicI64::new(0) };
        let sent = local_ms();
        let ((secs, micros), _): ((u64, u64), _) = store.query("", &redis::cmd("TIME")).await?;
        store.set_clock(secs * 1000 + micros / 1000, sent);
        Ok(store)
    }

    /// The filter of that name at the same servers, through the same connections, for
    /// [`Builder::filter`](crate::Builder::filter). Sends nothing yet.
    ///
    /// It names the server that took it in, as entries do: after a fail-over, or a restart with old data, it knows nothing
    /// until it was [rebuilt](crate::filter::rebuild). After [`connect_warm`](Self::connect_warm) it
    /// goes on with what the server has, and says [`Absent`](crate::filter::Verdict::Absent) of what was
    /// inserted last and is not there.
    ///
    /// # Errors
    ///
    /// When the name is empty or has braces, which mean something in a cluster.
    pub fn filter(&self, name: &str) -> std::result::Result<RedisFilter, FilterError> {
        RedisFilter::at(Arc::clone(&self.servers), name)
    }

    async fn query<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<(T, u64)> {
        self.servers.ask(key, command).await.map_err(failed)
    }

    fn key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        self.servers.key(key)
    }

    /// Learns the server's time from an answer to what was sent then.
    fn set_clock(&self, now: Millis, sent: Millis) {
        self.ahead_ms.store(now.wrapping_sub(sent).cast_signed(), Ordering::Relaxed);
    }

    /// Runs a script on keys that are in one place. Its answer begins with the time.
    async fn run(&self, script: &Script, keys: &[&str], args: &[&[u8]]) -> Result<Vec<Reply>> {
        self.answer(self.servers.run(script, keys, args)).await
    }

    /// The end of a load, under its lease.
    async fn under_lease(&self, key: &str, args: &[&[u8]]) -> Result<Vec<Reply>> {
        self.answer(self.servers.go_on(&LEASE, &[&self.key(key)], args)).await
    }

    async fn answer(
        &self,
        running: impl Future<Output = lockkeeper::Result<Vec<Reply>>> + Send,
    ) -> Result<Vec<Reply>> {
        let sent = local_ms();
        let reply = running.await.map_err(failed)?;
        let Some(Reply::Int(now)) = reply.first() else { return Err(strange(&reply)) };
        self.set_clock(now.cast_unsigned(), sent);
        Ok(reply)
    }

    /// Runs a script on many keys: once for each place, all at the same time. They share a connection, so
    /// that is one round trip.
    async fn run_many(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Vec<Vec<Reply>>> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
        let parts = self.parts(&keys);
        let runs = parts.iter().map(|(_, part)| self.run(script, part, args));
        // All of them, also when one fails: each is worth something.
        join_all(runs).await.into_iter().collect()
    }

    /// Looks at keys that are in one place.
    async fn look(&self, part: &[&str]) -> Result<Vec<Seen>> {
        let mut get = redis::cmd("MGET");
        let (found, by): (Vec<Option<Vec<u8>>>, _) = self.query(part[0], get.arg(part)).await?;
        Ok(found.into_iter().map(|bytes| seen(bytes, by)).collect())
    }

    async fn get_many(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
        let parts = self.parts(&keys);
        // As it is without a cluster, and then there is nothing to put together.
        if let [(_, part)] = &parts[..] {
            return self.look(part).await;
        }
        let mut found = vec![Seen::Down; keys.len()];
        let looks = join_all(parts.iter().map(|(_, part)| self.look(part))).await;
        let (mut answered, mut failed) = (parts.is_empty(), None);
        for ((places, _), look) in parts.iter().zip(looks) {
            match look {
                Ok(seen) => {
                    answered = true;
                    places.iter().zip(seen).for_each(|(at, seen)| found[*at] = seen);
                }
                // Of its own keys alone nothing is known.
                Err(error) => {
                    tracing::warn!(%error, "one of the servers does not answer");
                    failed = Some(error);
                }
            }
        }
        match failed.filter(|_| !answered) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// Keys that may be in one command, with the place of each in the list.
    fn parts<'a>(&self, keys: &'a [Cow<'_, str>]) -> Vec<(Vec<usize>, Vec<&'a str>)> {
        let place = |key: &Cow<'_, str>| self.servers.keyspace.place(key);
        if let [first, rest @ ..] = keys
            && rest.iter().all(|key| place(key) == place(first))
        {
            return vec![((0..keys.len()).collect(), keys.iter().map(|key| &**key).collect())];
        }
        let mut parts: indexmap::IndexMap<u16, (Vec<usize>, Vec<&'a str>)> = Default::default();
        for (at, key) in keys.iter().enumerate() {
            let part = parts.entry(place(key)).or_default();
            part.0.push(at);
            part.1.push(key);
        }
        parts.into_values().collect()
    }
}

fn local_ms() -> Millis {
    Instant::now().as_nanos() / 1_000_000
}

fn failed(error: lockkeeper::Error) -> StoreError {
    StoreError::new("redis", error)
}

/// Whether there is a list, or the like.
fn is_of_others(error: &lockkeeper::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<redis::RedisError>());
    source.is_some_and(|error| error.code() == Some("WRONGTYPE"))
}

/// Without what is in it: that may be a value, which is nothing for a log.
fn strange(reply: &[Reply]) -> StoreError {
    let kinds = reply.iter().map(|part| match part {
        Reply::Nil => "nil".to_owned(),
        Reply::Int(number) => number.to_string(),
        Reply::BulkString(bytes) => format!("{} bytes", bytes.len()),
        _ => "something else".to_owned(),
    });
    let kinds: Vec<String> = kinds.collect();
    StoreError::new("redis", format!("an answer that makes no sense: {}", kinds.join(", ")))
}

/// What a server has under a key, as far as it has written that itself.
fn seen(stored: Option<Vec<u8>>, by: u64) -> Seen {
    let Some(stored) = stored else { return Seen::Nothing };
    let mut stored = Bytes::from(stored);
    match stored.try_get_u64() {
        Err(_) => Seen::Unreadable,
        Ok(wrote) if wrote != by => Seen::Nothing,
        Ok(_) => Entry::read(stored).map_or(Seen::Unreadable, Seen::Entry),
    }
}

fn text(number: Millis) -> Vec<u8> {
    number.to_string().into_bytes()
}

#[async_trait]
impl Store for Redis {
    fn now(&self) -> Millis {
        local_ms().wrapping_add(self.ahead_ms.load(Ordering::Relaxed).cast_unsigned())
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        match keys {
            [key] => Ok(vec![self.get_one(key).await?]),
            keys => self.get_many(keys).await,
        }
    }

    async fn get_one(&self, key: &str) -> Result<Seen> {
        let (key, mut get) = (self.key(key), redis::cmd("GET"));
        match self.servers.ask::<Option<Vec<u8>>>(&key, get.arg(&*key)).await {
            Ok((bytes, by)) => Ok(seen(bytes, by)),
            // Of this key it says nothing, and of the server not that it is down.
            Err(error) if is_of_others(&error) => Ok(Seen::Unreadable),
            Err(error) => Err(failed(error)),
        }
    }

    fn answers_within(&self) -> Option<Duration> {
        self.servers.keyspace.answers_within()
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        let (lease, except) = (text(millis(lease)), except.map(Ticket::to_bytes));
        let except: &[u8] = except.as_ref().map_or(&[], |except| except);
        let key = self.key(key);
        let reply =
            self.run(&LEASE, &[&key], &[b"begin", &ticket.to_bytes(), &lease, except]).await?;
        match &reply[..] {
            [Reply::Int(now), Reply::BulkString(floor)] => {
                let floor = <[u8; 8]>::try_from(&floor[..]).map_err(|_| strange(&reply))?;
                let (floor, now) = (u64::from_be_bytes(floor), now.cast_unsigned());
                Ok(Begun::Granted { floor, now })
            }
            [_, _, Reply::BulkString(entry)] => {
                let entry = Entry::decode(entry).ok_or_else(|| strange(&reply))?;
                Ok(Begun::There(entry))
            }
            _ => Err(strange(&reply)),
        }
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        let entry = Entry::Value(Value { lease: Lease::NONE, ..value.clone() }).encode();
        let reply = self.under_lease(key, &[b"fill", &entry, &text(millis(ttl))]).await?;
        match &reply[..] {
            [_, Reply::Int(1)] => Ok(Filled::Done),
            [_, Reply::Int(0)] => Ok(Filled::Gone),
            [_, Reply::Int(-1)] => Ok(Filled::Late),
            [_, Reply::Int(-2)] => Ok(Filled::Older),
            _ => Err(strange(&reply)),
        }
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        let entry = Entry::Value(Value { lease: Lease::NONE, ..value.clone() }).encode();
        self.run(&PUT, &[&self.key(key)], &[&entry, &text(millis(ttl))]).await.map(|_| ())
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.under_lease(key, &[b"give up", &ticket.to_bytes()]).await.map(|_| ())
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        let (floor, floor_ms, keep_ms) = words(how);
        self.run_many(&INVALIDATE, keys, &[&floor, &floor_ms, &keep_ms]).await.map(|_| ())
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        let ttl = text(millis(ttl));
        self.run_many(&INTEND, keys, &[&writer.to_bytes(), &ttl]).await.map(|_| ())
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        let (floor, floor_ms, keep_ms) = words(how);
        let arguments: [&[u8]; 4] = [&writer.to_bytes(), &floor, &floor_ms, &keep_ms];
        let replies = self.run_many(&SETTLE, keys, &arguments).await?;
        let held = replies.iter().all(|reply| matches!(reply[..], [_, Reply::Int(1)]));
        Ok(if held { Settled::Held } else { Settled::Lapsed })
    }

    fn changes(&self) -> Option<&dyn Changes> {
        // What waits for the database must count after a fail-over, too.
        self.servers.warm.then_some(self as &dyn Changes)
    }

    fn deletes(&self) -> Option<&dyn Deletes> {
        Some(self)
    }

    fn positions(&self) -> Option<&dyn Positions> {
        // An invalidation that a fail-over has lost would be undone there, and the position be past it.
        (!self.servers.warm).then_some(self as &dyn Positions)
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        let (_, floor_ms, keep_ms) = words(how);
        let keys: Vec<_> = updates.iter().map(|(key, ..)| self.key(key)).collect();
        let parts = self.parts(&keys).into_iter().map(|(places, part)| {
            let each = places.iter().flat_map(|at| {
                let (_, value, ttl) = updates[*at];
                [Entry::Value(value.clone()).encode(), text(millis(ttl))]
            });
            let args: Vec<Vec<u8>> =
                [floor_ms.clone(), keep_ms.clone()].into_iter().chain(each).collect();
            async move {
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                (places, self.run(&UPDATE, &part, &args).await)
            }
        });
        let mut stored = vec![false; updates.len()];
        // All of them, also when one fails: each is worth something.
        for (places, reply) in join_all(parts).await {
            let reply = reply?;
            for (at, reply) in places.into_iter().zip(&reply[1..]) {
                stored[at] = *reply == Reply::Int(1);
            }
        }
        Ok(stored)
    }

    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        list::keys(&self.servers.keyspace, prefix, from).await
    }

    async fn tag(&self, key: &str, tags: &[&str], time: Duration) -> Result<()> {
        self.run_many(&TAG, tags, &[key.as_bytes(), &text(millis(time))]).await.map(|_| ())
    }

    async fn tagged(&self, tag: &str, from: Cursor) -> Result<Page> {
        list::members(&self.servers.keyspace, &self.key(tag), from).await
    }

    fn follow(&self, prefix: &str, changes: &Arc<Watch>) -> bool {
        let servers = &self.servers.keyspace;
        let ear = Ear { prefix: servers.prefix().len(), changes: Arc::downgrade(changes) };
        servers.follow(&self.key(prefix), changes.interval(), ear);
        true
    }
}

/// Hears under which keys something has changed, without what the URL puts before them.
struct Ear {
    prefix: usize,
    changes: Weak<Watch>,
}

impl Follower for Ear {
    fn is_there(&self) -> bool {
        self.changes.strong_count() > 0
    }

    fn changed(&self, key: &[u8]) {
        if let (Some(changes), Some(name)) = (self.changes.upgrade(), key.get(self.prefix..)) {
            changes.changed(name);
        }
    }

    fn missed(&self) {
        if let Some(changes) = self.changes.upgrade() {
            changes.missed();
        }
    }

    fn now(&self) -> u64 {
        Watch::now()
    }

    fn caught_up(&self, then: u64) {
        if let Some(changes) = self.changes.upgrade() {
            changes.caught_up(then);
        }
    }
}

fn words(how: Invalidation) -> ([u8; 8], Vec<u8>, Vec<u8>) {
    (how.floor.to_be_bytes(), text(how.floor_ms), text(how.keep_ms))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("servers", &self.servers).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_described_and_not_shown() {
        let reply = [Reply::Int(7), Reply::Nil, Reply::BulkString(b"secret".to_vec())];
        let error = strange(&reply);
        let told = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(told.contains("7, nil, 6 bytes") && !told.contains("secret"), "{told}");
        assert!(!told.contains("115"), "{told}");
    }
}
