//! A TCP relay that tells a Redis client's connection for messages from the one for commands, and can
//! hold up one of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// What a connection for messages begins with: those of channels, and those of keys that have changed.
const LISTENS: [&[u8]; 2] = [b"SUBSCRIBE", b"TRACKING"];

fn has(data: &[u8], word: &[u8]) -> bool {
    data.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    connections: u64,
    /// Commands on the first so many connections do not arrive, until this is lowered.
    held: u64,
    /// So late come messages, and so late come replies.
    messages: Duration,
    replies: Duration,
}

/// The relay; ended, with its listener, when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    listener: AbortHandle,
}

impl Relay {
    /// Listens on a port of its own and passes everything on to `server`.
    ///
    /// # Panics
    ///
    /// When there is no port to be had.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State::default()));
        let shared = Arc::clone(&state);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                connection(client, server, Arc::clone(&shared));
            }
        });
        Self { address, state, listener: listening.abort_handle() }
    }

    /// Where a client connects.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on messages are late by this much. Replies to commands are not.
    pub fn delay_messages(&self, delay: Duration) {
        self.state.send_modify(|state| state.messages = delay);
    }

    /// From now on replies are late by this much. Messages are not.
    pub fn delay_replies(&self, delay: Duration) {
        self.state.send_modify(|state| state.replies = delay);
    }

    /// Commands on the connections that there are now are kept back, even when the client gives up on
    /// them; those on later connections are not.
    pub fn hold_commands(&self) {
        self.state.send_modify(|state| state.held = state.connections);
    }

    /// What was kept back arrives now.
    pub fn let_go(&self) {
        self.state.send_modify(|state| state.held = 0);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn connection(client: TcpStream, server: TcpStream, state: Arc<watch::Sender<State>>) {
    state.send_modify(|state| state.connections += 1);
    let number = state.borrow().connections;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (subscribed, subscribes) = watch::channel(false);
    let mut held = state.subscribe();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65536];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            let data = &buffer[..length];
            if LISTENS.iter().any(|word| has(data, word)) {
                subscribed.send_replace(true);
            }
            let passes = |state: &State| *subscribed.borrow() || number > state.held;
            if held.wait_for(passes).await.is_err() || to_server.write_all(data).await.is_err() {
                return;
            }
        }
    });
    let (late, mut due) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, data)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if to_client.write_all(&data).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 65536];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            let now = *state.borrow();
            let delay = if *subscribes.borrow() { now.messages } else { now.replies };
            if late.send((tokio::time::Instant::now() + delay, buffer[..length].to_vec())).is_err()
            {
                return;
            }
        }
    });
}
