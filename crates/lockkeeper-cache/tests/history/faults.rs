//! What is done to Redis, and to those who use it, while everybody works.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use testkit::proxy::Proxy;
use testkit::relay::Relay;
use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::wait::eventually;
use tokio::time::sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    Nothing,
    /// It stands still, and goes on.
    Stopped,
    /// It is killed, and started again with nothing in it.
    Killed,
    /// All keys are taken away, again and again.
    Emptied,
    /// It is killed, and a replica takes its place that has heard nothing for a while.
    FailedOver,
    /// Between it and a quarter of the processes nothing gets through for a while, and to another quarter no messages; and
    /// nothing says so.
    CutOff,
    /// Processes are killed, and others are started in their place. Nothing happens to Redis.
    WorkerKilled,
}

impl Fault {
    pub(crate) const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Stopped,
        Self::Killed,
        Self::Emptied,
        Self::FailedOver,
        Self::CutOff,
        Self::WorkerKilled,
    ];

    /// Whether Redis has all that it was told.
    pub(crate) fn keeps(self) -> bool {
        matches!(self, Self::Nothing | Self::Stopped | Self::CutOff | Self::WorkerKilled)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "none",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Emptied => "emptied",
            Self::FailedOver => "failed over",
            Self::CutOff => "cut off",
            Self::WorkerKilled => "worker killed",
        })
    }
}

/// A Redis server, a replica of it if there is to be one, and ways to it that can be cut.
pub(crate) struct Servers {
    fault: Fault,
    server: Server,
    replica: Option<Server>,
    closed: Proxy,
    deaf: Relay,
}

impl Servers {
    pub(crate) async fn start(fault: Fault) -> Self {
        // A replica is served at once, and not after five seconds in which more may come.
        let server = server::redis(&["--repl-diskless-sync-delay", "0"]).await;
        let mut replica = None;
        if fault == Fault::FailedOver {
            let port = server.address().port().to_string();
            let other = server::redis(&["--replicaof", "127.0.0.1", &port]).await;
            let raw = Raw::connect(other.address()).await;
            let synced = async || {
                raw.text("INFO replication")
                    .await
                    .is_some_and(|info| info.contains("master_link_status:up"))
            };
            eventually("the replica has everything", synced).await;
            replica = Some(other);
        }
        let closed = Proxy::to(server.address()).await;
        let deaf = Relay::to(server.address()).await;
        Self { fault, server, replica, closed, deaf }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The way there of a process: of four, one can be closed, and one made deaf.
    pub(crate) fn way(&self, process: u32) -> SocketAddr {
        match (self.fault, process % 4) {
            (Fault::CutOff, 2) => self.closed.address(),
            (Fault::CutOff, 3) => self.deaf.address(),
            _ => self.server.address(),
        }
    }

    /// Cuts the ways three times. `meanwhile` is done as soon as they are, and they stay so for this time after it, or
    /// longer.
    pub(crate) async fn cut_off(&self, time: Duration, least: Duration, meanwhile: impl AsyncFn()) {
        let least = least.max(time / 8);
        for _ in 0..3 {
            sleep(time / 6).await;
            self.closed.freeze();
            self.deaf.delay_messages(least);
            meanwhile().await;
            sleep(least).await;
            // What was held back comes now.
            self.closed.pass();
            self.deaf.delay_messages(Duration::ZERO);
        }
        sleep(time / 6).await;
    }

    /// What happens to Redis itself, for as long as this. At the end there is a server that answers.
    pub(crate) async fn play(&mut self, time: Duration) {
        match self.fault {
            Fault::Nothing | Fault::CutOff | Fault::WorkerKilled => sleep(time).await,
            Fault::Stopped => {
                for _ in 0..4 {
                    sleep(time / 8).await;
                    self.server.pause();
                    sleep(time / 8).await;
                    self.server.resume();
                }
            }
            Fault::Killed => {
                for _ in 0..2 {
                    sleep(time / 3).await;
                    self.server.kill();
                    sleep(time / 20).await;
                    self.server.start_again().await;
                }
                sleep(time / 3).await;
            }
            Fault::Emptied => {
                let raw = Raw::connect(self.server.address()).await;
                for _ in 0..50 {
                    sleep(time / 50).await;
                    raw.ask("FLUSHALL").await;
                }
            }
            Fault::FailedOver => {
                sleep(time / 3).await;
                let replica = self.replica.as_ref().expect("started with one");
                let raw = Raw::connect(replica.address()).await;
                // From here on it hears nothing, as if its link were cut.
                assert_eq!(raw.ask("REPLICAOF NO ONE").await, Reply::Text("OK".into()));
                sleep(time / 6).await;
                self.server.kill();
                let port = self.server.address().port();
                let taken = raw.ask(&format!("CONFIG SET port {port}")).await;
                assert_eq!(taken, Reply::Text("OK".into()));
                sleep(time / 2).await;
            }
        }
    }
}
