//! The ways to take one of many.

use std::time::Duration;

use lockkeeper::{Locks, StripedStock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client};

use crate::harness::clock;
use crate::harness::worker::{Library, Lock};

/// More than is ever taken.
const PLENTY: u64 = 1_000_000_000;

pub(crate) enum Way {
    /// [`StripedStock`], with so many segments.
    Stock(Locks, usize),
    /// As it is done by hand: so many counters with a lock each.
    Locks(Locks, MultiplexedConnection, u64),
    /// What the server can do at the most.
    Raw(MultiplexedConnection),
}

impl Library for Way {
    type Lock = Taking;

    fn package(library: &str) -> &'static str {
        if library.starts_with("raw") { "redis" } else { "lockkeeper" }
    }

    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        let connection =
            async || Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
        match library.split_once('-').unwrap() {
            ("stock", segments) => {
                Self::Stock(Locks::connect(url).await.unwrap(), segments.parse().unwrap())
            }
            ("locks", segments) => {
                let locks = Locks::connect(url).await.unwrap().ttl(lease);
                Self::Locks(locks, connection().await, segments.parse().unwrap())
            }
            _ => Self::Raw(connection().await),
        }
    }

    async fn lock(&self, name: String, _task: u64) -> Taking {
        match self {
            Self::Stock(locks, segments) => {
                // The number of segments is for good: another one, another stock.
                let stock = locks.stock(format!("{name}/{segments}"), *segments);
                stock.restock_first(PLENTY).await.unwrap();
                Taking::Stock(stock)
            }
            Self::Locks(locks, connection, segments) => Taking::Locks {
                locks: locks.clone(),
                connection: connection.clone(),
                name,
                of: *segments,
            },
            Self::Raw(connection) => Taking::Raw(connection.clone(), name),
        }
    }
}

pub(crate) enum Taking {
    Stock(StripedStock),
    Locks { locks: Locks, connection: MultiplexedConnection, name: String, of: u64 },
    Raw(MultiplexedConnection, String),
}

impl Lock for Taking {
    type Taken = ();

    async fn take(&mut self) {
        match self {
            Self::Stock(stock) => assert!(stock.take(1).await.unwrap()),
            Self::Locks { locks, connection, name, of } => {
                // Any of them, as good as at random.
                let segment = clock::now() / 1000 % *of;
                let guard = locks.mutex(format!("{name}/{segment}")).lock().await.unwrap();
                let counter = format!("{name}/{segment}/counter");
                let left: Option<u64> = connection.get(&counter).await.unwrap();
                let left = left.unwrap_or(PLENTY) - 1;
                let () = connection.set(&counter, left).await.unwrap();
                guard.release().await.unwrap();
            }
            Self::Raw(connection, name) => {
                let _: i64 = connection.decr(&*name, 1).await.unwrap();
            }
        }
    }

    async fn release(&mut self, (): ()) {}
}
