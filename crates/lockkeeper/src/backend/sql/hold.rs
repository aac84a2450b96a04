//! A hold in a database.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::dialect::Dialect;
use super::hub::Key;
use super::row::{Known, Stored};
use super::store::{Guess, Store};
use crate::backend::register::Check;
use crate::backend::{Hold, Release, Renewal};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::RequestId;
use crate::token::TokenBlock;

pub(super) struct SqlHold<D: Dialect> {
    pub(super) store: Arc<Store<D>>,
    pub(super) key: Key,
    pub(super) name: Name,
    pub(super) id: RequestId,
    pub(super) tokens: TokenBlock,
    pub(super) expires: Instant,
    pub(super) loss: Loss,
    /// The row as it was left, while there was nothing but this hold in it.
    pub(super) left: Mutex<Option<(Known, Arc<Stored>)>>,
}

#[async_trait]
impl<D: Dialect> Check for SqlHold<D> {
    async fn check(&self) {
        let id = self.id;
        let checked = self.store.change(&self.key, Guess::Nothing, move |stored, world, _| {
            Some(stored.model.check(id, world))
        });
        match checked.await {
            Ok((Some(cause), _)) => self.loss.declare(cause),
            Ok((None, _)) => {}
            // The next renewal asks again.
            Err(error) => tracing::debug!(name = %self.name, %error, "could not check a hold"),
        }
    }
}

#[async_trait]
impl<D: Dialect> Hold for SqlHold<D> {
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
        let id = self.id;
        let renewed = self.store.change_soon(&self.key, Guess::Nothing, move |stored, world, _| {
            Some(stored.model.renew(id, Some(ttl), world))
        });
        let (renewed, after) = renewed.await?;
        Ok(match renewed {
            Ok(_) => {
                *self.left.lock() = after.alone(id);
                Renewal::Held(Some(after.sent + ttl))
            }
            Err(cause) => Renewal::Lost(cause),
        })
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let id = self.id;
        let downgraded =
            self.store.change_soon(&self.key, Guess::Nothing, move |stored, world, _| {
                Some(stored.model.downgrade(id, world))
            });
        let (downgraded, after) = downgraded.await?;
        let here = |expires: Instant| after.sent + expires.since(after.now);
        Ok(downgraded.map_or_else(Renewal::Lost, |expires| Renewal::Held(expires.map(here))))
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        let id = self.id;
        let guess = match self.left.lock().take() {
            Some((known, stored)) => Guess::Left(known, stored),
            None => Guess::Nothing,
        };
        let released = self.store.change(&self.key, guess, move |stored, world, again| {
            match stored.model.release(id, world) {
                // It may be the first try that released it.
                false if again => None,
                held => Some(held),
            }
        });
        let released = released.await?.0;
        if self.store.is_in_doubt(&self.key) {
            // The request may have been sent twice, and the first one may yet arrive.
            self.store.undo(&self.key, id, Instant::now());
        }
        Ok(if released { Release::Released } else { Release::NotHeld })
    }
}

impl<D: Dialect> Drop for SqlHold<D> {
    fn drop(&mut self) {
        self.store.hub.requests.forget(self.id);
    }
}

impl<D: Dialect> fmt::Debug for SqlHold<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlHold")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
