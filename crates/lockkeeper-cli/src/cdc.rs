//! `cdc`: the log of a database tells a cache what has changed.
//!
//! ```text
//!   file.toml ── config ──┬── check    what is missing at the database, the cache and the locks
//!                         └── run      a follower of the library, as a process
//!                               ├── view      what it does, in one value that everything below shows
//!                               ├── console   ... to people and programs that watch it
//!                               └── http      ... to those that ask: /metrics and /health
//! ```

pub(crate) mod args;
mod check;
mod config;
mod console;
mod health;
mod http;
mod metrics;
mod password;
mod run;
mod view;

use self::args::Cdc;
use crate::exit::{Code, Failure};

/// One of the commands.
pub(crate) async fn cdc(cdc: &Cdc) -> Result<Code, Failure> {
    match cdc {
        Cdc::Check(check) => check::check(check).await,
        Cdc::Run(run) => run::run(run).await,
    }
}
