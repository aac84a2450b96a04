//! The one connection for messages, which comes back by itself and forgets no channel.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{mpsc, oneshot};

use super::commands::{COMMAND_TIME, failed};
use super::layout::{WAKE, parse_id};
use crate::backend::register::Register;
use crate::error::Result;

/// First and longest pause between two attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Who listens to what.
pub(super) struct Listener {
    pub(super) requests: Register,
    /// How many want each channel, besides our own.
    wanted: Mutex<HashMap<String, usize>>,
    changes: mpsc::UnboundedSender<Change>,
    own: String,
}

enum Change {
    Subscribe(String, oneshot::Sender<()>),
    Unsubscribe(String),
}

impl Listener {
    /// Connects and listens to this client's own channel.
    pub(super) async fn start(client: &Client, id: &str) -> Result<Arc<Self>> {
        let own = format!("{WAKE}{id}");
        let (changes, inbox) = mpsc::unbounded_channel();
        let (requests, wanted) = (Register::new(), Mutex::default());
        let listener = Arc::new(Self { requests, wanted, changes, own });
        let first = connect(client, &listener).await?;
        tokio::spawn(listen(client.clone(), Arc::downgrade(&listener), inbox, first));
        Ok(listener)
    }

    /// Listens to some channels until the value is dropped. Returns once the server has confirmed
    /// it, or has not within the time of a command: the regular re-check is the remedy then.
    pub(super) async fn also(self: &Arc<Self>, channels: &[&str]) -> Listening {
        let mut listening = Listening { listener: Arc::clone(self), channels: Vec::new() };
        let mut confirmed = Vec::new();
        for channel in channels {
            listening.channels.push((*channel).to_owned());
            let mut wanted = self.wanted.lock();
            let count = wanted.entry((*channel).to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                let (done, confirmation) = oneshot::channel();
                // Without the task there is nobody to listen, and the connection is gone for good.
                let _ = self.changes.send(Change::Subscribe((*channel).to_owned(), done));
                confirmed.push(confirmation);
            }
        }
        let all = futures_util::future::join_all(confirmed);
        let _ = tokio::time::timeout(COMMAND_TIME, all).await;
        listening
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
            let Some(count) = wanted.get_mut(&channel) else { continue };
            *count -= 1;
            if *count == 0 {
                wanted.remove(&channel);
                let _ = self.listener.changes.send(Change::Unsubscribe(channel));
            }
        }
    }
}

type Connection = (PubSubSink, PubSubStream);

/// Connects, and subscribes to everything that is wanted.
async fn connect(client: &Client, listener: &Listener) -> Result<Connection> {
    let connecting = async {
        let (mut sink, stream) = client.get_async_pubsub().await?.split();
        sink.subscribe(&listener.own).await?;
        let wanted: Vec<String> = listener.wanted.lock().keys().cloned().collect();
        if !wanted.is_empty() {
            sink.subscribe(wanted).await?;
        }
        Ok((sink, stream))
    };
    let connected = tokio::time::timeout(2 * COMMAND_TIME, connecting).await;
    let timed_out = |_| redis::RedisError::from((redis::ErrorKind::Io, "timed out"));
    connected.map_err(timed_out).flatten().map_err(|error| failed("listening", error))
}

/// Listens until the last user is gone; connects again as often as it takes.
async fn listen(
    client: Client,
    listener: Weak<Listener>,
    mut inbox: mpsc::UnboundedReceiver<Change>,
    mut connection: Connection,
) {
    loop {
        take_in(&listener, &mut inbox, &mut connection).await;
        let mut pause = RECONNECT.0;
        connection = loop {
            let Some(present) = listener.upgrade() else { return };
            match connect(&client, &present).await {
                Ok(connection) => {
                    // Whatever was said meanwhile, we did not hear it.
                    present.requests.missed();
                    break connection;
                }
                Err(error) => tracing::debug!(%error, "cannot listen; trying again"),
            }
            drop(present);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT.1);
        };
    }
}

/// Takes in messages and changes until the connection ends or nobody is left.
async fn take_in(
    listener: &Weak<Listener>,
    inbox: &mut mpsc::UnboundedReceiver<Change>,
    (sink, stream): &mut Connection,
) {
    loop {
        tokio::select! {
            message = stream.next() => {
                let (Some(message), Some(listener)) = (message, listener.upgrade()) else { return };
                let id = message.get_payload::<String>().ok().and_then(|text| parse_id(&text));
                match id.filter(|_| message.get_channel_name() == listener.own) {
                    Some(id) => listener.requests.hear(id),
                    None => listener.requests.wake_all(),
                }
            }
            change = inbox.recv() => {
                let changed = async {
                    match change {
                        None => false,
                        Some(Change::Subscribe(channel, done)) => {
                            let subscribed = sink.subscribe(channel).await;
                            // Nobody waits for it any more: then it is dropped soon.
                            let _ = done.send(());
                            subscribed.is_ok()
                        }
                        Some(Change::Unsubscribe(channel)) => sink.unsubscribe(channel).await.is_ok(),
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
