//! Parties that want one lock: ours in this process, ours in another one, and clients of other
//! libraries, all asked in the same words.
//!
//! A party takes one command at a time and may hold the lock several times, as far as its library
//! lets it. What is not possible (an unlock of what is not held, a library without fair locks) is
//! [`Answer::Failed`], which no test expects.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::{Error, Guard, Locks, WriteGuard};

use crate::peer::Peer;
use crate::taker::Taker;
use crate::wait::CASE;

/// In which way the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// As a mutex.
    Mutex,
    /// As a mutex, in the order of arrival.
    Fair,
    /// As a mutex that tells its token; ours always do.
    Fenced,
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// For reading, in the order of arrival.
    FairRead,
    /// For writing, in the order of arrival.
    FairWrite,
    /// As one of so many.
    Permit(u32),
}

impl Way {
    /// Whether several may have it at once.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::FairRead)
    }

    /// Whether it is one of several.
    pub const fn is_permit(self) -> bool {
        matches!(self, Self::Permit(_))
    }

    /// Whether it waits in line even where it need not.
    pub const fn is_fair(self) -> bool {
        matches!(self, Self::Fair | Self::FairRead | Self::FairWrite)
    }
}

/// What a party is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Take it if it is free.
    Try(Way),
    /// Take it, however long that takes.
    Lock(Way),
    /// Take it within this time.
    Within(Way, Duration),
    /// Give back one hold of this way.
    Unlock(Way),
    /// Go on reading instead of writing.
    Downgrade(Way),
    /// Say how often it is held in this way, as the server says.
    Count(Way),
    /// Make sure that the hold is not lost.
    Check,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the lock, under this token; 0: the library has none.
    Has(u64),
    /// It was not to be had.
    Busy,
    /// It is done.
    Done,
    /// So often.
    Count(usize),
    /// It went wrong.
    Failed(String),
}

/// Somebody who takes the lock.
#[async_trait]
pub trait Party: Send + 'static {
    /// Does as it is told.
    async fn ask(&mut self, ask: Ask) -> Answer;

    /// Tells from outside whether it waits, where the library does not do so at once.
    fn probe(&self) -> Option<Probe> {
        None
    }
}

/// Tells whether a thread of Redisson waits for a message.
///
/// One that has just been refused the lock misses the message that wakes all readers until it waits
/// for it, and then comes back only when the lease is over. Whoever wants to see it woken by that
/// message has to wait until it waits.
#[derive(Clone, Debug)]
pub struct Probe {
    peer: Weak<Peer>,
    label: String,
}

impl Probe {
    /// Whether it waits, or is gone.
    pub async fn is_blocked(&self) -> bool {
        match self.peer.upgrade() {
            Some(peer) => peer.ask(&self.label, "blocked").await == "true",
            None => true,
        }
    }
}

/// A client of ours in this process.
#[derive(Debug)]
pub struct Ours {
    locks: Locks,
    name: String,
    held: Vec<(Way, Held)>,
}

#[derive(Debug)]
enum Held {
    Guard(Guard),
    Writing(WriteGuard),
}

impl Held {
    fn guard(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Writing(guard) => guard,
        }
    }
}

impl Ours {
    /// Takes the lock of this name; reentrant if the locks are owned by somebody.
    pub fn new(locks: Locks, name: &str) -> Self {
        Self { locks, name: name.to_owned(), held: Vec::new() }
    }

    /// `wait`: `None` to try, zero to wait for ever.
    async fn take(&mut self, way: Way, wait: Option<Duration>) -> Result<Option<Held>, Error> {
        let (locks, name) = (&self.locks, self.name.as_str());
        if let Way::Mutex | Way::Fair | Way::Fenced = way {
            let mutex = locks.mutex(name);
            let mutex = if way == Way::Fair { mutex.fair() } else { mutex };
            let guard = match wait {
                None => mutex.try_lock().await?,
                Some(Duration::ZERO) => Some(mutex.lock().await?),
                Some(wait) => Some(mutex.lock_timeout(wait).await?),
            };
            return Ok(guard.map(Held::Guard));
        }
        if let Way::Permit(of) = way {
            let semaphore = locks.semaphore(name, of);
            let guard = match wait {
                None => semaphore.try_acquire().await?,
                Some(Duration::ZERO) => Some(semaphore.acquire().await?),
                Some(wait) => Some(semaphore.acquire_timeout(wait).await?),
            };
            return Ok(guard.map(Held::Guard));
        }
        let rw = locks.rw_lock(name);
        let rw = if way.is_fair() { rw.fair() } else { rw };
        Ok(match (way.is_read(), wait) {
            (true, None) => rw.try_read().await?.map(Held::Guard),
            (true, Some(Duration::ZERO)) => Some(Held::Guard(rw.read().await?)),
            (true, Some(wait)) => Some(Held::Guard(rw.read_timeout(wait).await?)),
            (false, None) => rw.try_write().await?.map(Held::Writing),
            (false, Some(Duration::ZERO)) => Some(Held::Writing(rw.write().await?)),
            (false, Some(wait)) => Some(Held::Writing(rw.write_timeout(wait).await?)),
        })
    }

    fn out(&mut self, way: Way) -> Option<Held> {
        let place = self.held.iter().rposition(|(held, _)| *held == way)?;
        Some(self.held.remove(place).1)
    }
}

#[async_trait]
impl Party for Ours {
    async fn ask(&mut self, ask: Ask) -> Answer {
        let taken = match ask {
            Ask::Try(way) => (way, self.take(way, None).await),
            Ask::Lock(way) => (way, self.take(way, Some(Duration::ZERO)).await),
            Ask::Within(way, wait) => (way, self.take(way, Some(wait)).await),
            Ask::Unlock(way) => {
                let Some(held) = self.out(way) else { return failed("does not hold it") };
                let released = match held {
                    Held::Guard(guard) => guard.release().await,
                    Held::Writing(guard) => guard.release().await,
                };
                return released.map_or_else(failed, |()| Answer::Done);
            }
            Ask::Downgrade(way) => {
                let Some(Held::Writing(guard)) = self.out(way) else { return failed("no writer") };
                let reads = if way.is_fair() { Way::FairRead } else { Way::Read };
                return match guard.downgrade().await {
                    Ok(guard) => {
                        self.held.push((reads, Held::Guard(guard)));
                        Answer::Done
                    }
                    Err(error) => failed(error),
                };
            }
            Ask::Count(_) => return failed("ours do not count"),
            Ask::Check => {
                let lost = self.held.iter().find_map(|(_, held)| held.guard().check().err());
                return lost.map_or(Answer::Done, failed);
            }
        };
        match taken {
            (way, Ok(Some(held))) => {
                let token = held.guard().token().get();
                self.held.push((way, held));
                Answer::Has(token)
            }
            (_, Ok(None) | Err(Error::Timeout { .. })) => Answer::Busy,
            (_, Err(error)) => failed(error),
        }
    }
}

fn failed(error: impl ToString) -> Answer {
    Answer::Failed(error.to_string())
}

/// A client of ours in a process of its own, which ends with a crash when this is dropped. Holds the
/// lock at most once.
#[derive(Debug)]
pub struct Elsewhere {
    taker: Taker,
    name: String,
    ttl: Duration,
}

impl Elsewhere {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot be started; the test binary must have a `taker_main`.
    pub async fn start(url: &str, name: &str, ttl: Duration) -> Self {
        Self { taker: Taker::spawn(url).await, name: name.to_owned(), ttl }
    }
}

#[async_trait]
impl Party for Elsewhere {
    async fn ask(&mut self, ask: Ask) -> Answer {
        let command = match ask {
            Ask::Try(Way::Mutex | Way::Fenced) => "try",
            Ask::Lock(Way::Mutex | Way::Fenced) => "lock",
            Ask::Lock(Way::Fair) => "fair",
            // As quickly as others let it: a taker has no fair ones.
            Ask::Lock(Way::Read | Way::FairRead) => "read",
            Ask::Lock(Way::Write | Way::FairWrite) => "write",
            Ask::Lock(Way::Permit(_)) => "permit",
            Ask::Unlock(_) => "release",
            _ => return failed("another process cannot do that"),
        };
        let (name, ttl) = (&self.name, self.ttl.as_millis());
        self.taker.send(&match ask {
            Ask::Unlock(_) => command.to_owned(),
            Ask::Lock(Way::Permit(of)) => format!("{command} {name} {of} ttl={ttl}"),
            _ => format!("{command} {name} ttl={ttl}"),
        });
        let answer = self.taker.answer_within(CASE).await;
        match answer.strip_prefix("ok ") {
            Some("released") => Answer::Done,
            Some("none") => Answer::Busy,
            Some(token) => token.parse().map_or_else(failed, Answer::Has),
            None => Answer::Failed(answer),
        }
    }
}

/// A thread of Redisson.
#[derive(Debug)]
pub struct Thread {
    peer: Arc<Peer>,
    label: String,
    name: String,
    /// Of the permits that it has.
    ids: Vec<String>,
}

impl Thread {
    /// The thread of this label.
    pub fn new(peer: &Arc<Peer>, label: &str, name: &str) -> Self {
        let (label, name) = (label.to_owned(), name.to_owned());
        Self { peer: Arc::clone(peer), label, name, ids: Vec::new() }
    }

    async fn say(&self, verb: &str, options: &str) -> Result<String, String> {
        let command = format!("{verb} {} {options}", self.name);
        self.peer.send(&self.label, &command).within(CASE).await
    }

    async fn take(&mut self, way: Way, wait: Option<Duration>) -> Answer {
        let bound = wait.map(|wait| format!("wait={}", wait.as_millis())).unwrap_or_default();
        let patient = wait == Some(Duration::ZERO);
        let answer = match (way, patient) {
            (Way::Permit(_), true) => self.say("permit.acquire", "lease=60000").await,
            (Way::Permit(_), false) => {
                self.say("permit.tryAcquire", &format!("lease=60000 {bound}")).await
            }
            (_, true) => self.say(&format!("{}lock", kind(way)), "").await,
            (_, false) => self.say(&format!("{}tryLock", kind(way)), &bound).await,
        };
        match answer.as_deref() {
            Ok("none" | "false") => Answer::Busy,
            Ok(id) if way.is_permit() => {
                self.ids.push(id.to_owned());
                Answer::Has(0)
            }
            Ok("" | "true") => Answer::Has(0),
            Ok(token) => token.parse().map_or_else(failed, Answer::Has),
            // How an old one says that the time was over before it could listen.
            Err(error) if !patient && error.contains("subscription lock") => Answer::Busy,
            Err(error) => failed(error),
        }
    }
}

/// How Redisson's objects are called in the peer's protocol.
fn kind(way: Way) -> &'static str {
    match way {
        Way::Mutex => "",
        Way::Fair => "fair.",
        Way::Fenced => "fenced.",
        Way::Read | Way::FairRead => "read.",
        Way::Write | Way::FairWrite => "write.",
        Way::Permit(_) => "permit.",
    }
}

#[async_trait]
impl Party for Thread {
    async fn ask(&mut self, ask: Ask) -> Answer {
        match ask {
            Ask::Try(way) => self.take(way, None).await,
            Ask::Lock(way) => self.take(way, Some(Duration::ZERO)).await,
            Ask::Within(way, wait) => self.take(way, Some(wait)).await,
            Ask::Unlock(Way::Permit(_)) => {
                let Some(id) = self.ids.pop() else { return failed("has no permit") };
                match self.say("permit.release", &format!("id={id}")).await.as_deref() {
                    Ok("true") => Answer::Done,
                    other => failed(format!("{other:?}")),
                }
            }
            Ask::Unlock(way) => {
                let unlocked = self.say(&format!("{}unlock", kind(way)), "").await;
                unlocked.map_or_else(failed, |_| Answer::Done)
            }
            Ask::Count(way) => {
                let count = self.say(&format!("{}holdCount", kind(way)), "").await;
                count.map_or_else(failed, |count| count.parse().map_or_else(failed, Answer::Count))
            }
            Ask::Check => Answer::Done,
            Ask::Downgrade(_) => failed("Redisson cannot do that"),
        }
    }

    fn probe(&self) -> Option<Probe> {
        Some(Probe { peer: Arc::downgrade(&self.peer), label: self.label.clone() })
    }
}

/// One that speaks `SET NX PX`: redis-py, redsync or node-redlock.
#[derive(Debug)]
pub struct Plain {
    peer: Arc<Peer>,
    label: String,
    name: String,
    ttl: Duration,
}

impl Plain {
    /// The owner of this label. Its locks live for `ttl`, and nobody renews them.
    pub fn new(peer: &Arc<Peer>, label: &str, name: &str, ttl: Duration) -> Self {
        Self { peer: Arc::clone(peer), label: label.to_owned(), name: name.to_owned(), ttl }
    }
}

#[async_trait]
impl Party for Plain {
    async fn ask(&mut self, ask: Ask) -> Answer {
        let (name, ttl) = (&self.name, self.ttl.as_millis());
        let command = match ask {
            Ask::Try(_) => format!("try {name} ttl={ttl}"),
            // Python counts time, the others count tries. For longer than any test takes:
            Ask::Lock(_) => format!("lock {name} ttl={ttl} delay=10 wait=600000 tries=60000"),
            Ask::Within(_, wait) => {
                let (wait, tries) = (wait.as_millis(), 1 + wait.as_millis() / 10);
                format!("lock {name} ttl={ttl} delay=10 wait={wait} tries={tries}")
            }
            Ask::Unlock(_) => format!("unlock {name}"),
            Ask::Check => return Answer::Done,
            _ => return failed("not for plain locks"),
        };
        let answer = self.peer.send(&self.label, &command).within(CASE).await;
        match (ask, answer.as_deref()) {
            (Ask::Try(_), Ok("false")) => Answer::Busy,
            (Ask::Try(_) | Ask::Lock(_) | Ask::Within(..), Ok(_)) => Answer::Has(0),
            (_, Ok(_)) => Answer::Done,
            (Ask::Within(..), Err(error)) if is_taken(error) => Answer::Busy,
            (_, Err(error)) => failed(error),
        }
    }
}

/// How the three say that they waited in vain.
fn is_taken(error: &str) -> bool {
    ["TimeoutError", "ErrTaken", "ResourceLockedError"].iter().any(|kind| error.starts_with(kind))
}
