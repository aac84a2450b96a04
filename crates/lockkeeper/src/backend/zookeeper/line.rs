//! Standing in line at a node: joining, waiting for the turn, and leaving without a trace.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ZkError, Stat};

use super::layout::{Dialect, LAST_SEQUENCE};
use super::queue::{Turn, turn};
use super::session::{Ensemble, Session, answered, delete_for_good, failed, is_answer};
use super::{BACKEND, OUTAGE, RETRY};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::undo::UNDOING;

/// A waiter looks again after this even if it hears nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A line, as one request sees it.
pub(super) struct Line<'a> {
    pub(super) ensemble: &'a Arc<Ensemble>,
    pub(super) session: &'a Arc<Session>,
    pub(super) dialect: Dialect,
    /// The node under which the line stands.
    pub(super) dir: &'a str,
    /// What the child of this request is called, up to its number.
    pub(super) prefix: &'a str,
}

/// A place in a line.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) child: String,
    pub(super) czxid: i64,
    /// When it was asked for.
    pub(super) sent: Instant,
}

/// How waiting ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// It is our turn.
    Served,
    /// It is not, and we were not to wait.
    Busy,
    /// Our place is gone, with the session or by somebody's hand.
    Gone,
}

impl Line<'_> {
    pub(super) fn path(&self, child: &str) -> String {
        format!("{}/{child}", self.dir)
    }

    /// Takes a place: our own if the request has one already. `None`: the session is over. Also who is
    /// in line then. One round trip, unless the node of the line must be made first.
    pub(super) async fn join(&self, data: &str) -> Result<Option<(Place, Vec<String>)>> {
        let since = Instant::now();
        let path = self.path(self.prefix);
        let options = self.ensemble.options(CreateMode::EphemeralSequential);
        loop {
            let client = &self.session.client;
            let sent = Instant::now();
            // Both are sent before either is answered; the server keeps their order.
            let creating = client.create(&path, data.as_bytes(), &options);
            let listing = client.list_children(self.dir);
            let both = async { Ok((creating.await, listing.await)) };
            let (created, listed) =
                answered(both).await.unwrap_or((Err(ZkError::Timeout), Err(ZkError::Timeout)));
            let error = match created {
                Ok((stat, sequence)) => {
                    self.session.acknowledged(sent, Some(&stat));
                    let child = format!("{}{sequence}", self.prefix);
                    let place = self.in_order(Place { child, czxid: stat.czxid, sent }).await?;
                    let children = match listed {
                        Ok(children) => children,
                        Err(_) => match self.list().await? {
                            Some(children) => children,
                            None => return Ok(None),
                        },
                    };
                    return self.only_one(place, children).await.map(Some);
                }
                Err(ZkError::NoNode) => match make(self.ensemble, self.session, self.dir).await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if self.session.is_over() {
                return Ok(None);
            }
            if is_answer(&error) || Instant::now().since(since) > OUTAGE {
                return Err(failed(&format!("taking a place at {}", self.dir), error));
            }
            // It may have taken effect.
            if let Ok(Some(place)) = self.find(sent).await {
                let place = self.in_order(place).await?;
                let children = self.list().await?;
                return Ok(children.map(|children| (place, children)));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Gives up a place whose number is not one to wait by.
    async fn in_order(&self, place: Place) -> Result<Place> {
        let number = place.child.strip_prefix(self.prefix).and_then(|number| number.parse().ok());
        if number.is_some_and(|number: i64| (0..=LAST_SEQUENCE).contains(&number)) {
            return Ok(place);
        }
        delete_for_good(self.session, &self.path(&place.child)).await;
        Err(used_up(self.dir))
    }

    /// Our own place, after an answer was lost.
    async fn find(&self, sent: Instant) -> Result<Option<Place>, ZkError> {
        let client = &self.session.client;
        // The server that we have now may not have heard yet of what the other one did.
        answered(client.sync(self.dir)).await?;
        let children = answered(client.list_children(self.dir)).await?;
        let mut found: Vec<Place> = Vec::new();
        for (child, stat) in self.ours(&children).await? {
            found.push(Place { child, czxid: stat.czxid, sent });
        }
        Ok(self.keep_first(found).await)
    }

    /// The children of this request that live in this session. Those of an earlier session go: nobody
    /// waits for them any more.
    async fn ours(&self, children: &[String]) -> Result<Vec<(String, Stat)>, ZkError> {
        let mut ours = Vec::new();
        for child in children.iter().filter(|child| child.starts_with(self.prefix)) {
            let path = self.path(child);
            match answered(self.session.client.check_stat(&path)).await? {
                Some(stat) if stat.ephemeral_owner == self.session.id() => {
                    ours.push((child.clone(), stat));
                }
                Some(_) => delete_for_good(self.session, &path).await,
                None => {}
            }
        }
        Ok(ours)
    }

    /// A request has one place only: the first that it got.
    async fn only_one(
        &self,
        place: Place,
        mut children: Vec<String>,
    ) -> Result<(Place, Vec<String>)> {
        let several = children.iter().filter(|child| child.starts_with(self.prefix)).count() > 1;
        if !several {
            return Ok((place, children));
        }
        let ours =
            self.ours(&children).await.map_err(|error| failed("looking for our place", error))?;
        let places: Vec<Place> = ours
            .into_iter()
            .map(|(child, stat)| Place { child, czxid: stat.czxid, sent: place.sent })
            .collect();
        let first = self.keep_first(places).await.unwrap_or(place);
        children.retain(|child| !child.starts_with(self.prefix) || *child == first.child);
        Ok((first, children))
    }

    async fn keep_first(&self, mut places: Vec<Place>) -> Option<Place> {
        places.sort_by_key(|place| place.czxid);
        let mut places = places.into_iter();
        let first = places.next();
        for place in places {
            delete_for_good(self.session, &self.path(&place.child)).await;
        }
        first
    }

    /// Who is in line. `None`: the session is over, or the line is gone and our place with it.
    pub(super) async fn list(&self) -> Result<Option<Vec<String>>> {
        while !self.session.is_over() {
            match answered(self.session.client.list_children(self.dir)).await {
                Ok(children) => return Ok(Some(children)),
                Err(ZkError::NoNode) => return Ok(None),
                Err(error) if is_answer(&error) => {
                    return Err(failed(&format!("looking at {}", self.dir), error));
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
        Ok(None)
    }

    /// Waits until a child may have gone, or the session is over. Cancel safe.
    pub(super) async fn changed(&self, child: &str) -> Result<()> {
        let path = self.path(child);
        // As Curator and kazoo do: a watch on the data tells of the end as well, and leaves nothing
        // behind where the node is gone already.
        match answered(self.session.client.get_and_watch_data(&path)).await {
            Ok((_, _, watcher)) => tokio::select! {
                _ = watcher.changed() => {}
                () = self.session.over() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            },
            Err(ZkError::NoNode) => {}
            Err(error) if is_answer(&error) => {
                return Err(failed(&format!("watching {path}"), error));
            }
            Err(_) => tokio::time::sleep(RETRY).await,
        }
        Ok(())
    }

    /// Waits for the turn, watching only the one ahead. The place is kept through any outage that the
    /// session survives. Cancel safe.
    pub(super) async fn wait(
        &self,
        place: &Place,
        mut children: Vec<String>,
        once: bool,
    ) -> Result<Waited> {
        loop {
            let ahead = match turn(self.dialect, &children, &place.child) {
                Turn::Ours => return Ok(Waited::Served),
                Turn::Gone => return Ok(Waited::Gone),
                Turn::After(_) if once => return Ok(Waited::Busy),
                Turn::After(ahead) => ahead,
            };
            self.changed(ahead).await?;
            match self.list().await? {
                Some(now) => children = now,
                None => return Ok(Waited::Gone),
            }
        }
    }
}

fn used_up(dir: &str) -> Error {
    Error::Unavailable {
        backend: BACKEND,
        context: format!(
            "the sequence numbers of {dir} are used up; delete that node while nobody uses the lock, \
             and they begin again"
        ),
        source: None,
    }
}

/// Makes a node and those above it: as containers, which the server removes when they are empty,
/// where it can; kazoo expects them to stay.
pub(super) async fn make(
    ensemble: &Ensemble,
    session: &Session,
    path: &str,
) -> Result<(), ZkError> {
    let persistent = ensemble.options(CreateMode::Persistent);
    if ensemble.address.dialect == Dialect::Kazoo {
        return answered(session.client.mkdir(path, &persistent)).await;
    }
    let container = ensemble.options(CreateMode::Container);
    match answered(session.client.mkdir(path, &container)).await {
        Err(ZkError::Unimplemented) => answered(session.client.mkdir(path, &persistent)).await,
        made => made,
    }
}

/// What a request may have left at the servers: removed in the background when dropped, unless it is
/// settled.
pub(super) struct Traces {
    ensemble: Arc<Ensemble>,
    session: Arc<Session>,
    /// Where, and what its children there begin with.
    places: Vec<(String, String)>,
}

impl Traces {
    pub(super) fn of(ensemble: &Arc<Ensemble>, session: &Arc<Session>) -> Self {
        let (ensemble, session) = (Arc::clone(ensemble), Arc::clone(session));
        Self { ensemble, session, places: Vec::new() }
    }

    /// From now on the request may leave something there.
    pub(super) fn expect(&mut self, dir: &str, stem: &str) {
        self.places.push((dir.to_owned(), stem.to_owned()));
    }

    /// Nothing is left, or what is left is a hold.
    pub(super) fn settle(&mut self) {
        self.places.clear();
    }

    /// Removes all of it, and waits until that is done or the session is over. Cancel safe.
    pub(super) async fn clear(mut self) {
        for (dir, stem) in &self.places {
            remove(&self.session, dir, stem).await;
        }
        self.settle();
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let places = std::mem::take(&mut self.places);
        if places.is_empty() {
            return;
        }
        let session = Arc::clone(&self.session);
        let undoing = UNDOING.begin();
        self.ensemble.runtime.spawn(async move {
            let _undoing = undoing;
            for (dir, stem) in places {
                remove(&session, &dir, &stem).await;
            }
        });
    }
}

/// Removes whatever a request has in a line. What is still on its way in this session comes before
/// what we send now; `sync` waits for what went another way.
async fn remove(session: &Session, dir: &str, stem: &str) {
    while !session.is_over() {
        let looking = async {
            session.client.sync(dir).await?;
            session.client.list_children(dir).await
        };
        match answered(looking).await {
            Ok(children) => {
                for child in children.iter().filter(|child| child.starts_with(stem)) {
                    delete_for_good(session, &format!("{dir}/{child}")).await;
                }
                return;
            }
            Err(error) if is_answer(&error) => return,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

impl Line<'_> {
    /// Waits until there are no more than `of` children, ours among them. `None`: there were not from
    /// the start. Only the first in line for permits does this, so one watches, however many wait.
    pub(super) async fn room(
        &self,
        place: &Place,
        mut children: Vec<String>,
        of: u32,
        once: bool,
    ) -> Result<Option<Waited>> {
        let mut waited = false;
        loop {
            if !children.contains(&place.child) {
                return Ok(Some(Waited::Gone));
            }
            if children.len() <= of as usize {
                return Ok(waited.then_some(Waited::Served));
            }
            if once {
                return Ok(Some(Waited::Busy));
            }
            match answered(self.session.client.list_and_watch_children(self.dir)).await {
                Ok((now, watcher)) => {
                    children = now;
                    if children.len() > of as usize && children.contains(&place.child) {
                        tokio::select! {
                            _ = watcher.changed() => {}
                            () = self.session.over() => return Ok(Some(Waited::Gone)),
                            () = tokio::time::sleep(LOOK_AGAIN) => {}
                        }
                        match self.list().await? {
                            Some(now) => children = now,
                            None => return Ok(Some(Waited::Gone)),
                        }
                    }
                }
                Err(ZkError::NoNode) => return Ok(Some(Waited::Gone)),
                Err(error) if is_answer(&error) => {
                    return Err(failed(&format!("watching {}", self.dir), error));
                }
                Err(_) if self.session.is_over() => return Ok(Some(Waited::Gone)),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
            waited = true;
        }
    }
}
