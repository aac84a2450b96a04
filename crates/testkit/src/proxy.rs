//! A TCP proxy inside the test, between a client and a real server, with faults on command.
//!
//! Every fault is a state that is watched by each connection, so it takes effect on connections that
//! exist already, at once.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// In which direction data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Pass,
    /// New connections are closed at once.
    Refuse,
    /// Connections are accepted and nothing goes through.
    Freeze,
}

#[derive(Clone, Copy, Debug)]
struct State {
    link: Link,
    /// Raised to drop all connections.
    generation: u64,
    delay: [Duration; 2],
    /// Bytes that still pass before everything is cut.
    budget: [Option<usize>; 2],
    /// The next reply is swallowed, and its connection cut.
    lose_reply: bool,
    /// How many connections there were, and how many of the first of them have gone silent.
    connections: u64,
    silent: u64,
}

/// The proxy; ended, with its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    listener: AbortHandle,
}

impl Proxy {
    /// Listens on a port of its own and passes everything on to `server`.
    ///
    /// # Panics
    ///
    /// When there is no port to be had.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State {
            link: Link::Pass,
            generation: 0,
            delay: [Duration::ZERO; 2],
            budget: [None; 2],
            lose_reply: false,
            connections: 0,
            silent: 0,
        }));
        let shared = Arc::clone(&state);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, server, Arc::clone(&shared)));
            }
        });
        Self { address, state, listener: listening.abort_handle() }
    }

    /// Where to connect instead of to the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything passes again, without delay.
    pub fn pass(&self) {
        self.state.send_modify(|state| {
            *state = State {
                link: Link::Pass,
                delay: [Duration::ZERO; 2],
                budget: [None; 2],
                lose_reply: false,
                silent: 0,
                ..*state
            };
        });
    }

    /// Drops all connections; new ones pass.
    pub fn drop_connections(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Nothing goes through the connections that exist now any more, and nothing says so; new ones
    /// pass. As when a machine in between has forgotten them.
    pub fn silence(&self) {
        self.state.send_modify(|state| state.silent = state.connections);
    }

    /// Drops all connections and closes new ones at once.
    pub fn cut(&self) {
        self.state.send_modify(State::cut);
    }

    /// Drops all connections; new ones are accepted and never answered.
    pub fn blackhole(&self) {
        self.state.send_modify(|state| {
            state.cut();
            state.link = Link::Freeze;
        });
    }

    /// Connections stay, and nothing goes through until [`pass`](Self::pass); then what was held
    /// back does.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.link = Link::Freeze);
    }

    /// Everything that goes this way is late by so much.
    pub fn delay(&self, way: Way, delay: Duration) {
        self.state.send_modify(|state| state.delay[way as usize] = delay);
    }

    /// Lets so many more bytes pass this way and then cuts, in the middle of a message if need be.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        self.state.send_modify(|state| state.budget[way as usize] = Some(bytes));
    }

    /// Whether everything has been cut.
    pub fn is_cut(&self) -> bool {
        self.state.borrow().link == Link::Refuse
    }

    /// The next request reaches the server, its reply is swallowed and its connection dropped; what
    /// comes later passes. The server's reply is the proof that the request took effect.
    pub fn lose_next_reply(&self) {
        self.state.send_modify(|state| state.lose_reply = true);
    }

    /// Whether a reply was lost since [`lose_next_reply`](Self::lose_next_reply).
    pub fn lost_a_reply(&self) -> bool {
        !self.state.borrow().lose_reply
    }
}

impl State {
    fn cut(&mut self) {
        self.generation += 1;
        self.link = Link::Refuse;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.cut();
    }
}

async fn connection(client: TcpStream, server: SocketAddr, state: Arc<watch::Sender<State>>) {
    let mut number = 0;
    state.send_modify(|state| {
        number = state.connections;
        state.connections += 1;
    });
    let mut watching = state.subscribe();
    let (link, born) = {
        let state = watching.borrow_and_update();
        (state.link, state.generation)
    };
    if link == Link::Refuse {
        return;
    }
    let ended = async {
        // Fails only when the proxy is gone: an end as well.
        let _ = watching.wait_for(|state| state.generation != born).await;
    };
    let piped = async {
        let Ok(server) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let asked = AtomicBool::new(false);
        // Either end closes both: no test needs a half-open connection.
        tokio::select! {
            _ = pump(from_client, to_server, (Way::Up, number), &state, &asked) => {}
            _ = pump(from_server, to_client, (Way::Down, number), &state, &asked) => {}
        }
    };
    tokio::select! {
        biased;
        () = ended => {}
        () = piped => {}
    }
}

/// Passes data on in one direction.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (way, number): (Way, u64),
    state: &watch::Sender<State>,
    asked: &AtomicBool,
) -> io::Result<()> {
    let mut watching = state.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            // An end does not get through either.
            let _ = watching.wait_for(|state| number >= state.silent).await;
            return Ok(());
        }
        let passes = |state: &State| state.link == Link::Pass && number >= state.silent;
        let _ = watching.wait_for(passes).await;
        let delay = state.borrow().delay[way as usize];
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if way == Way::Down && asked.load(Ordering::SeqCst) && take_reply(state) {
            return Ok(());
        }
        let (allowed, cut) = spend(state, way, read);
        to.write_all(&buffer[..allowed]).await?;
        if cut {
            state.send_modify(State::cut);
            return Ok(());
        }
        if way == Way::Up && state.borrow().lose_reply {
            asked.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether this reply is the one to be lost.
fn take_reply(state: &watch::Sender<State>) -> bool {
    state.send_if_modified(|state| std::mem::take(&mut state.lose_reply))
}

/// How many of these bytes may pass, and whether that was the last of it.
fn spend(state: &watch::Sender<State>, way: Way, bytes: usize) -> (usize, bool) {
    let mut allowed = (bytes, false);
    state.send_if_modified(|state| {
        let Some(left) = &mut state.budget[way as usize] else { return false };
        allowed = (bytes.min(*left), bytes >= *left);
        *left -= allowed.0;
        if allowed.1 {
            state.budget[way as usize] = None;
        }
        true
    });
    allowed
}
