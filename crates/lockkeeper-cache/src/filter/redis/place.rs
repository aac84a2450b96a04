//! Where a filter is: its keys, and the servers that have them.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{ErrorKind, FromRedisValue, RedisError, RetryMethod, Script};
use lockkeeper::clock::Instant;

use super::super::FilterError;
use crate::store::Servers;

/// For so long the steps of a builder are sent again. Less than his [lease](super::build::LEASE).
const BUILDING: Duration = Duration::from_secs(20);

/// Between two tries, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The keys of one filter, and the servers that have them.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) servers: Arc<Servers>,
    /// The head, both slots, and the upload.
    pub(super) keys: Arc<[String; 4]>,
}

impl Place {
    pub(super) fn new(servers: Arc<Servers>, name: &str) -> Self {
        let key = |part| servers.key(&format!("lockkeeper-filter:{{{name}}}:{part}")).into_owned();
        let keys = Arc::new(["head", "a", "b", "upload"].map(key));
        Self { servers, keys }
    }

    async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        words: &[&[u8]],
    ) -> lockkeeper::Result<T> {
        self.servers.run(script, &self.keys.each_ref().map(String::as_str), words).await
    }

    /// Runs a script once.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        words: &[&[u8]],
    ) -> Result<T, FilterError> {
        self.run(script, words).await.map_err(failed)
    }

    /// Runs a script that may be run more than once until there is an answer, or no hope of one: a large filter may take the server
    /// longer than an answer is waited for.
    pub(super) async fn insist<T: FromRedisValue>(
        &self,
        script: &Script,
        words: &[&[u8]],
    ) -> Result<T, FilterError> {
        let (since, mut pause) = (Instant::now(), PAUSE.0);
        loop {
            match self.run(script, words).await {
                Err(error) if may_pass(&error) && Instant::now().since(since) < BUILDING => {
                    tracing::debug!(%error, "a step of building a filter is sent again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                answer => return answer.map_err(failed),
            }
        }
    }
}

/// Whether the same may be answered later: the server was not there, and has not refused.
fn may_pass(error: &lockkeeper::Error) -> bool {
    let lockkeeper::Error::Unavailable { source, .. } = error else { return false };
    let error = source.as_ref().and_then(|source| source.downcast_ref::<RedisError>());
    error.is_none_or(|error| {
        !matches!(error.retry_method(), RetryMethod::NoRetry)
            && error.kind() != ErrorKind::AuthenticationFailed
    })
}

pub(super) fn failed(error: lockkeeper::Error) -> FilterError {
    FilterError::Store(error.into())
}
