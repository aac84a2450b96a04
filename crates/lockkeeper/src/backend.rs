//! The contract between the primitives and the stores.
//!
//! A backend knows how to take, keep and give back one hold on one name; nothing else. Everything a
//! user sees (guards, hand-over inside a process, reentrancy, renewal, loss) is written once above
//! this line, and nothing above it knows a store.
//!
//! # What a backend promises
//!
//! 1. **Exclusion** as its [`Kind`] says, judged by the store's clock.
//! 2. **Tokens only grow**, per name, and are issued in the same atomic step as the grant.
//! 3. **Every request is idempotent**: it carries a [`RequestId`], and a resend finds its own grant.
//! 4. **Giving up leaves nothing**: when the future of [`Backend::acquire`] is dropped or fails,
//!    neither a hold nor a place in a queue stays behind; what cannot be undone at once is undone in
//!    the background until the lease would have ended.
//! 5. **Unknown is a value**: an `Err` from [`Hold::renew`] or [`Hold::release`] means that the
//!    outcome is not known, never that it failed.
//! 6. What it cannot do is [`Error::Unsupported`], never a stub.
//!
//! The conformance suite checks all of it; see CONTRIBUTING for how to add a backend.

mod cells;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
mod register;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use self::cells::{Cell, Cells, Write};

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::{Cause, Loss};
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::{Token, TokenBlock};

/// A store of locks.
///
/// It is [`Any`], so that a backend can offer more than every store has.
#[async_trait]
pub trait Backend: Any + fmt::Debug + Send + Sync + 'static {
    /// What the store is called in messages: the scheme of its URL.
    fn name(&self) -> &'static str;

    /// Where the store is, without any password. Two backends with the same place exclude each
    /// other; multi-locks take their members in the order of these.
    fn place(&self) -> &str;

    /// What the store can do. Asking for more is an error, raised above this trait.
    fn capabilities(&self) -> Capabilities;

    /// Takes a hold, waiting as long as the request's [`Patience`] allows. `None`: it ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a hold nor a place in a queue.
    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>>;

    /// Takes several holds in one step, all or none, without waiting. `None`: not all of them were to
    /// be had, or the store cannot do that; they are then taken one after the other.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    async fn acquire_all(
        self: Arc<Self>,
        requests: &[Request],
    ) -> Result<Option<Vec<Arc<dyn Hold>>>> {
        let _ = requests;
        Ok(None)
    }

    /// Something that counts as this process being alive for as long as any process has it open,
    /// for stores that free a lock when its process dies: whoever ends the work of a dead holder
    /// keeps it open until that is done. `None` where leases alone decide.
    ///
    /// # Errors
    ///
    /// When it cannot be duplicated.
    fn lifeline(&self) -> io::Result<Option<OwnedFd>>;

    /// Looking and forcing.
    fn admin(&self) -> &dyn Admin;

    /// Countdown latches, where the store has them.
    fn latches(&self) -> Option<&dyn Latches>;

    /// Values that are compared and set, where the store has them.
    fn cells(&self) -> Option<&dyn Cells> {
        None
    }

    /// What locks inside a transaction of the caller's need, where the store has such a thing.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }
}

/// What a lock inside a transaction needs besides the transaction.
#[async_trait]
pub trait Transactions: Send + Sync {
    /// The name as the store knows it.
    fn key(&self, name: &Name) -> Vec<u8>;

    /// Makes what there must be to lock, and says which database of which server this is.
    async fn prepare(&self, key: &[u8]) -> Result<String>;

    /// A token that is larger than all before. Committed apart from the transaction.
    async fn draw(&self) -> Result<Token>;
}

/// One hold: proof that the store granted a request, and the means to keep it and to give it back.
///
/// The store may find the hold gone at any time; every method checks that it is still *this* hold.
///
/// It is [`Any`], so that a backend can offer more for its own holds than every store has.
#[async_trait]
pub trait Hold: Any + fmt::Debug + Send + Sync + 'static {
    /// The tokens that came with the grant.
    fn tokens(&self) -> TokenBlock;

    /// When the lease ends if it is never renewed, counted from *before* the granting request was
    /// sent. `None`: no lease; it lives exactly as long as this process.
    fn expires_at(&self) -> Option<Instant>;

    /// Set by the keeper, or by the backend when it learns of the loss first.
    fn loss(&self) -> &Loss;

    /// Lets the lease end `ttl` from now. An error means that the outcome is not known.
    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal>;

    /// Turns a hold for writing into one for reading without letting another writer in between.
    async fn downgrade(self: Arc<Self>) -> Result<Renewal>;

    /// Keeps the hold for the next task of this process, but lets the store take it away without a
    /// word as soon as anybody else asks for the name. `false`: the store cannot do that.
    fn park(&self) -> bool;

    /// Takes a parked hold up again. `false`: somebody else asked meanwhile.
    fn unpark(&self) -> bool;

    /// Gives the hold back. Harmless when repeated, and when a renewal is still under way. An error
    /// means that the outcome is not known.
    async fn release(self: Arc<Self>) -> Result<Release>;
}

/// Looking at a store, and forcing it.
#[async_trait]
pub trait Admin: Send + Sync {
    /// Every name that is held, waited for, or a latch, in order of name.
    async fn list(&self) -> Result<Vec<Status>>;

    /// One name. A free one has neither holders nor waiters.
    async fn show(&self, name: &Name) -> Result<Status>;

    /// Takes the name away from its holders, tells them why, and raises the token so that none of
    /// theirs is the latest. The first waiter gets it at once.
    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction>;
}

/// Countdown latches.
#[async_trait]
pub trait Latches: Send + Sync {
    /// Closes the latch with this count unless it is closed already; whether it was open. Left
    /// alone for `ttl` it goes away; each count-down starts that time again.
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool>;

    /// Counts down by one and says what is left. An open latch stays open. The id makes a resend
    /// harmless.
    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32>;

    /// What is left; zero: the latch is open.
    async fn count(&self, name: &Name) -> Result<u32>;

    /// Waits until the latch is open. `false`: patience ran out. Cancel safe.
    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool>;
}

/// What is asked of a backend.
#[derive(Clone, Debug)]
pub struct Request {
    /// The lock.
    pub name: Name,
    /// In which way.
    pub kind: Kind,
    /// For whom.
    pub owner: Owner,
    /// Which acquisition this is; every resend carries the same.
    pub id: RequestId,
    /// For how long.
    pub term: Term,
    /// How many tokens to bring. More than one only where [`Capabilities::token_blocks`] says so.
    pub tokens: u32,
    /// How long to wait.
    pub patience: Patience,
}

/// In which way a name is taken.
///
/// Mutex and read-write kinds of one name exclude each other like writers; a semaphore or a latch
/// under the same name is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Alone, in whatever order is fastest.
    Mutex,
    /// Alone, in the order of arrival.
    FairMutex,
    /// With other readers, past waiting writers.
    Read,
    /// Alone; readers may overtake.
    Write,
    /// With other readers, in the order of arrival.
    FairRead,
    /// Alone, in the order of arrival.
    FairWrite,
    /// As one of several; those who disagree about how many are each judged by their own number.
    Permit {
        /// How many there may be.
        of: u32,
    },
}

impl Kind {
    /// Whether several may hold the name at once.
    pub const fn is_shared(self) -> bool {
        matches!(self.access(), Access::Shared)
    }

    /// Whether only one may hold the name.
    pub const fn is_exclusive(self) -> bool {
        matches!(self.access(), Access::Exclusive)
    }

    /// Whether it waits behind those who came first even where it need not.
    pub const fn is_fair(self) -> bool {
        !matches!(self, Self::Mutex | Self::Read | Self::Write)
    }

    /// What a holder may do.
    pub const fn access(self) -> Access {
        match self {
            Self::Read | Self::FairRead => Access::Shared,
            Self::Permit { of } => Access::Permit { of },
            _ => Access::Exclusive,
        }
    }

    /// What a name taken in this way is in use as.
    pub const fn family(self) -> &'static str {
        match self {
            Self::Mutex | Self::FairMutex => "mutex",
            Self::Read | Self::Write | Self::FairRead | Self::FairWrite => "read-write lock",
            Self::Permit { .. } => "semaphore",
        }
    }

    /// The kind that a hold of this kind becomes when it is downgraded.
    pub const fn downgraded(self) -> Option<Self> {
        match self {
            Self::Write => Some(Self::Read),
            Self::FairWrite => Some(Self::FairRead),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair mutex",
            Self::Read => "read lock",
            Self::Write => "write lock",
            Self::FairRead => "fair read lock",
            Self::FairWrite => "fair write lock",
            Self::Permit { .. } => "semaphore",
        })
    }
}

/// What the holder of a lock may do: the same for plain and fair, for mutex and writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Be alone.
    Exclusive,
    /// Be with other readers.
    Shared,
    /// Be one of several.
    Permit {
        /// How many there may be.
        of: u32,
    },
}

/// For how long a lock is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// Renewed every third of this for as long as the guard lives.
    Hosted(Duration),
    /// Ends after this, whatever the guard does.
    Fixed(Duration),
}

impl Term {
    /// The shortest time to live: less is lost to ordinary scheduling.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The longest: more is a mistake in the unit.
    pub const MAX: Duration = Duration::from_hours(24 * 30);

    /// The time to live at the store.
    pub const fn ttl(self) -> Duration {
        match self {
            Self::Hosted(ttl) | Self::Fixed(ttl) => ttl,
        }
    }

    /// Refuses a time to live that cannot be meant.
    pub fn check(self) -> Result<Self> {
        let ttl = self.ttl();
        if (Self::MIN..=Self::MAX).contains(&ttl) {
            return Ok(self);
        }
        Err(Error::Config(format!(
            "a time to live of {} cannot be meant: between 100ms and 30days is possible",
            humantime::format_duration(ttl)
        )))
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Ask once and do not wait.
    TryOnce,
    /// Wait until this moment.
    Until(Instant),
    /// Wait until the lock is granted.
    Forever,
}

impl Patience {
    /// The moment when patience ends.
    pub fn deadline(self) -> Instant {
        match self {
            Self::TryOnce => Instant::from_nanos(0),
            Self::Until(at) => at,
            Self::Forever => Instant::NEVER,
        }
    }
}

/// The store's answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours; the lease now ends then, counted from before the request was sent.
    Held(Option<Instant>),
    /// Not ours any more.
    Lost(Cause),
}

/// The store's answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Given back.
    Released,
    /// There was nothing of ours to give back: the hold was lost before, or released already.
    NotHeld,
}

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Fair mutexes: grants in the order of arrival.
    pub fair: bool,
    /// Read-write locks.
    pub read_write: bool,
    /// Read-write locks that do not starve writers.
    pub fair_read_write: bool,
    /// Semaphores.
    pub permits: bool,
    /// Countdown latches.
    pub latches: bool,
    /// Several consecutive tokens with one grant, so that tasks of a process can pass a hold on in
    /// memory.
    pub token_blocks: bool,
    /// Other processes see the same locks.
    pub across_processes: bool,
    /// The locks of a process that dies are free at once, not when their leases end.
    pub frees_on_death: bool,
}

impl Capabilities {
    /// Everything there is.
    pub const ALL: Self = Self {
        fair: true,
        read_write: true,
        fair_read_write: true,
        permits: true,
        latches: true,
        token_blocks: true,
        across_processes: true,
        frees_on_death: true,
    };

    /// Whether a lock of this kind can be had.
    pub fn allows(self, kind: Kind) -> bool {
        match kind {
            Kind::Mutex => true,
            Kind::FairMutex => self.fair,
            Kind::Read | Kind::Write => self.read_write,
            Kind::FairRead | Kind::FairWrite => self.fair_read_write,
            Kind::Permit { .. } => self.permits,
        }
    }
}

/// What a store knows about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The name.
    pub name: Name,
    /// What it is in use as; `None` when it is free.
    pub kind: Option<String>,
    /// Who holds it.
    pub holders: Vec<Holding>,
    /// Who waits, first come first.
    pub waiters: Vec<Owner>,
    /// What is left of a latch.
    pub count: Option<u32>,
}

impl Status {
    /// What is known of a name whose state makes no sense.
    pub(crate) fn unreadable(name: Name) -> Self {
        let kind = Some("unreadable".to_owned());
        Self { name, kind, holders: Vec::new(), waiters: Vec::new(), count: None }
    }
}

/// One holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Who.
    pub owner: Owner,
    /// Under which token; tasks of its process that took the hold over use the next ones.
    pub token: Token,
    /// For how long already.
    pub held: Duration,
    /// Until the lease ends unless it is renewed. `None`: lives with its process.
    pub lease_left: Option<Duration>,
}

/// What a forced release did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Those who held the name until now.
    pub holders: Vec<Owner>,
    /// A token larger than any of theirs: whatever checks tokens refuses them once it has seen it.
    pub token: Token,
}
