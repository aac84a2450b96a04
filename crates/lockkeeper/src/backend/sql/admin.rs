//! Looking at a database, and forcing it.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};

use super::dialect::Dialect;
use super::fault::{Fault, may_pass, unknown};
use super::pool::{Pool, statement};
use super::store::{Guess, LATE};
use super::{OUTAGE, RETRY, Sql};
use crate::backend::{Admin, Eviction, Status};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;

/// So many names are looked at at the same time.
const AT_ONCE: usize = 8;

async fn keys<D: Dialect>(pool: &Pool<D>, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    statement!(pool, keys, prefix)
}

async fn count_eviction<D: Dialect>(pool: &Pool<D>) -> Result<(), Fault> {
    statement!(pool, count_eviction)
}

#[async_trait]
impl<D: Dialect> Admin for Sql<D> {
    async fn list(&self) -> Result<Vec<Status>> {
        let prefix = self.prefix.as_bytes();
        let keys = keys(&self.store.pool, prefix).await;
        let keys = keys.map_err(|fault| Arc::new(fault).error(D::NAME, "listing"))?;
        let name = |key: &Vec<u8>| str::from_utf8(&key[prefix.len()..]).ok()?.parse::<Name>().ok();
        let mut names: Vec<Name> = keys.iter().filter_map(name).collect();
        names.sort();
        let shown = futures_util::stream::iter(names)
            .map(async |name| match self.show(&name).await {
                // One row that cannot be read must not hide the others.
                Err(error) if !may_pass(&error) => Ok(Status::unreadable(name)),
                shown => shown,
            })
            .buffered(AT_ONCE);
        let shown: Vec<Status> = shown.try_collect().await?;
        Ok(shown.into_iter().filter(|status| status.kind.is_some()).collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let (key, name) = (self.key(name), name.clone());
        let shown = self.store.change(&key, Guess::Nothing, move |stored, world, _| {
            stored.model.settle(world);
            Some(stored.model.status(&name, world.now))
        });
        Ok(shown.await?.0)
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let (key, reason) = (self.key(name), reason.to_owned());
        let evicted = self.store.change(&key, Guess::Nothing, move |stored, world, again| {
            // Not twice: the next holder is not meant.
            (!again).then(|| stored.model.evict(&reason, world))
        });
        let evicted = evicted.await.map_err(unknown(name, "the eviction", LATE));
        let (holders, token) = evicted?.0;
        if !holders.is_empty() {
            // For those whom no message reaches.
            self.tell_of_eviction(name).await?;
        }
        Ok(Eviction { holders, token })
    }
}

impl<D: Dialect> Sql<D> {
    /// More often than once does no harm.
    async fn tell_of_eviction(&self, name: &Name) -> Result<()> {
        let until = Instant::now() + OUTAGE;
        loop {
            match count_eviction(&self.store.pool).await {
                Ok(()) => return Ok(()),
                Err(fault) if fault.may_pass() && Instant::now() < until => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(fault) => {
                    let told = Arc::new(fault).error(D::NAME, "telling of an eviction");
                    let (name, operation, source) = (name.clone(), "the eviction", told.into());
                    return Err(Error::Unknown { name, operation, within: LATE, source });
                }
            }
        }
    }
}
