//! Locks in an etcd cluster. Tested on etcd 3.4.
//!
//! # How it works
//!
//! Mutexes have the layout of Go's `concurrency.Mutex`, so they are shared with it and with
//! `etcdctl lock`. For a name `foo`, after the prefix of the URL:
//!
//! | key | what it is |
//! | --- | --- |
//! | `foo/LEASE` | a hold or a place in the queue of a mutex or read-write lock; LEASE is the lease that it began with, in hexadecimal |
//! | `./permit/foo//LEASE` | the same for a semaphore |
//! | `./latch/foo//` | what is left of a latch |
//! | `./latch/foo//REQUEST` | that a count-down was done |
//! | `./evicted/foo//LEASE` | for the evicted holder: why |
//! | `./cells/foo//N` | a segment of a stock; it has no lease and stays |
//!
//! Every other key lives with a lease, which no other request uses at the same time. A request derives the ids
//! of its leases from its own id, so that one that is sent again finds its lease and its key; or it takes
//! over one that was given back a moment ago (`spare.rs`), and is found by what is in its key.
//!
//! 1. A request makes a lease and lines up by creating its key. If it is the only one, the key says
//!    so from the start: it holds. That is one transaction.
//! 2. Otherwise it waits for one other key alone, which is its predecessor if it wants to be alone;
//!    `queue.rs` says whose. The watch begins at the present, and the queue is read once more when it
//!    has begun.
//! 3. When it is its turn it writes so into its key, in a transaction that fails if the key is gone.
//!    So it never holds without a lease, and the grant is a fact that everybody can read.
//! 4. The token is the revision of the grant: that in which the key was created, or for who had to
//!    wait the one in which it took its turn. It grows with every grant and every eviction.
//! 5. A waiter has a lease of at most 5 s and keeps it alive itself. A hold that is to last longer
//!    gets a longer lease when it is first renewed. Every renewal also reads the key.
//! 6. A hold that is not given back within a moment watches its key. Releasing deletes it only if it
//!    is the one that was created then.
//!
//! # What it promises
//!
//! Exclusion between our clients, by the cluster's own clock, for every kind; exclusion of mutexes
//! and write locks with Go's package, in one queue in order of arrival. Grants in order of arrival
//! for plain mutexes too. Tokens that grow as long as the cluster keeps its data, also in comparison
//! with what Go's `Mutex.Header().Revision` and `ETCD_LOCK_REV` say.
//!
//! A lock `a` and a lock `a/b` have nothing to do with each other.
//!
//! # When it breaks
//!
//! - A backup that is restored without `--bump-revision` starts revisions, and so tokens, again.
//! - Go's package waits for every key below `a/`: there a lock `a` waits for a lock `a/b`, and for
//!   the locks of ours that are called so.
//! - Go's package knows neither readers nor permits. To its mutex a reader of ours is one more mutex
//!   in the line; readers of ours wait for its mutex and never pass it. Its experimental `RWMutex`
//!   and elections are not understood.
//! - etcd's leases last whole seconds, and not less than 1.5 times its election timeout: 2 s by
//!   default. A shorter lock is lost in time, but the next one waits for the longer lease unless the
//!   guard lets go. After a change of leader all leases start again.
//! - The cluster has no clock that clients can read: for how long a lock has been held is not known,
//!   and shown as zero.
//!
//! # Cost
//!
//! One round trip to lock and one to release for who takes turns; one more round trip and two more writes
//! when a lease must be made, which is when none was given back in the last seconds. A fixed lease of
//! more than 5 s costs two more. A hand-over costs one deletion, one event and one
//! transaction, however many wait; each waiter reads the queue twice when it lines up. One HTTP/2
//! connection for everything. A lock `a` above very many locks `a/1`, `a/2`, … reads their keys as
//! well: other clients' keys cannot be told from theirs before they are read.

mod address;
mod admin;
mod asking;
mod cells;
mod client;
mod guarded;
mod hold;
mod keepalive;
mod latches;
mod layout;
mod proto;
mod queue;
mod spare;
mod steps;
mod watcher;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::address::Address;
use self::asking::{Asking, Step};
use self::client::{Client, may_pass};
pub use self::guarded::Txn;
use self::keepalive::KeepAlive;
use self::proto::etcdserverpb as pb;
use self::spare::Spare;
use self::watcher::Watcher;
use super::register::Register;
use super::{Admin, Backend, Capabilities, Cells, Hold, Latches, Patience, Request};
use crate::clock::Instant;
use crate::error::Result;
use crate::url::Servers;
use crate::wait::pause;

/// How long a waiter that dies keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// How long a cluster may fail to answer before a request gives up.
const OUTAGE: Duration = Duration::from_secs(10);
/// Between two attempts to reach a cluster that fails.
const RETRY: Duration = Duration::from_millis(100);

/// Locks in an etcd cluster.
pub struct Etcd {
    place: String,
    prefix: String,
    server: Arc<Server>,
}

/// What all requests of one client share.
struct Server {
    client: Arc<Client>,
    alive: KeepAlive,
    watcher: Watcher,
    requests: Arc<Register>,
    spare: Spare,
}

impl Etcd {
    /// Connects to the first of these servers that answers. `place` is what the cluster is called;
    /// all keys begin with `prefix`.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::Error::Config) for servers or files that make no sense,
    /// [`Unavailable`](crate::Error::Unavailable) when none of them can be reached, or they refuse us.
    pub async fn connect(servers: &Servers, place: String, prefix: &str) -> Result<Arc<Self>> {
        let address = Address::new(servers, &place)?;
        let client = Arc::new(Client::new(address));
        let key = format!("{prefix}./").into_bytes();
        let probe = pb::RangeRequest { key, ..Default::default() };
        let explain = |error| address::explain(error, servers.tls.is_some());
        client.connect(probe.clone()).await.map_err(explain)?;
        let requests = Arc::new(Register::new());
        let alive = KeepAlive::start(&client, probe);
        let watcher = Watcher::start(&client, &requests);
        let server = Arc::new(Server { client, alive, watcher, requests, spare: Spare::default() });
        Ok(Arc::new(Self { place, prefix: prefix.to_owned(), server }))
    }
}

#[async_trait]
impl Backend for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { token_blocks: false, frees_on_death: false, ..Capabilities::ALL }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let news = self.server.requests.expect(request.id);
        let patience = match request.patience {
            // Asked once, but the answer may have been lost: then ask for it again.
            Patience::TryOnce => Patience::Forever,
            patience => patience,
        };
        // From here on, before the first request is sent: dropping this undoes it.
        let mut asking = Asking::new(&self, request);
        let mut failing: Option<Instant> = None;
        loop {
            let next = match asking.step(news.word().as_deref()).await {
                Ok(Step::Granted(hold)) => return Ok(Some(hold)),
                Ok(Step::Busy) => {
                    asking.withdraw().await;
                    return Ok(None);
                }
                Ok(Step::Waits(next)) => {
                    failing = None;
                    next
                }
                Err(error) if may_pass(&error) => {
                    asking.something_was_lost();
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > OUTAGE {
                        return Err(error);
                    }
                    Instant::now() + RETRY
                }
                Err(error) => {
                    asking.withdraw().await;
                    return Err(error);
                }
            };
            if !pause(patience, Some(next), news.heard()).await {
                return Ok(None);
            }
        }
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("place", &self.place).finish_non_exhaustive()
    }
}
