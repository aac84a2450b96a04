//! A hold at a Redis server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::Server;
use super::answer::millis;
use super::nodes::Answered;
use super::renewals;
use super::replicas::renewal_time;
use crate::backend::register::Check;
use crate::backend::{Hold, Release, Renewal};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::{Cause, Loss};
use crate::owner::RequestId;
use crate::token::TokenBlock;

/// Shorter leases are renewed at once, each on its own.
const UNHURRIED: Duration = Duration::from_secs(1);

pub(super) struct RedisHold {
    pub(super) server: Arc<Server>,
    pub(super) lock: Box<str>,
    pub(super) id: RequestId,
    pub(super) tokens: TokenBlock,
    pub(super) expires: Instant,
    pub(super) loss: Loss,
    /// How many renewals were sent.
    pub(super) renewals: AtomicU64,
    /// What a mutex is called where others see it: it can be renewed together with others.
    pub(super) field: Option<Box<str>>,
    /// An earlier copy of the request may still arrive.
    pub(super) resent: bool,
}

impl RedisHold {
    /// Why it is lost, if the server says so: `{1}` or `{0, reason}`.
    fn cause(answer: &[Value]) -> Option<Cause> {
        match answer {
            [Value::Int(1), ..] => None,
            [_, reason] => match redis::from_redis_value_ref::<String>(reason) {
                Ok(reason) if !reason.is_empty() => Some(Cause::Evicted(reason)),
                _ => Some(Cause::Gone),
            },
            _ => Some(Cause::Gone),
        }
    }
}

#[async_trait]
impl Check for RedisHold {
    async fn check(&self) {
        let ask = || self.server.run(&self.server.scripts.check, &self.lock, self.id, &[]);
        let mut answer = ask().await;
        // A hold that is never renewed has nobody else to ask: not the first failure decides.
        for _ in 0..20 {
            if answer.is_ok() {
                break;
            }
            tokio::time::sleep(super::RETRY).await;
            answer = ask().await;
        }
        match answer {
            Ok(answer) => {
                if let Some(cause) = Self::cause(Vec::<Value>::as_slice(&answer)) {
                    self.loss.declare(cause);
                }
            }
            // The next renewal asks again.
            Err(error) => tracing::debug!(%error, "could not check a hold"),
        }
    }
}

#[async_trait]
impl Hold for RedisHold {
    fn tokens(&self) -> TokenBlock {
        self.tokens
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(self.expires)
    }

    fn loss(&self) -> &Loss {
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let sent = Instant::now();
        let number = self.renewals.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(field) = &self.field
            && ttl >= UNHURRIED
            && renewals::renew(&self.server, &self.lock, field, ttl).await?
        {
            return Ok(Renewal::Held(Some(sent + ttl)));
        }
        let sent = Instant::now();
        let renew = &self.server.scripts.renew;
        let (words, time) = ([&*millis(ttl), &number.to_string()], renewal_time(ttl));
        let answer: Answered<Vec<Value>> =
            self.server.run_renewal(renew, &self.lock, self.id, &words, time).await?;
        match (Self::cause(&answer.value), answer.shortfall) {
            (Some(cause), _) => Ok(Renewal::Lost(cause)),
            // Another server would let it end earlier than we think.
            (None, Some(shortfall)) => Err(shortfall.of_renewal()),
            (None, None) => Ok(Renewal::Held(Some(sent + ttl))),
        }
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let downgrade = &self.server.scripts.downgrade;
        let answer: Vec<Value> = self.server.run(downgrade, &self.lock, self.id, &[]).await?;
        Ok(Self::cause(&answer).map_or(Renewal::Held(Some(self.expires)), Renewal::Lost))
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        let words = [self.field.as_deref().unwrap_or_default(), super::LATE];
        let words = if self.resent { &words[..] } else { &words[..1] };
        let release = &self.server.scripts.release;
        let held: u8 = self.server.run(release, &self.lock, self.id, words).await?;
        Ok(if held == 1 { Release::Released } else { Release::NotHeld })
    }
}

impl Drop for RedisHold {
    fn drop(&mut self) {
        self.server.requests.forget(self.id);
    }
}

impl fmt::Debug for RedisHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHold")
            .field("lock", &self.lock)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
