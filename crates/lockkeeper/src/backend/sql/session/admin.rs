//! Looking at sessions that have locks, and ending them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::super::OUTAGE;
use super::super::dialect::{Inserted, When};
use super::super::fault::{Fault, STATEMENT_TIME};
use super::super::pool::statement;
use super::super::row::{Known, Loaded, Written};
use super::ties::{Held, ROWS, Tie, Ties, new_row, rows_of};
use super::{Session, error};
use crate::backend::{Admin, Eviction, Holding, Status};
use crate::clock::Instant;
use crate::error::Result;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::{Token, TokenBlock};

/// How long a holder that is alive may take to find out that it is evicted.
const OBEDIENCE: Duration = Duration::from_secs(4);
/// The state of a row that is there for its epoch only, and for a moment.
const DRAWN: &[u8] = b"{}";
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(50);

/// A hold, as its row and the server say.
pub(super) struct Seen {
    row: Vec<u8>,
    known: Known,
    held: Held,
    age: Duration,
}

/// All holds, all sessions that have or want their locks, and what the lock that was asked for is called.
type Survey = (Vec<Seen>, Vec<Tie>, Option<String>);

impl Seen {
    fn token(&self) -> Token {
        first(self.known.epoch).first()
    }
}

fn first(epoch: u64) -> TokenBlock {
    TokenBlock::issue(&mut Loaded::absent(epoch).counter, 1)
}

impl<D: Ties> Session<D> {
    /// The same, asked again while a server comes back.
    async fn look(&self, key: Option<&[u8]>) -> Result<Survey, Fault> {
        let until = Instant::now() + OUTAGE;
        loop {
            match self.survey(key).await {
                Err(fault) if fault.may_pass() && Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                surveyed => return surveyed,
            }
        }
    }

    /// The rows of holds, and who has or waits for their locks and for this one. Deletes rows of the dead.
    pub(super) async fn survey(&self, key: Option<&[u8]>) -> Result<Survey, Fault> {
        let pool = &self.sessions.pool;
        let mut all = Vec::new();
        let rows = key.map_or_else(|| ROWS.to_vec(), rows_of);
        for row in statement!(pool, keys, &rows)? {
            let (now, raw) = statement!(pool, load, &row, false)?;
            let Some(raw) = raw else { continue };
            let age = Duration::from_micros(now.saturating_sub(raw.clock.unwrap_or(now)));
            let known = Known { epoch: raw.epoch, version: raw.version };
            if raw.state == DRAWN && age > OUTAGE {
                statement!(pool, delete, &row, known, false, &[], false)?;
            }
            let Ok(held) = serde_json::from_slice::<Held>(&raw.state) else { continue };
            all.push(Seen { row, known, held, age });
        }
        let mut locks: HashMap<String, Vec<u8>> = all
            .iter()
            .map(|seen| (seen.held.lock.clone(), seen.held.key.clone().into_bytes()))
            .collect();
        let mut called = None;
        if let Some(key) = key {
            let lock = statement!(pool, called, key)?;
            called = Some(lock.clone());
            locks.insert(lock, key.to_vec());
        }
        let locks: Vec<_> = locks.into_iter().collect();
        let ties = statement!(pool, ties, &locks)?;
        // A session has one lock at a time: of two rows the younger one counts.
        all.sort_by_key(|seen| std::cmp::Reverse(seen.known.epoch));
        let mut alive = Vec::new();
        let mut sessions = Vec::new();
        for seen in all {
            let held = &seen.held;
            let lives = ties
                .iter()
                .any(|tie| tie.granted && tie.session == held.session && tie.lock == held.lock);
            if lives && !sessions.contains(&held.session) {
                sessions.push(held.session);
                alive.push(seen);
            } else {
                statement!(pool, delete, &seen.row, seen.known, false, &[], false)?;
            }
        }
        alive.reverse();
        Ok((alive, ties, called))
    }

    /// Tokens that are larger than all before.
    pub(super) async fn draw(&self) -> Result<TokenBlock, Fault> {
        let pool = &self.sessions.pool;
        let row = new_row(b"");
        let written = Written { token: 0, ends: 0, state: DRAWN.to_vec() };
        let Inserted::Done(epoch) = statement!(pool, insert, &row, &written, super::NEVER, false)?
        else {
            return Err(Fault::Contended);
        };
        statement!(pool, delete, &row, Known { epoch, version: 1 }, false, &[], false)?;
        Ok(first(epoch))
    }

    async fn evict_all(&self, key: &[u8], reason: &str) -> Result<Eviction, Fault> {
        let pool = &self.sessions.pool;
        let (seen, ..) = self.look(Some(key)).await?;
        // Before anybody who comes next.
        let token = self.draw().await?.first();
        let of_key = |seen: &Seen| seen.held.key.as_bytes() == key;
        let (ours, _): (Vec<_>, Vec<_>) = seen.into_iter().partition(of_key);
        for seen in &ours {
            let held = Held { evicted: Some(reason.to_owned()), ..seen.held.clone() };
            let written =
                Written { token: 0, ends: super::NEVER, state: serde_json::to_vec(&held)? };
            let when = When { too_late: super::NEVER, present: &[] };
            statement!(pool, update, &seen.row, seen.known, &written, when, &[])?;
        }
        let until = Instant::now() + OBEDIENCE;
        loop {
            let (left, ..) = self.look(Some(key)).await?;
            let is_left = |seen: &&Seen| ours.iter().any(|one| one.known.epoch == seen.known.epoch);
            let left: Vec<_> = left.iter().filter(is_left).collect();
            if left.is_empty() {
                break;
            }
            let late = Instant::now().since(until);
            if late > STATEMENT_TIME {
                return Err(Fault::Silent);
            }
            if late > Duration::ZERO {
                for seen in left {
                    statement!(pool, end, seen.held.session, key, true, Duration::ZERO)?;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        let holders = ours.into_iter().map(|seen| seen.held.owner).collect();
        Ok(Eviction { holders, token })
    }
}

/// What is seen of one name.
fn status(
    name: Name,
    seen: &[&Seen],
    (ties, called): (&[Tie], &str),
    behind: Vec<Owner>,
) -> Status {
    let holders = seen.iter().map(|seen| Holding {
        owner: seen.held.owner.clone(),
        token: seen.token(),
        held: seen.age,
        lease_left: None,
    });
    let waiting = ties.iter().filter(|tie| !tie.granted && tie.lock == called);
    let mut waiters: Vec<_> = waiting.filter_map(|tie| tie.waiter.clone()).collect();
    waiters.extend(behind);
    let used_as = seen.first().map(|seen| seen.held.used_as.clone());
    // By a transaction, or by somebody who is just about to say so.
    let taken = ties.iter().any(|tie| tie.granted && tie.lock == called);
    let kind = used_as.or_else(|| (taken || !waiters.is_empty()).then(|| "mutex".to_owned()));
    Status { name, kind, holders: holders.collect(), waiters, count: None }
}

#[async_trait]
impl<D: Ties> Admin for Session<D> {
    async fn list(&self) -> Result<Vec<Status>> {
        let surveyed = self.look(None).await;
        let (seen, ties, _) = surveyed.map_err(|fault| error::<D>(fault, "listing"))?;
        let mut names: Vec<(Name, &str)> = seen
            .iter()
            .filter_map(|seen| {
                let name = seen.held.key.strip_prefix(&self.prefix)?.parse().ok()?;
                Some((name, seen.held.lock.as_str()))
            })
            .collect();
        names.sort();
        names.dedup();
        let shown = names.into_iter().map(|(name, called)| {
            let key = self.key(&name);
            let of_name: Vec<_> =
                seen.iter().filter(|seen| seen.held.key.as_bytes() == key).collect();
            status(name, &of_name, (&ties, called), self.behind(&key))
        });
        Ok(shown.collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let key = self.key(name);
        let surveyed = self.look(Some(&key)).await;
        let (seen, ties, called) = surveyed.map_err(|fault| error::<D>(fault, "looking"))?;
        let of_name: Vec<_> = seen.iter().filter(|seen| seen.held.key.as_bytes() == key).collect();
        let called = called.unwrap_or_default();
        Ok(status(name.clone(), &of_name, (&ties, &called), self.behind(&key)))
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let evicted = self.evict_all(&self.key(name), reason).await;
        evicted.map_err(|fault| Arc::new(fault).error(D::NAME, "evicting"))
    }
}
