//! The connection to a cluster: one member at a time, time-outs, and what errors mean.
//!
//! A member that cannot be reached, does not answer, or knows no leader is left for the next one. All
//! requests share one HTTP/2 connection. The streams hear when it was replaced and move as well.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::address::Address;
use super::proto::etcdserverpb as pb;
use crate::clock::Instant;
use crate::error::{Error, Result};

/// How long one request may take. An election takes longer, so a request that began in one is sent
/// again after it.
pub(super) const COMMAND_TIME: Duration = Duration::from_secs(2);
/// A request that its caller gives up on after this time without an answer counts as unanswered: a
/// short lease cannot wait for as long as a request may take.
const SLOW: Duration = Duration::from_millis(200);
/// How long connecting may take.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// etcd refuses clients that ask more often than every 5 s whether it is there.
const PING: Duration = Duration::from_secs(10);
/// Lists of many waiters are longer than the usual limit.
const LONGEST_ANSWER: usize = 64 << 20;

/// A connection that moves to another member by itself.
pub(super) struct Client {
    address: Address,
    link: Mutex<Link>,
    moved: watch::Sender<u64>,
    /// Where connections are at home, whoever needs them first.
    runtime: Handle,
}

/// The connection of the moment.
#[derive(Clone)]
pub(super) struct Link {
    channel: Channel,
    number: u64,
    token: Option<MetadataValue<Ascii>>,
}

impl Link {
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// A request that opens a stream, which ends when the member knows no leader any more.
    pub(super) fn stream<T>(&self, messages: T) -> Request<T> {
        let mut request = self.request(messages);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Client {
    /// Must be called inside a tokio runtime. Connects when it is first used.
    pub(super) fn new(address: Address) -> Self {
        let channel = lazily(&address.endpoints[0]);
        let link = Mutex::new(Link { channel, number: 0, token: None });
        Self { address, link, moved: watch::Sender::new(0), runtime: Handle::current() }
    }

    /// Finds a member that answers.
    pub(super) async fn connect(&self, probe: pb::RangeRequest) -> Result<()> {
        let mut tried = 0;
        loop {
            tried += 1;
            match self.range(probe.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if may_pass(&error) && tried < self.address.endpoints.len() => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link.lock().clone()
    }

    /// The connection, logged in. A failure shows when it is used.
    pub(super) async fn entered(&self) -> Link {
        let link = self.link();
        if link.token.is_none() {
            let _ = self.log_in(&link).await;
        }
        // The one of the moment: it may have been replaced meanwhile.
        self.link()
    }

    /// Forgets a token that was refused, or leaves a connection that has failed otherwise.
    pub(super) fn failed_on(&self, number: u64, status: &Status) {
        if is_token_refused(status) {
            self.link.lock().token = None;
        } else {
            self.leave(number);
        }
    }

    /// Waits until this connection is replaced, or finds that it has been. Cancel safe.
    pub(super) async fn replaced(&self, link: &Link) {
        // Fails only when there is no client any more: an end as well.
        let _ = self.moved.subscribe().wait_for(|number| *number != link.number).await;
    }

    /// Leaves a connection that does not do for the next member, or for a new one to the same.
    pub(super) fn leave(&self, number: u64) {
        // A request may be dropped anywhere, even where tokio's thread-local is gone already: entering
        // would abort the process.
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            return;
        }
        let _inside = self.runtime.enter();
        let mut link = self.link.lock();
        if link.number != number {
            return;
        }
        link.number += 1;
        let members = self.address.endpoints.len() as u64;
        let next = usize::try_from(link.number % members).unwrap_or(0);
        link.channel = lazily(&self.address.endpoints[next]);
        // Under the lock: the numbers must not be told out of order.
        self.moved.send_replace(link.number);
    }

    /// Waits for an answer on this connection, which is left when there is none.
    pub(super) async fn answer<T>(
        &self,
        number: u64,
        answer: impl Future<Output = T> + Send,
    ) -> Result<T> {
        let mut asked = Asked { client: self, number, since: Instant::now(), answered: false };
        let answer = tokio::time::timeout(COMMAND_TIME, answer).await;
        asked.answered = answer.is_ok();
        answer.map_err(|_elapsed| unanswered())
    }

    /// Logs in, where there is a user.
    async fn log_in(&self, link: &Link) -> Result<bool> {
        let Some((name, password)) = self.address.credentials.clone() else { return Ok(false) };
        let mut auth = pb::auth_client::AuthClient::new(link.channel());
        let asked = auth.authenticate(pb::AuthenticateRequest { name, password });
        let token = match self.answer(link.number, asked).await? {
            Ok(answer) => answer.into_inner().token,
            Err(status) => {
                if elsewhere_may_be_better(&status) {
                    self.leave(link.number);
                }
                return Err(failed("logging in", status));
            }
        };
        self.link.lock().token = MetadataValue::try_from(token).ok();
        Ok(true)
    }

    /// Asks once. An error: it may have been carried out or not.
    async fn call<T, F>(&self, what: &str, ask: impl Fn(Link) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let mut fresh = false;
        loop {
            let link = self.link();
            if link.token.is_none() && !fresh && self.log_in(&link).await? {
                fresh = true;
                continue;
            }
            match self.answer(link.number, ask(link.clone())).await? {
                Ok(answer) => return Ok(answer.into_inner()),
                // Tokens end by themselves; what was refused was not carried out.
                Err(status) if is_token_refused(&status) && !fresh => {
                    self.link.lock().token = None;
                    if self.address.credentials.is_none() {
                        return Err(failed(what, status));
                    }
                }
                Err(status) => {
                    if elsewhere_may_be_better(&status) {
                        self.leave(link.number);
                    }
                    return Err(failed(what, status));
                }
            }
        }
    }

    pub(super) async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse> {
        let ask = |link: Link| {
            let request = link.request(request.clone());
            async move { kv(&link).range(request).await }
        };
        self.call("reading", ask).await
    }

    pub(super) async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse> {
        let ask = |link: Link| {
            let request = link.request(request.clone());
            async move { kv(&link).txn(request).await }
        };
        self.call("a transaction", ask).await
    }

    /// Makes a lease; how long it lasts. `None`: there is one of this id already.
    pub(super) async fn grant(&self, id: i64, ttl: Duration) -> Result<Option<Duration>> {
        let ask = |link: Link| {
            let request = link.request(pb::LeaseGrantRequest { id, ttl: seconds(ttl) });
            async move { lease(&link).lease_grant(request).await }
        };
        match self.call("making a lease", ask).await {
            Ok(granted) => Ok(Some(duration(granted.ttl))),
            Err(error) if says(&error, "lease already exists") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a lease and whatever is attached to it. One that is not there has ended.
    pub(super) async fn revoke(&self, id: i64) -> Result<()> {
        let ask = |link: Link| {
            let request = link.request(pb::LeaseRevokeRequest { id });
            async move { lease(&link).lease_revoke(request).await }
        };
        match self.call("ending a lease", ask).await {
            Ok(_) => Ok(()),
            Err(error) if is_lease_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What is left of a lease; `None`: it has ended.
    pub(super) async fn time_left(&self, id: i64) -> Result<Option<Duration>> {
        let ask = |link: Link| {
            let request = link.request(pb::LeaseTimeToLiveRequest { id, keys: false });
            async move { lease(&link).lease_time_to_live(request).await }
        };
        let left = self.call("looking at a lease", ask).await?.ttl;
        Ok((left >= 0).then(|| duration(left)))
    }
}

/// A request that was sent. Without an answer its connection is left, also when nobody waits for the
/// answer any more.
struct Asked<'a> {
    client: &'a Client,
    number: u64,
    since: Instant,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered && Instant::now().since(self.since) >= SLOW {
            self.client.leave(self.number);
        }
    }
}

fn lazily(endpoint: &Endpoint) -> Channel {
    endpoint
        .clone()
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(COMMAND_TIME)
        .connect_lazy()
}

fn kv(link: &Link) -> pb::kv_client::KvClient<Channel> {
    pb::kv_client::KvClient::new(link.channel()).max_decoding_message_size(LONGEST_ANSWER)
}

fn lease(link: &Link) -> pb::lease_client::LeaseClient<Channel> {
    pb::lease_client::LeaseClient::new(link.channel())
}

/// Leases count in seconds. Never shorter than what was asked for.
pub(super) fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole.max(1)).unwrap_or(i64::MAX)
}

pub(super) fn duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Whether it is the token that does not do any more: it has ended, or it is signed and says that other
/// rights are in force than now.
fn is_token_refused(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("revision of auth store is old")
}

/// Whether another member may do what this one did not.
pub(super) fn elsewhere_may_be_better(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

pub(super) fn unanswered() -> Error {
    let context = format!("no answer within {COMMAND_TIME:?}");
    Error::Unavailable { backend: "etcd", context, source: None }
}

fn status(error: &Error) -> Option<&Status> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Whether the server said this. Its codes are not reliable; its words are.
fn says(error: &Error, words: &str) -> bool {
    status(error).is_some_and(|status| status.message().contains(words))
}

pub(super) fn is_lease_gone(error: &Error) -> bool {
    says(error, "requested lease not found")
}

/// Whether the same request may succeed a moment later.
pub(super) fn may_pass(error: &Error) -> bool {
    let Error::Unavailable { .. } = error else { return false };
    let lasting = |status: &Status| match status.code() {
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => true,
        Code::ResourceExhausted => status.message().contains("space"),
        _ => status.message().contains("authentication"),
    };
    !status(error).is_some_and(lasting)
}

/// What an error means, and what to do about it.
pub(super) fn failed(what: &str, status: Status) -> Error {
    let message = status.message();
    let hint = match status.code() {
        _ if message.contains("user name is empty") => {
            ": the cluster wants a user and a password in the URL"
        }
        _ if message.contains("authentication") => ": wrong user or password in the URL?",
        Code::PermissionDenied => {
            ": the user may not do that; see docs/OPERATIONS.md for the rights"
        }
        Code::ResourceExhausted if message.contains("space") => {
            ": the database is full; compact and defragment it, then disarm the alarm"
        }
        _ => crate::tls::hint(&status).unwrap_or_default(),
    };
    Error::unavailable("etcd", format!("{what} failed{hint}"), status)
}
