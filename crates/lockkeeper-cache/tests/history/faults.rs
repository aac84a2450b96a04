//! What is done to Redis while everybody works.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::wait::eventually;
use tokio::time::sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Nothing, Self::Stopped, Self::Killed, Self::Emptied, Self::FailedOver];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "none",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Emptied => "emptied",
            Self::FailedOver => "failed over",
        })
    }
}

/// A Redis server, and a replica of it if there is to be one.
pub(crate) struct Servers {
    fault: Fault,
    server: Server,
    replica: Option<Server>,
}

impl Servers {
    pub(crate) async fn start(fault: Fault) -> Self {
        let server = server::redis(&[]).await;
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
        Self { fault, server, replica }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// For as long as this, and at the end there is a server that answers.
    pub(crate) async fn play(&mut self, time: Duration) {
        match self.fault {
            Fault::Nothing => sleep(time).await,
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
