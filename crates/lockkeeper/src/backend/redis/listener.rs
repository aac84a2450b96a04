//! The one connection for messages of one server, which comes back by itself and forgets no channel.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use parking_lot::Mutex;
use redis::Client;
use tokio::sync::{mpsc, oneshot};

use super::commands::{COMMAND_TIME, failed};
use super::layout::{WAKE, parse_message};
use super::link::Origin;
use super::wire::{Heard, Wire};
use crate::backend::register::Register;
use crate::error::Result;

/// First and longest pause between two attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A connection that says nothing for so long is asked whether it still lives.
const SILENCE: Duration = Duration::from_secs(5);

/// Who listens to what.
pub(in crate::backend) struct Listener {
    requests: Arc<Register>,
    origin: Origin,
    /// Whether the channels of Redisson belong to slots.
    sharded: bool,
    /// Who wants which channel, besides our own.
    wanted: Mutex<HashMap<String, Wanted>>,
    changes: mpsc::UnboundedSender<Change>,
    own: String,
}

/// How many want a channel, and the server's confirmation that it sends it.
struct Wanted {
    count: usize,
    confirmed: Shared<oneshot::Receiver<()>>,
}

enum Change {
    Subscribe(String, oneshot::Sender<()>),
    Unsubscribe(String),
}

impl Listener {
    /// Connects and listens to this client's own channel.
    pub(super) async fn start(
        origin: Origin,
        id: &str,
        requests: Arc<Register>,
        sharded: bool,
    ) -> Result<Arc<Self>> {
        let (listener, inbox) = Self::new(origin, id, requests, sharded);
        let first = connect(&listener).await?;
        tokio::spawn(listen(Arc::downgrade(&listener), inbox, Some(first)));
        Ok(listener)
    }

    /// Listens to this client's own channel as soon as the server can be reached.
    pub(in crate::backend) fn start_later(
        client: Client,
        id: &str,
        requests: Arc<Register>,
    ) -> Arc<Self> {
        let (listener, inbox) = Self::new(Origin::Fixed(Box::new(client)), id, requests, false);
        tokio::spawn(listen(Arc::downgrade(&listener), inbox, None));
        listener
    }

    fn new(
        origin: Origin,
        id: &str,
        requests: Arc<Register>,
        sharded: bool,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Change>) {
        let own = format!("{WAKE}{id}");
        let (changes, inbox) = mpsc::unbounded_channel();
        let wanted = Mutex::default();
        (Arc::new(Self { requests, origin, sharded, wanted, changes, own }), inbox)
    }

    /// Listens to some channels until the value is dropped. Returns once the server has confirmed
    /// it, or has not within the time of a command: the regular re-check is the remedy then.
    pub(super) async fn also(self: &Arc<Self>, channels: Vec<String>) -> Listening {
        let confirmed: Vec<_> = channels.iter().map(|channel| self.want(channel)).collect();
        let listening = Listening { listener: Arc::clone(self), channels };
        let all = futures_util::future::join_all(confirmed);
        let _ = tokio::time::timeout(COMMAND_TIME, all).await;
        listening
    }

    fn want(&self, channel: &str) -> Shared<oneshot::Receiver<()>> {
        let mut wanted = self.wanted.lock();
        let wanted = wanted.entry(channel.to_owned()).or_insert_with(|| {
            let (done, confirmed) = oneshot::channel();
            // Without the task there is nobody to listen, and the connection is gone for good.
            let _ = self.changes.send(Change::Subscribe(channel.to_owned(), done));
            Wanted { count: 0, confirmed: confirmed.shared() }
        });
        wanted.count += 1;
        wanted.confirmed.clone()
    }
}

/// Channels that somebody listens to.
pub(super) struct Listening {
    listener: Arc<Listener>,
    channels: Vec<String>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut wanted = self.listener.wanted.lock();
        for channel in self.channels.drain(..) {
            let Some(others) = wanted.get_mut(&channel) else { continue };
            others.count -= 1;
            if others.count == 0 {
                wanted.remove(&channel);
                let _ = self.listener.changes.send(Change::Unsubscribe(channel));
            }
        }
    }
}

/// A connection, and how often the server had been another one when it was made.
struct Connection {
    wire: Wire,
    origin: Origin,
    moves: u64,
}

/// Connects, and subscribes to everything that is wanted.
async fn connect(listener: &Listener) -> Result<Connection> {
    let connecting = async {
        let (client, moves) = listener.origin.find().await?;
        let wanted: Vec<String> = listener.wanted.lock().keys().cloned().collect();
        let wire = Wire::connect(&client, listener.sharded, &listener.own, &wanted);
        let wire = wire.await.map_err(|error| failed("listening", error))?;
        Ok(Connection { wire, origin: listener.origin.clone(), moves })
    };
    let connected = tokio::time::timeout(2 * COMMAND_TIME, connecting).await;
    let timed_out = |_| redis::RedisError::from((redis::ErrorKind::Io, "timed out"));
    connected.map_err(|elapsed| failed("listening", timed_out(elapsed))).flatten()
}

/// Listens until the last user is gone; connects again as often as it takes.
async fn listen(
    listener: Weak<Listener>,
    mut inbox: mpsc::UnboundedReceiver<Change>,
    mut connection: Option<Connection>,
) {
    loop {
        if let Some(connection) = &mut connection {
            take_in(&listener, &mut inbox, connection).await;
        }
        let mut pause = RECONNECT.0;
        connection = loop {
            let Some(present) = listener.upgrade() else { return };
            match connect(&present).await {
                Ok(connection) => {
                    // Whatever was said meanwhile, we did not hear it.
                    present.requests.missed();
                    break Some(connection);
                }
                Err(error) => tracing::debug!(%error, "cannot listen; trying again"),
            }
            drop(present);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT.1);
        };
    }
}

/// Takes in messages and changes until the connection ends, the server is not the right one any more,
/// or nobody is left.
async fn take_in(
    listener: &Weak<Listener>,
    inbox: &mut mpsc::UnboundedReceiver<Change>,
    Connection { wire, origin, moves }: &mut Connection,
) {
    loop {
        tokio::select! {
            heard = wire.next() => {
                let Some(listener) = listener.upgrade() else { return };
                match heard {
                    Heard::Message(channel, _) if channel != listener.own => {
                        listener.requests.wake_all();
                    }
                    Heard::Message(_, text) => if let Some((id, word)) = parse_message(&text) {
                        listener.requests.hear(id, word);
                    }
                    // Its slot is elsewhere now. Who still wants it asks there.
                    Heard::Silenced(channel) if listener.wanted.lock().contains_key(&channel) => return,
                    Heard::Silenced(_) | Heard::Other => {}
                    Heard::End => return,
                }
            }
            () = origin.moved(*moves) => return,
            () = tokio::time::sleep(SILENCE) => {
                let Some(own) = listener.upgrade().map(|listener| listener.own.clone()) else { return };
                // Again, which changes nothing and is confirmed.
                let alive = tokio::time::timeout(COMMAND_TIME, wire.subscribe_own(&own)).await;
                if !alive.is_ok_and(|confirmed| confirmed.is_ok()) {
                    return;
                }
            }
            change = inbox.recv() => {
                let changed = async {
                    match change {
                        None => false,
                        Some(Change::Subscribe(channel, done)) => {
                            let subscribed = wire.subscribe(&channel).await;
                            // Nobody waits for it any more: then it is dropped soon.
                            let _ = done.send(());
                            subscribed.is_ok()
                        }
                        Some(Change::Unsubscribe(channel)) => wire.unsubscribe(&channel).await.is_ok(),
                    }
                };
                // A connection that does not answer is as good as none.
                if !tokio::time::timeout(COMMAND_TIME, changed).await.unwrap_or(false) {
                    return;
                }
            }
        }
    }
}
