//! A hold in a directory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::super::register::Check;
use super::database::is_replaced;
use super::peers::Peers;
use super::store::Store;
use crate::backend::{Hold, Release, Renewal, Request};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::{Cause, Loss};
use crate::name::Name;
use crate::owner::RequestId;
use crate::token::TokenBlock;

pub(super) struct FileHold {
    store: Arc<Store>,
    peers: Arc<Peers>,
    name: Name,
    id: RequestId,
    tokens: TokenBlock,
    expires: Option<Instant>,
    loss: Loss,
}

impl FileHold {
    pub(super) fn new(
        store: &Arc<Store>,
        peers: &Arc<Peers>,
        request: &Request,
        tokens: TokenBlock,
        expires: Option<Instant>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            peers: Arc::clone(peers),
            name: request.name.clone(),
            id: request.id,
            tokens,
            expires,
            loss: Loss::new(),
        })
    }
}

#[async_trait]
impl Check for FileHold {
    async fn check(&self) {
        let id = self.id;
        let checked = self.store.change(&self.name, move |state, world| state.check(id, world));
        match checked.await {
            Ok(Some(cause)) => self.loss.declare(cause),
            Ok(None) => {}
            // The next renewal asks again.
            Err(error) => tracing::debug!(name = %self.name, %error, "could not check a hold"),
        }
    }
}

#[async_trait]
impl Hold for FileHold {
    fn tokens(&self) -> TokenBlock {
        self.tokens
    }

    fn expires_at(&self) -> Option<Instant> {
        self.expires
    }

    fn loss(&self) -> &Loss {
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let id = self.id;
        let renewed =
            self.store.change(&self.name, move |state, world| state.renew(id, Some(ttl), world));
        match renewed.await {
            // Somebody may have it in the new directory already: no use in trying until the end.
            Err(error) if is_replaced(&error) => Ok(Renewal::Lost(Cause::Gone)),
            renewed => Ok(renewed?.map_or_else(Renewal::Lost, Renewal::Held)),
        }
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let id = self.id;
        let downgraded =
            self.store.change(&self.name, move |state, world| state.downgrade(id, world));
        Ok(downgraded.await?.map_or_else(Renewal::Lost, Renewal::Held))
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        let id = self.id;
        let released = self.store.change(&self.name, move |state, world| state.release(id, world));
        Ok(if released.await? { Release::Released } else { Release::NotHeld })
    }
}

impl Drop for FileHold {
    fn drop(&mut self) {
        self.peers.requests.forget(self.id);
    }
}

impl fmt::Debug for FileHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileHold")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
