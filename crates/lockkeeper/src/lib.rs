#![doc = include_str!("../../../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![doc(test(attr(deny(warnings))))]

pub mod backend;
pub mod blocking;
pub mod clock;
mod cohort;
pub mod deadlock;
mod error;
pub mod fence;
mod guard;
mod keeper;
mod lease;
mod locks;
mod loss;
pub mod model;
mod name;
mod owner;
mod primitive;
mod shutdown;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper-tls"
))]
mod tls;
mod token;
mod undo;
mod url;
mod wait;

pub use error::{BoxError, Error, Result};
pub use guard::Guard;
pub use locks::{DEFAULT_TTL, Locks};
pub use loss::{Cause, Loss};
pub use name::Name;
pub use owner::{Owner, RequestId};
pub use primitive::{
    Job, LastRun, Latch, Multi, MultiGuard, Mutex, Overlap, Rerun, Run, RwLock, Schedule,
    Semaphore, Striped, StripedStock, WriteGuard,
};
pub use shutdown::Shutdown;
pub use token::{Token, TokenBlock};
pub use url::{
    Access, Dialect, Mode, Recipe, RedLockOptions, RedisOptions, Servers, SqlOptions, TlsFiles,
    Url, ZooKeeperOptions,
};
