//! The command line of `cdc`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
    0  check: nothing is wrong, or only what is worth knowing; run: it was told to end, and has
   64  usage: an option or the file makes no sense
   69  check: a server cannot be reached or used; run: it has ended, and could not release its
       lock: others wait for its lease
   78  check: something must be changed at the database before it can be followed
  126  run: it cannot listen where the file says
  128+N  run: another signal N came before it had ended";

/// What a file looks like; a test reads it.
pub(super) const EXAMPLE: &str = r#"
name = "shop"                        # which follower: of all processes with one name, one is active
database = "postgres://cdc@db/shop"  # or mysql://cdc@db/shop
database_password_file = "cdc.pw"    # beside this file, or /anywhere; or in the URL
cache = "redis://cache:6379"         # where the entries are; also cache_password_file
locks = "redis://cache:6379"         # where the lock is; default: the cache; also locks_password_file
listen = "127.0.0.1:9187"            # for /metrics and /health; default: none
max_lag = "30s"                      # /health says 503 when it is further behind; default: never

[postgres]                           # may be left out
slot = "lockkeeper_shop"             # of this follower alone; default: lockkeeper_ and the name
publication = "lockkeeper"           # default: lockkeeper
max_retained = 8589934592            # bytes of log that are kept for us; with more, all begins anew

[[rule]]                             # any number of them
table = "public.users"               # schema and table; in MariaDB database and table
namespace = "user"                   # that of the cache
key = "{id}"                         # the key of a row of the table, from its columns
keep_last = "1h"                     # as in the cache, where it serves stale values; default: 0
"#;

const MARIADB: &str = r#"
For MariaDB, instead of [postgres]:

[mariadb]
server_id = 4711                     # of no other replica; default: a large one at random
"#;

const ABOUT: &str = "\
A follower reads the log that the database writes for its replicas (PostgreSQL: logical replication, \
MariaDB: binary log) and invalidates, in a cache of lockkeeper-cache in Redis, the keys of what has \
changed, whoever changed it.

  1. Write a file (see below).
  2. lockkeeper cdc check --config FILE   says what is missing, with the statements to run.
  3. lockkeeper cdc run --config FILE     follows. Run it on two machines: one follows, and the other \
takes over when that one dies.";

const RUN: &str = "\
It goes on through everything that time may heal: a server that is away, now or later, is tried again. \
What time does not heal (see check) is said, and looked at again now and then. When a part of the log is \
lost, all the caches of the file are cleared, and it goes on from now.

INT, TERM, HUP or QUIT: it ends within a few seconds and releases the lock, so that another can take \
over at once. The same again: it ends at once, and others wait for the lease of the lock.

On a terminal a line shows what it does. Elsewhere there is a line on standard error for whatever \
happens. With --json both are lines of JSON on standard output: events, and every ten seconds the \
event `status`.

GET /metrics: for Prometheus, lockkeeper_cdc_*. GET /health: 200 while it follows or stands by, else \
503, and in both cases JSON that says why.

Who reads the file, or the password files, reads the passwords: let nobody but the service read them. \
They are shown nowhere.";

/// What may follow `cdc`.
#[derive(Debug, Subcommand)]
#[command(about = "Invalidate a cache from the log of a database")]
#[command(long_about = ABOUT, after_long_help = format!("The file:\n{EXAMPLE}{MARIADB}\n{EXIT_CODES}"))]
pub(crate) enum Cdc {
    /// Say what is missing at a database before it can be followed, and what to do about it
    #[command(after_help = EXIT_CODES)]
    Check(Check),
    /// Follow: invalidate what changes, until told to end
    #[command(after_long_help = format!("{RUN}\n\nThe file:\n{EXAMPLE}{MARIADB}\n{EXIT_CODES}"))]
    Run(Run),
}

impl Cdc {
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Check(check) => check.json,
            Self::Run(run) => run.json,
        }
    }
}

#[derive(Debug, Parser)]
pub(crate) struct Check {
    /// Check what this file needs, also at the cache and the locks (see `lockkeeper cdc --help`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["table", "key"])]
    pub(super) config: Option<PathBuf>,

    // The same name as the one for the locks, so that only this one is shown.
    /// The database: postgres://USER:PASSWORD@HOST/DATABASE or mysql://…. Others see a command line: a
    /// password is better in $LOCKKEEPER_URL, or in a file
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_URL", hide_env_values = true)]
    pub(super) url: Option<OsString>,

    /// A table, with its schema; in MariaDB with its database. May be given several times
    #[arg(long, value_name = "TABLE", required_unless_present = "config")]
    pub(super) table: Vec<String>,

    /// What the keys of the table before are made of, such as {id} or {shop}/{article}; as many as there
    /// are tables
    #[arg(long, value_name = "KEY", required_unless_present = "config")]
    pub(super) key: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct Run {
    /// What to follow (see `lockkeeper cdc --help`)
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,

    // The one for the locks means nothing here: they are in the file.
    #[arg(long = "url", id = "url", value_name = "URL", hide = true)]
    _url: Option<OsString>,

    /// Print events, and now and then the status, as lines of JSON
    #[arg(long)]
    pub(super) json: bool,
}
