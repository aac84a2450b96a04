//! The nodes of a RedLock: Redis servers that know nothing of each other.

use lockkeeper::{Locks, Url};

use crate::server::{self, Server};

/// The nodes, to be killed, stopped and restarted.
#[derive(Debug)]
pub struct Nodes {
    /// In the order of the URL.
    pub servers: Vec<Server>,
}

impl Nodes {
    /// So many, which vote.
    ///
    /// # Panics
    ///
    /// When they cannot be started.
    pub async fn start(count: usize) -> Self {
        let nodes = Self::start_new(count, &[]).await;
        nodes.url().parse::<Url>().unwrap().init().await.unwrap();
        nodes
    }

    /// So many, which nobody has used before, with these arguments besides.
    ///
    /// # Panics
    ///
    /// When they cannot be started.
    pub async fn start_new(count: usize, arguments: &[&str]) -> Self {
        let starting = (0..count).map(|_| server::redis(arguments));
        Self { servers: futures_util::future::join_all(starting).await }
    }

    /// So many, which vote, each with a clock of its own ([`Server::set_clock`]).
    ///
    /// # Panics
    ///
    /// When they cannot be started.
    pub async fn start_with_clocks(count: usize) -> Self {
        let starting = (0..count).map(|_| server::redis_with_a_clock());
        let nodes = Self { servers: futures_util::future::join_all(starting).await };
        nodes.url().parse::<Url>().unwrap().init().await.unwrap();
        nodes
    }

    /// Where they are.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| server.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    /// A client.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
    pub async fn connect(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }
}
