//! Hears from the servers which keys have changed, and how far that has been heard.
//!
//! The server itself says so (`CLIENT TRACKING` in broadcast mode, Redis 6 and later): whoever changes a key and by
//! whatever command, when it ends, and when it is evicted. A connection that breaks has missed something. One that
//! stays has not, but it may be late: a `PING` says how late. What was acknowledged to anybody before it was sent, the
//! server has said before it answers, on the same connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Client, PushInfo, PushKind, RedisResult, Value};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::commands::{COMMAND_TIME, failed, unanswered};
use super::link::{Origin, pushing};
use super::nodes::Nodes;
use crate::error::Result;

/// First and longest pause between two attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often it is looked which servers there are.
const LOOK: Duration = Duration::from_secs(2);

/// A connection that does not answer for so long is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who wants to hear. Called from tasks that must not be held up.
pub trait Follower: Send + Sync + 'static {
    /// Whether it still wants to.
    fn is_there(&self) -> bool;

    /// This key has changed.
    fn changed(&self, key: &[u8]);

    /// Anything may have changed, and nobody will say what. Nothing is heard until [`caught_up`](Self::caught_up).
    fn missed(&self);

    /// The time, by whatever clock.
    fn now(&self) -> u64;

    /// Every change that was acknowledged to whoever made it before that time has been said.
    fn caught_up(&self, then: u64);
}

/// Follows all servers until nobody wants to hear any more.
pub(super) async fn follow(
    nodes: Arc<Nodes>,
    prefix: String,
    every: Duration,
    follower: Arc<dyn Follower>,
) {
    let group = Arc::new(Group { followed: Mutex::default(), follower, prefix, every });
    loop {
        if !group.follower.is_there() {
            return group.end();
        }
        match nodes.all().await {
            Ok(nodes) => {
                let servers = nodes
                    .iter()
                    .map(|node| (node.address.clone(), node.commands.link.origin.clone()));
                group.set(servers.collect());
            }
            Err(error) => tracing::debug!(%error, "nobody says which servers there are"),
        }
        sleep(LOOK).await;
    }
}

/// All servers that are followed.
struct Group {
    followed: Mutex<HashMap<String, Followed>>,
    follower: Arc<dyn Follower>,
    prefix: String,
    every: Duration,
}

struct Followed {
    task: AbortHandle,
    /// How far it has been heard; `None`: it is not.
    heard: Option<u64>,
}

impl Group {
    /// Follows these and no others.
    fn set(self: &Arc<Self>, servers: HashMap<String, Origin>) {
        let mut followed = self.followed.lock();
        let before = followed.len();
        followed.retain(|address, followed| {
            let stays = servers.contains_key(address);
            if !stays {
                followed.task.abort();
            }
            stays
        });
        let gone = followed.len() < before;
        for (address, origin) in servers {
            followed.entry(address.clone()).or_insert_with(|| {
                let task = tokio::spawn(follow_one(Arc::clone(self), address, origin));
                Followed { task: task.abort_handle(), heard: None }
            });
        }
        drop(followed);
        if gone {
            self.follower.missed();
        }
    }

    fn end(&self) {
        self.followed.lock().drain().for_each(|(_, followed)| followed.task.abort());
    }

    /// One of them has been heard so far; `None`: it has been missed. Nothing is known before all of them are heard.
    fn heard(&self, address: &str, heard: Option<u64>) {
        let mut followed = self.followed.lock();
        // One that is not followed any more: its task is about to end.
        let Some(this) = followed.get_mut(address) else { return };
        this.heard = heard;
        if heard.is_none() {
            return self.follower.missed();
        }
        let all: Option<Vec<u64>> = followed.values().map(|one| one.heard).collect();
        if let Some(least) = all.and_then(|all| all.into_iter().min()) {
            self.follower.caught_up(least);
        }
    }
}

/// Follows one server, as often as it takes.
async fn follow_one(group: Arc<Group>, address: String, origin: Origin) {
    let mut pause = RECONNECT.0;
    loop {
        let connecting = timeout(2 * COMMAND_TIME, connect(&group, &origin)).await;
        let connected = connecting.unwrap_or_else(|_| Err(unanswered(2 * COMMAND_TIME)));
        match connected {
            Ok((mut connection, moves)) => {
                pause = RECONNECT.0;
                // Whatever was said meanwhile, we did not hear it.
                group.heard(&address, None);
                tokio::select! {
                    () = origin.moved(moves) => {}
                    () = listen(&group, &address, &mut connection) => {}
                }
                group.heard(&address, None);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot follow the changes at a server; trying again")
            }
        }
        if !group.follower.is_there() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// Asks again and again how far it has been heard, until the connection breaks or nobody wants to know.
async fn listen(group: &Group, address: &str, connection: &mut MultiplexedConnection) {
    while group.follower.is_there() {
        let now = group.follower.now();
        let ping = redis::cmd("PING");
        // What the server said before has been taken in by the time that this returns.
        let answered = timeout(PATIENCE, ping.query_async::<Value>(connection)).await;
        if !answered.is_ok_and(|answer| answer.is_ok()) {
            return;
        }
        group.heard(address, Some(now));
        sleep(group.every).await;
    }
}

async fn connect(group: &Arc<Group>, origin: &Origin) -> Result<(MultiplexedConnection, u64)> {
    let (client, moves) = origin.find().await?;
    let connection = track(&client, &group.prefix, Arc::clone(&group.follower)).await;
    Ok((connection.map_err(|error| failed("following changes", error))?, moves))
}

async fn track(
    client: &Client,
    prefix: &str,
    follower: Arc<dyn Follower>,
) -> RedisResult<MultiplexedConnection> {
    // In the order in which it is said, and before any answer that comes later.
    let hear = move |push: PushInfo| -> std::result::Result<(), ()> {
        hear(&*follower, &push);
        Ok(())
    };
    let mut connection = pushing(client, hear).await?;
    let mut track = redis::cmd("CLIENT");
    track.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(prefix);
    track.exec_async(&mut connection).await?;
    Ok(connection)
}

fn hear(follower: &dyn Follower, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    for said in &push.data {
        match said {
            Value::Array(keys) => keys.iter().for_each(|key| match key {
                Value::BulkString(key) => follower.changed(key),
                Value::SimpleString(key) => follower.changed(key.as_bytes()),
                _ => follower.missed(),
            }),
            // All keys are gone.
            _ => follower.missed(),
        }
    }
}
