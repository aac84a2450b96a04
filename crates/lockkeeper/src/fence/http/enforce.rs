//! The side of the service.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, Uri};
use tower_layer::Layer;
use tower_service::Service;

use super::header::{Fence, Malformed};
use super::problem::Problem;
use super::turns::{Arrived, Entry, Shut, Turns};
use crate::fence::{Error, TokenStore};
use crate::name::Name;

/// How long a request waits for older ones.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do with a request that says nothing about a lock. One that says it wrongly is always refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// Refused with 428.
    #[default]
    Reject,
    /// Passes if its method only reads (GET, HEAD, OPTIONS, TRACE), and is refused with 428 if not.
    RejectWrites,
    /// Passes: for a service whose clients learn it one after the other. Late writers that say nothing pass as well.
    Pass,
}

type NameBy = dyn Fn(&Uri) -> Option<Name> + Send + Sync;

/// Lets requests pass whose token is not older than the largest one of their lock.
///
/// # What it promises
///
/// Once a request under a token has been compared, no request under an older token of the same name passes the
/// comparison, in all processes that share the [`TokenStore`]. When the store does not answer, nothing passes.
///
/// In one process, under one layer and its clones, requests under different tokens of one name are never inside at the same time: a newer one waits
/// until older ones, which were let in before, have been answered. Those that take longer than
/// [`patience`](Self::patience) are dropped where they stand and answered with 412, as one whose client was stopped in
/// the middle of the body. Requests under the same token, and of different names, go on side by side.
///
/// # When it breaks
///
/// - Work that goes on after its request has been answered or dropped, in another task or another server,
///   is not seen. Let the handler hand the [`Fence`] of the request on to what it writes to.
/// - Requests that two processes of the service work on at the same time do not wait for each other: one that was
///   compared there, and is slow, may still write after one here. The same helps.
/// - It believes its clients: one that sends a token that nobody was granted keeps all others out for ever. Put what
///   authenticates them before it. And it believes the name that they say; [`name_by`](Self::name_by) does not.
/// - Tokens that the store forgets.
///
/// # Cost
///
/// What the store needs, before the request goes on: in memory about a microsecond, with Redis and SQL a
/// round trip.
///
/// The body of the service inside must be made of a `String`, as axum's is and `http_body_util::Full<Bytes>`.
#[derive(Clone, Debug)]
pub struct EnforceLayer {
    rules: Rules,
}

#[derive(Clone)]
struct Rules {
    store: Arc<dyn TokenStore>,
    turns: Arc<Turns>,
    patience: Duration,
    missing: Missing,
    name_by: Option<Arc<NameBy>>,
}

impl EnforceLayer {
    /// Remembers tokens in this store.
    pub fn new(store: impl TokenStore) -> Self {
        let (store, turns) = (Arc::new(store), Arc::default());
        let (patience, missing, name_by) = (PATIENCE, Missing::default(), None);
        Self { rules: Rules { store, turns, patience, missing, name_by } }
    }

    /// Does this with requests that say nothing about a lock, instead of refusing them.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.rules.missing = missing;
        self
    }

    /// Lets a request wait for so long, instead of 5 s, for older ones that are still being worked on, before they are
    /// dropped; and for as long for that to happen, and for the store of tokens. What takes longer is 503.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.rules.patience = patience;
        self
    }

    /// Wants the lock of this name for a URI; another is refused with 400, and so is every lock where there is none: what
    /// needs no fence does not belong under this layer. The URI is as it was sent: if the service takes `%34%32`
    /// for `42`, so must this.
    ///
    /// ```
    /// use lockkeeper::fence::{MemoryTokens, http::EnforceLayer};
    /// let layer = EnforceLayer::new(MemoryTokens::default())
    ///     .name_by(|uri| uri.path().trim_matches('/').parse().ok());
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn name_by(mut self, name: impl Fn(&Uri) -> Option<Name> + Send + Sync + 'static) -> Self {
        self.rules.name_by = Some(Arc::new(name));
        self
    }
}

impl Rules {
    /// The fence to be compared, if there is one, or why it does not come to that.
    fn judge(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Fence>, Problem> {
        let Some(fence) = Fence::find(headers).map_err(Problem::Malformed)? else {
            return match self.missing {
                Missing::Pass => Ok(None),
                Missing::RejectWrites if method.is_safe() => Ok(None),
                Missing::Reject | Missing::RejectWrites => Err(Problem::Missing),
            };
        };
        let wrong = |why| Err(Problem::Malformed(Malformed(why)));
        match self.name_by.as_ref().map(|name_by| name_by(uri)) {
            Some(None) => wrong("this resource has no lock"),
            Some(Some(wanted)) if wanted != *fence.name() => {
                wrong("it is of another lock than this resource's")
            }
            _ => Ok(Some(fence)),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("store", &self.store)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for EnforceLayer {
    type Service = Enforce<S>;

    fn layer(&self, inner: S) -> Enforce<S> {
        Enforce { inner, rules: self.rules.clone() }
    }
}

/// Comes back when the request may go in, as far as its token goes.
async fn pass(
    fence: &Fence,
    store: &dyn TokenStore,
    turn: &mut Arrived,
    patience: Duration,
) -> Result<(), Problem> {
    let compare = async || {
        let raised = tokio::time::timeout(patience, store.raise(fence.name(), fence.token()));
        raised.await.unwrap_or_else(|_| Err(silent(patience))).map_err(Problem::from)
    };
    // First of all: from now on older ones are refused everywhere, also while this one waits.
    compare().await?;
    match turn.enter(fence.token(), patience).await {
        Ok(Entry::AtOnce) => Ok(()),
        // Another process, which has turns of its own, may have let in somebody newer.
        Ok(Entry::AfterWaiting) => compare().await,
        Err(Shut::Stale(newest)) => Err(Problem::overtaken(fence, newest)),
        Err(Shut::Busy) => {
            tracing::warn!(name = %fence.name(), "older requests do not end, so no newer one begins");
            Err(Problem::Unavailable)
        }
    }
}

fn silent(patience: Duration) -> Error {
    let context = format!("the store of tokens has not answered within {patience:?}");
    Error::Store { context, source: None }
}

/// What [`EnforceLayer`] makes of a service.
#[derive(Clone, Debug)]
pub struct Enforce<S> {
    inner: S,
    rules: Rules,
}

impl<S, B, R> Service<Request<B>> for Enforce<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
    B: Send + 'static,
    R: From<String> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let judged = self.rules.judge(request.method(), request.uri(), request.headers());
        let fence = match judged {
            Ok(Some(fence)) => fence,
            Ok(None) => return Box::pin(self.inner.call(request)),
            Err(problem) => return Box::pin(ready(Ok(problem.response()))),
        };
        // The one that is ready, which a clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Rules { store, turns, patience, .. } = self.rules.clone();
        Box::pin(async move {
            let mut turn = turns.arrive(fence.name());
            if let Err(problem) = pass(&fence, &*store, &mut turn, patience).await {
                return Ok(problem.response());
            }
            request.extensions_mut().insert(fence.clone());
            tokio::select! {
                answer = inner.call(request) => answer,
                newest = turn.shown_out() => Ok(Problem::overtaken(&fence, newest).response()),
            }
        })
    }
}
