//! Looking at an ensemble, and forcing it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use zookeeper_client::{Error as ZkError, Stat};

use super::layout::{Dialect, LATCH, LEASES, LOCKS, Note, Role, name};
use super::line::make;
use super::queue::line;
use super::reasons::with_reasons;
use super::session::{Session, answered, failed};
use super::{ZooKeeper, latches};
use crate::backend::{Admin, Eviction, Holding, Status};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::RequestId;
use crate::token::Token;

/// So many names are looked at at the same time.
const AT_ONCE: usize = 32;
/// So often an eviction is tried again when somebody comes or goes meanwhile.
const TRIES: usize = 20;
/// As many characters of a child of Curator's name its request.
const STEM: usize = "_c_00000000-0000-0000-0000-000000000000-".len();

/// Somebody at a lock.
struct Party {
    path: String,
    note: Note,
    role: Role,
    stat: Stat,
}

impl Party {
    fn family(&self) -> &'static str {
        match self.note.family.as_deref() {
            Some("mutex") => "mutex",
            Some("semaphore") => "semaphore",
            Some("read-write lock") => "read-write lock",
            _ if self.role == Role::Mutex => "mutex",
            _ => "read-write lock",
        }
    }

    fn token(&self) -> Token {
        let czxid = u64::try_from(self.stat.czxid).ok().and_then(Token::new);
        self.note.token.or(czxid).unwrap_or(Token::MIN)
    }

    fn key(&self, dialect: Dialect) -> &str {
        let child = self.path.rsplit('/').next().unwrap_or_default();
        dialect.contender(child).map_or("", |contender| contender.key)
    }

    /// The request behind it, if it is one of ours.
    fn id(&self) -> Option<RequestId> {
        let child = self.path.rsplit('/').next()?;
        let hex: String = match child.strip_prefix("_c_") {
            Some(rest) => rest.get(..36)?.chars().filter(|c| *c != '-').collect(),
            None => child.get(..32)?.to_owned(),
        };
        let number = u128::from_str_radix(&hex, 16).ok()?;
        Some(RequestId::from_bytes(number.to_be_bytes()))
    }
}

/// What there is at a lock's node.
#[derive(Default)]
struct Seen {
    holders: Vec<Party>,
    waiters: Vec<Party>,
    permits: bool,
    count: Option<u32>,
}

impl ZooKeeper {
    /// The children of a node; none where there is no node.
    async fn children(session: &Session, dir: &str) -> Result<Vec<String>, ZkError> {
        // Sent together: what we see is not older than now.
        let (syncing, listing) = (session.client.sync(dir), session.client.list_children(dir));
        let both = async {
            syncing.await?;
            listing.await
        };
        match answered(both).await {
            Err(ZkError::NoNode) => Ok(Vec::new()),
            children => children,
        }
    }

    /// Reads the nodes of some children; those that go meanwhile are left out.
    async fn parties(
        session: &Session,
        dir: &str,
        children: &[(String, Role)],
    ) -> Result<Vec<Party>, ZkError> {
        let paths: Vec<String> =
            children.iter().map(|(child, _)| format!("{dir}/{child}")).collect();
        let reading = join_all(paths.iter().map(|path| session.client.get_data(path)));
        let mut parties = Vec::new();
        let read = answered(async { Ok(reading.await) }).await?;
        for ((path, (_, role)), read) in paths.iter().zip(children).zip(read) {
            match read {
                Ok((data, stat)) => {
                    let (path, note, role) = (path.clone(), Note::parse(&data), *role);
                    parties.push(Party { path, note, role, stat });
                }
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(parties)
    }

    async fn look(&self, session: &Session, dir: &str) -> Result<Seen, ZkError> {
        let children = Self::children(session, dir).await?;
        let mut seen = Seen::default();
        if children.iter().any(|child| child == LATCH) {
            let count = latches::count_at(&self.ensemble, session, dir).await?;
            seen.count = count.map(|(count, _)| count);
        }
        let (in_line, holders) = line(self.dialect, &children);
        let in_line: Vec<_> =
            in_line.iter().map(|party| (party.child.to_owned(), party.role)).collect();
        seen.holders = Self::parties(session, dir, &in_line[..holders]).await?;
        // Of those under one number the first to come is the first to be shown.
        seen.holders.sort_by(|one, two| {
            let key = |party: &Party| party.key(self.dialect).to_owned();
            key(one).cmp(&key(two)).then(one.stat.czxid.cmp(&two.stat.czxid))
        });
        seen.waiters = Self::parties(session, dir, &in_line[holders..]).await?;
        if in_line.is_empty() && children.iter().any(|child| child == LOCKS || child == LEASES) {
            self.look_at_permits(session, dir, &mut seen).await?;
        }
        Ok(seen)
    }

    async fn look_at_permits(
        &self,
        session: &Session,
        dir: &str,
        seen: &mut Seen,
    ) -> Result<(), ZkError> {
        let (locks, leases) = (format!("{dir}/{LOCKS}"), format!("{dir}/{LEASES}"));
        let waiting = Self::children(session, &locks).await?;
        let (waiting, _) = line(Dialect::Curator, &waiting);
        let waiting: Vec<_> =
            waiting.iter().map(|party| (party.child.to_owned(), Role::Mutex)).collect();
        // Whoever has a permit and is still in line has one too many.
        let first = waiting.first().and_then(|(child, _)| child.get(..STEM));
        let permits: Vec<_> = Self::children(session, &leases)
            .await?
            .into_iter()
            .filter(|child| first.is_none_or(|first| !child.starts_with(first)))
            .map(|child| (child, Role::Mutex))
            .collect();
        seen.holders = Self::parties(session, &leases, &permits).await?;
        seen.holders.sort_by_key(|party| party.stat.czxid);
        seen.waiters = Self::parties(session, &locks, &waiting).await?;
        seen.permits = true;
        Ok(())
    }

    /// What a name is in use as that rules out a newcomer with this czxid, who is for a permit or for a
    /// lock. Of two that come at the same time the first one stays.
    pub(super) async fn used_before(
        &self,
        session: &Session,
        dir: &str,
        children: &[String],
        czxid: i64,
        permit: bool,
    ) -> Result<Option<&'static str>> {
        let wrong = |error| failed(&format!("looking at {dir}"), error);
        let there = |special: &str| children.iter().any(|child| child == special);
        if there(LATCH) {
            let latch = latches::count_at(&self.ensemble, session, dir).await.map_err(wrong)?;
            if latch.is_some_and(|(_, since)| since < czxid) {
                return Ok(Some("latch"));
            }
        }
        if permit {
            return self.locked_before(session, dir, children, czxid).await.map_err(wrong);
        }
        if !there(LOCKS) && !there(LEASES) {
            return Ok(None);
        }
        // First the line: whoever leaves it has a permit by then. Every permit counts, however new: a
        // lock that had been there before its owner came would have kept that one out of the line.
        for (special, newest) in [(LOCKS, czxid), (LEASES, i64::MAX)] {
            let dir = format!("{dir}/{special}");
            let permits = Self::children(session, &dir).await.map_err(wrong)?;
            let permits: Vec<_> = permits.into_iter().map(|child| (child, Role::Mutex)).collect();
            let parties = Self::parties(session, &dir, &permits).await.map_err(wrong)?;
            if parties.iter().any(|party| party.stat.czxid < newest) {
                return Ok(Some("semaphore"));
            }
        }
        Ok(None)
    }

    /// What the first of those is who came before.
    pub(super) async fn locked_before(
        &self,
        session: &Session,
        dir: &str,
        children: &[String],
        czxid: i64,
    ) -> Result<Option<&'static str>, ZkError> {
        let (in_line, _) = line(self.dialect, children);
        let in_line: Vec<_> =
            in_line.iter().map(|party| (party.child.to_owned(), party.role)).collect();
        let parties = Self::parties(session, dir, &in_line).await?;
        Ok(parties.iter().find(|party| party.stat.czxid < czxid).map(Party::family))
    }

    async fn try_evict(
        &self,
        session: &Session,
        dir: &str,
        reason: &str,
    ) -> Result<Option<Eviction>, ZkError> {
        let seen = self.look(session, dir).await?;
        let (data, stat) = match answered(session.client.get_data(dir)).await {
            Ok(found) => found,
            Err(ZkError::NoNode) => {
                make(&self.ensemble, session, dir).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let ids: Vec<RequestId> = seen.holders.iter().filter_map(Party::id).collect();
        let data = with_reasons(&data, &ids, reason);
        let sent = Instant::now();
        if seen.holders.is_empty() {
            // A step of its own, so that the token is larger than any before.
            let changed = answered(session.client.set_data(dir, &data, Some(stat.version))).await;
            let token = match changed {
                Ok(stat) => u64::try_from(stat.mzxid).ok().and_then(Token::new),
                Err(ZkError::BadVersion | ZkError::NoNode) => return Ok(None),
                Err(error) => return Err(error),
            };
            let token = token.ok_or(ZkError::UnexpectedError("no zxid".into()))?;
            return Ok(Some(Eviction { holders: Vec::new(), token }));
        }
        let mut writer = session.client.new_multi_writer();
        writer.add_set_data(dir, &data, Some(stat.version))?;
        for holder in &seen.holders {
            writer.add_delete(&holder.path, None)?;
        }
        match answered(async { Ok(writer.commit().await) }).await?.map_err(ZkError::from) {
            Ok(_) => session.acknowledged(sent, None),
            Err(ZkError::BadVersion | ZkError::NoNode) => return Ok(None),
            Err(error) => return Err(error),
        }
        let highest = seen.holders.iter().map(|holder| holder.token().get()).max().unwrap_or(0);
        let token = Token::new(highest + 1).unwrap_or(Token::MIN);
        let holders = seen.holders.into_iter().map(|holder| holder.note.owner).collect();
        Ok(Some(Eviction { holders, token }))
    }

    async fn status(&self, session: &Session, name: &Name) -> Result<Status> {
        let seen = self.look(session, &self.dir(name)).await;
        let seen = seen.map_err(|error| failed(&format!("looking at {name}"), error))?;
        let first = seen.holders.first().or(seen.waiters.first());
        let family = first.map(|first| if seen.permits { "semaphore" } else { first.family() });
        Ok(Status {
            name: name.clone(),
            kind: family.or(seen.count.map(|_| "latch")).map(str::to_owned),
            holders: seen.holders.iter().map(|holder| holding(session, holder)).collect(),
            waiters: seen.waiters.into_iter().map(|waiter| waiter.note.owner).collect(),
            count: seen.count,
        })
    }

    async fn session(&self) -> Result<Arc<Session>> {
        self.ensemble.session().await
    }
}

/// How long it is held is counted from when it was asked for.
fn holding(session: &Session, holder: &Party) -> Holding {
    let now = session.leader_time().unwrap_or(holder.stat.ctime);
    let held = u64::try_from(now.saturating_sub(holder.stat.ctime)).unwrap_or(0);
    Holding {
        owner: holder.note.owner.clone(),
        token: holder.token(),
        held: Duration::from_millis(held),
        lease_left: holder.note.ttl_ms.map(Duration::from_millis),
    }
}

#[async_trait]
impl Admin for ZooKeeper {
    async fn list(&self) -> Result<Vec<Status>> {
        let session = self.session().await?;
        let base = &self.ensemble.address.base;
        let root = if base.is_empty() { "/" } else { base };
        let children = Self::children(&session, root).await;
        let children = children.map_err(|error| failed(&format!("looking at {root}"), error))?;
        let mut names: Vec<Name> = children
            .iter()
            .filter(|child| !(base.is_empty() && *child == "zookeeper"))
            .filter_map(|child| name(child))
            .collect();
        names.sort();
        let shown = futures_util::stream::iter(names)
            .map(async |name| self.status(&session, &name).await)
            .buffered(AT_ONCE);
        let shown: Vec<Status> = shown.try_collect().await?;
        Ok(shown.into_iter().filter(|status| status.kind.is_some()).collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        self.status(&*self.session().await?, name).await
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let (session, dir) = (self.session().await?, self.dir(name));
        for _ in 0..TRIES {
            match self.try_evict(&session, &dir, reason).await {
                Ok(Some(eviction)) => return Ok(eviction),
                Ok(None) => {}
                Err(error) => return Err(failed(&format!("the eviction of {name}"), error)),
            }
        }
        Err(Error::Unavailable {
            backend: super::BACKEND,
            context: format!("the holders of {name} change too fast to evict them; try again"),
            source: None,
        })
    }
}
