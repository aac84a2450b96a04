//! A queue of writes in a stream, and a second stream for those that cannot be applied.

use std::fmt;
use std::str::from_utf8;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Script, Value as Reply};

use super::changes::{Listed, id, order};
use super::{BURY, DEQUEUE, ENQUEUE, FATE, Redis, Result, UNBURY, failed, millis, strange, text};
use crate::database::Order;
use crate::entry::Ticket;
use crate::error::{Error, Result as Outcome};
use crate::store::{Changes, Store};
use crate::through::{Backlog, Fate, Letter, Message, Queue, Queued, Retried};

/// A queue in Redis.
///
/// # How it works
///
/// What waits is a stream, its ids are the orders. What is buried is another one. The id of a write is a key of its own that
/// ends by itself, and while it waits it is in a hash as well, which has no end. All are in one slot of a cluster, and each step is
/// one script: whoever dies leaves nothing half done.
///
/// # What it promises
///
/// As much as that Redis: a write that was accepted is lost with a server that loses it. `appendonly yes` with `appendfsync
/// always`, `min-replicas-to-write`, and `maxmemory-policy noeviction`.
///
/// # Cost
///
/// One round trip for each call; two to retry or discard a letter. For each write about 250 bytes besides its key and value while it
/// waits, and about 150 for its id for as long as that is [remembered](Self::remember).
pub struct RedisQueue {
    redis: Redis,
    name: String,
    log: String,
    bound: usize,
    letters: usize,
    remember: Duration,
}

impl RedisQueue {
    /// The queue with this name at the servers of a URL, as for [`Redis::connect_warm`]: what waits must count after a fail-over.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a name that is empty or begins with `}`; [`Error::Store`] when the server cannot be reached.
    pub async fn connect(url: &str, name: impl Into<String>) -> Outcome<Self> {
        let name = name.into();
        if name.is_empty() || name.starts_with('}') {
            // Nothing between braces is no tag, and the keys would be in several slots.
            return Err(Error::Config("a queue needs a name that does not begin with }".into()));
        }
        let connected = Redis::connect_warm(url).await;
        let redis = connected.map_err(|source| Error::Store { what: "a queue", source })?;
        let log = format!("{{{name}}}!queue");
        let remember = Duration::from_secs(600);
        Ok(Self { redis, name, log, bound: 10_000, letters: 1000, remember })
    }

    /// No more than so many writes wait. Default 10,000. More: longer peaks are taken in, and applied later. All
    /// processes should say the same.
    #[must_use]
    pub fn bound(self, bound: usize) -> Self {
        Self { bound, ..self }
    }

    /// No more than so many letters are kept. Default 1,000. What cannot be buried then holds up its key.
    #[must_use]
    pub fn max_letters(self, letters: usize) -> Self {
        Self { letters, ..self }
    }

    /// For so long the id of a write is known after it was applied, or became a letter, or that was discarded: the same write is not
    /// appended again. While it waits it is known, however long that takes. Default 10 min; at least a millisecond. All
    /// processes should say the same.
    #[must_use]
    pub fn remember(self, time: Duration) -> Self {
        Self { remember: time.max(Duration::from_millis(1)), ..self }
    }

    /// The keys of the queue, its letters, which writes are letters, and which ids wait.
    fn keys(&self) -> [String; 4] {
        let parts = ["", "!letters", "!buried", "!waiting"];
        parts.map(|part| self.redis.key(&format!("{}{part}", self.log)).into_owned())
    }

    /// Where it is remembered that there was a write with this id.
    fn id_key(&self, id: &str) -> String {
        self.redis.key(&format!("{}!id:{id}", self.log)).into_owned()
    }

    fn remembered(&self) -> Vec<u8> {
        text(millis(self.remember))
    }

    /// Runs a step in which a write with this id goes from one place to another: the id is the last key and the last argument. What
    /// others have put there may have none.
    async fn step(
        &self,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
        id: Option<&str>,
    ) -> Result<Vec<Reply>> {
        let key = id.map(|id| self.id_key(id));
        let keys: Vec<&str> = keys.iter().chain(&key).map(String::as_str).collect();
        let args: Vec<&[u8]> = args.iter().copied().chain(id.map(str::as_bytes)).collect();
        self.redis.run(script, &keys, &args).await
    }

    async fn count(&self, key: &str) -> Result<usize> {
        let mut count = redis::cmd("XLEN");
        self.redis.servers.keyspace.query(key, count.arg(key)).await.map_err(failed)
    }

    async fn page(&self, log: &str, after: Option<Order>, most: usize) -> Result<Listed> {
        let from = after.map_or_else(|| "-".to_owned(), |after| id(next(after)));
        self.redis.list(log, "XRANGE", [&from, "+"], most).await
    }

    async fn unbury(&self, letter: Order, most: &[u8]) -> Result<Vec<Reply>> {
        let (at, letters) = (id(letter), format!("{}!letters", self.log));
        // What a letter says never changes.
        let found = self.redis.list(&letters, "XRANGE", [&at, &at], 1).await?;
        let Some((_, fields)) = found.first() else { return Ok(vec![Reply::Nil]) };
        let args = [at.as_bytes(), most, &self.remembered()];
        self.step(&UNBURY, &self.keys(), &args, word(fields, "id")).await
    }
}

/// The first place behind this one.
fn next(order: Order) -> Order {
    match order.seq().checked_add(1) {
        Some(seq) => Order::new(order.ms(), seq),
        None => Order::new(order.ms() + 1, 0),
    }
}

/// What is in a field.
fn field<'a>(fields: &'a [Vec<u8>], name: &str) -> Option<&'a [u8]> {
    let mut pairs = fields.chunks_exact(2).filter_map(|pair| pair.first().zip(pair.last()));
    pairs.find(|(key, _)| key.as_slice() == name.as_bytes()).map(|(_, content)| content.as_slice())
}

fn word<'a>(fields: &'a [Vec<u8>], name: &str) -> Option<&'a str> {
    from_utf8(field(fields, name)?).ok()
}

fn message(fields: &[Vec<u8>]) -> Option<Message> {
    let [id, key] = ["id", "key"].map(|name| word(fields, name).map(str::to_owned));
    let schema = word(fields, "schema")?.parse().ok()?;
    Some(Message { id: id?, key: key?, schema, value: field(fields, "value").map(<[u8]>::to_vec) })
}

fn letter(at: &str, fields: &[Vec<u8>]) -> Option<Letter> {
    let at = order(at)?;
    Some(Letter {
        id: at,
        at: at.ms(),
        order: order(word(fields, "order")?)?,
        why: String::from_utf8_lossy(field(fields, "why")?).into_owned(),
        attempts: word(fields, "attempts")?.parse().ok()?,
        message: message(fields),
    })
}

fn place(reply: &[Reply], at: &[u8]) -> Result<Order> {
    from_utf8(at).ok().and_then(order).ok_or_else(|| strange(reply))
}

#[async_trait]
impl Queue for RedisQueue {
    fn name(&self) -> &str {
        &self.name
    }

    async fn append(&self, message: &Message) -> Result<Option<Order>> {
        let Message { id, key, schema, value } = message;
        let ([queue, _, _, waiting], known) = (self.keys(), self.id_key(id));
        let (bound, time) = (self.bound.to_string(), self.remembered());
        let schema = schema.to_string();
        let mut args: Vec<&[u8]> = vec![bound.as_bytes(), &time];
        args.extend([&b"id"[..], id.as_bytes(), b"key", key.as_bytes()]);
        args.extend([&b"schema"[..], schema.as_bytes()]);
        if let Some(value) = value {
            args.extend([b"value", value.as_slice()]);
        }
        let reply = self.redis.run(&ENQUEUE, &[&queue, &waiting, &known], &args).await?;
        match &reply[..] {
            [_] => Ok(None),
            [_, Reply::BulkString(at)] => place(&reply, at).map(Some),
            _ => Err(strange(&reply)),
        }
    }

    async fn read(&self, after: Option<Order>, most: usize) -> Result<Vec<Queued>> {
        let listed = self.page(&self.log, after, most).await?;
        let queued = listed
            .iter()
            .map(|(id, fields)| Some(Queued { order: order(id)?, message: message(fields) }));
        queued.collect::<Option<_>>().ok_or_else(|| strange(&[]))
    }

    async fn done(&self, queued: &Queued) -> Result<()> {
        let ([queue, _, _, waiting], at) = (self.keys(), id(queued.order));
        let args = [at.as_bytes(), &self.remembered()];
        self.step(&DEQUEUE, &[queue, waiting], &args, queued.id()).await.map(|_| ())
    }

    async fn bury(&self, queued: &Queued, why: &str, attempts: u32) -> Result<bool> {
        let (at, most, attempts) =
            (id(queued.order), self.letters.to_string(), attempts.to_string());
        let (most, attempts) = (most.as_bytes(), attempts.as_bytes());
        let args = [at.as_bytes(), most, why.as_bytes(), attempts, &self.remembered()];
        let reply = self.step(&BURY, &self.keys(), &args, queued.id()).await?;
        Ok(matches!(reply[..], [_, Reply::Int(1)]))
    }

    async fn fate(&self, order: Order) -> Result<Fate> {
        let [queue, _, buried, _] = self.keys();
        let reply = self.redis.run(&FATE, &[&queue, &buried], &[id(order).as_bytes()]).await?;
        match reply[..] {
            [_, Reply::Int(0)] => Ok(Fate::Waits),
            [_, Reply::Int(1)] => Ok(Fate::Buried),
            [_, Reply::Int(2)] => Ok(Fate::Gone),
            _ => Err(strange(&reply)),
        }
    }

    async fn letters(&self, after: Option<Order>, most: usize) -> Result<Vec<Letter>> {
        let listed = self.page(&format!("{}!letters", self.log), after, most).await?;
        let letters = listed.iter().map(|(id, fields)| letter(id, fields));
        letters.collect::<Option<_>>().ok_or_else(|| strange(&[]))
    }

    async fn retry(&self, letter: Order) -> Result<Retried> {
        let reply = self.unbury(letter, self.bound.to_string().as_bytes()).await?;
        match &reply[..] {
            [_] => Ok(Retried::Gone),
            [_, Reply::Int(0)] => Ok(Retried::Full),
            [_, Reply::BulkString(at)] => place(&reply, at).map(Retried::Waits),
            _ => Err(strange(&reply)),
        }
    }

    async fn discard(&self, letter: Order) -> Result<bool> {
        Ok(self.unbury(letter, b"").await?.len() > 1)
    }

    async fn backlog(&self) -> Result<Backlog> {
        let [queue, letters, ..] = self.keys();
        let counts = (self.count(&queue), self.count(&letters), self.page(&self.log, None, 1));
        let (pending, letters, first) = tokio::join!(counts.0, counts.1, counts.2);
        let first = first?.first().and_then(|(id, _)| order(id));
        let age = |first: Order| Duration::from_millis(self.redis.now().saturating_sub(first.ms()));
        Ok(Backlog { pending: pending?, oldest: first.map(age), letters: letters? })
    }

    async fn lead(&self, ticket: Ticket, time: Duration) -> Result<bool> {
        Changes::lead(&self.redis, &self.log, ticket, time).await
    }

    async fn resign(&self, ticket: Ticket) -> Result<()> {
        Changes::resign(&self.redis, &self.log, ticket).await
    }
}

impl fmt::Debug for RedisQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { redis, name, bound, letters, .. } = self;
        let mut queue = f.debug_struct("RedisQueue");
        queue.field("redis", redis).field("name", name).field("bound", bound);
        queue.field("letters", letters).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_between_a_place_and_the_next() {
        assert_eq!(next(Order::new(5, 7)), Order::new(5, 8));
        assert_eq!(next(Order::new(5, u64::MAX)), Order::new(6, 0));
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        let fields = |words: &[&str]| -> Vec<Vec<u8>> {
            words.iter().map(|word| word.as_bytes().to_vec()).collect()
        };
        let ours = fields(&["id", "1", "key", "value", "schema", "2", "value", "x"]);
        let read = message(&ours).unwrap();
        assert_eq!((read.key.as_str(), read.value.as_deref()), ("value", Some(&b"x"[..])));
        assert_eq!(message(&ours[..6]).unwrap().value, None);
        for wrong in [&["a", "b"][..], &["id", "1", "key", "2", "schema", "x"], &["id"]] {
            assert_eq!(message(&fields(wrong)), None);
        }
    }
}
