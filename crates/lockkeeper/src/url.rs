//! URLs that choose a store.

mod options;
mod parse;
mod servers;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::options::{
    Access, Dialect, Mode, Recipe, RedLockOptions, RedisOptions, SqlOptions, TlsFiles,
    ZooKeeperOptions,
};
use self::parse::KNOWN;
pub use self::servers::Servers;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) use self::servers::decode;
use crate::backend::Backend;
use crate::backend::file::File;
use crate::backend::memory::Memory;
use crate::error::{Error, Result};

/// Where the locks are.
///
/// | form | store |
/// | --- | --- |
/// | `memory:` | inside this process, shared with nobody |
/// | `memory:NAME` | inside this process, shared by all that use the same name |
/// | `file:` | this host: `/var/lib/lockkeeper` for root, else `lockkeeper` in `$XDG_STATE_HOME` or `~/.local/state` |
/// | `file:/DIR` | this host: all processes that use the same directory |
/// | `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]` | a Redis server, with Redisson's layout (feature `redis`) |
/// | `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DB]` | the Redis server that these sentinels call MASTER |
/// | `redis+cluster://[USER:PASSWORD@]HOST[:PORT],…` | a Redis cluster, some of whose nodes these are |
/// | `redlock://[USER:PASSWORD@]HOST[:PORT],…[/DB]` | a majority of three or more independent Redis servers (feature `redis`) |
/// | `etcd://[USER:PASSWORD@]HOST[:PORT],…` | an etcd cluster, with the layout of its Go package (feature `etcd`) |
/// | `zookeeper://[USER:PASSWORD@]HOST[:PORT],…[/PATH]` | a ZooKeeper ensemble, with Curator's layout (feature `zookeeper`) |
/// | `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE` | tables in a PostgreSQL database (feature `postgres`) |
/// | `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE` | tables in a MySQL or MariaDB database (feature `mysql`) |
/// | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…`, `redlocks://…`, `etcds://…`, `zookeepers://…` | the same by TLS; the server's certificate must be valid for HOST (ZooKeeper: feature `zookeeper-tls`) |
///
/// Options follow as a query: `file:/srv/locks?ttl=10s`.
///
/// | option | meaning |
/// | --- | --- |
/// | `ttl` | time to live of a hosted lock, `100ms` to `30days`; default 30 s. `zookeeper:`: also that of the session, there by default 10 s |
/// | `prefix` | what all keys begin with (`redis:`, `redlock:`, `etcd:`, `postgres:` and `mysql:`); default nothing |
/// | `replicas` | so many replicas must have a grant before it counts (`redis:` and its topologies); default 0 |
/// | `mode` | what keeps a lock (`postgres:` and `mysql:`): `lease` (default), a row; or `session`, a connection of its own |
/// | `pool` | how many connections to use at most (`postgres:`, besides one that listens, and `mysql:`); default 4. With `mode=session`: how many locks to hold and to wait for at a time; default 16 |
/// | `dialect` | with which other clients locks are shared. `redis:`: `redisson` (default), or `plain` for those that use `SET name value NX PX`; `zookeeper:`: `curator` (default) or `kazoo` |
/// | `acl` | who may use our nodes (`zookeeper:`): `open` (default), or `creator` for those with the same user and password |
/// | `tls` | `on`: by TLS (`postgres:` and `mysql:`, where each of the following says so too); default `off` |
/// | `ca` | a PEM file of the CAs to trust (by TLS); default those of the system |
/// | `cert`, `key` | PEM files of our own certificate and its key (by TLS), for a server that asks for one |
///
/// `%` and two hexadecimal digits stand for a byte, as in any URL. In a URL with a server, write `@` as
/// `%40` wherever it does not end the password.
///
/// TLS uses the `CryptoProvider` of rustls that the program has installed by then; where there is
/// none, it installs ring's.
///
/// ```
/// use lockkeeper::Url;
/// let url: Url = "file:/srv/locks?ttl=10s".parse()?;
/// assert_eq!(url.to_string(), "file:/srv/locks?ttl=10s");
/// assert!("ftp://x".parse::<Url>().unwrap_err().to_string().contains("memory:"));
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    text: String,
    scheme: Scheme,
    ttl: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scheme {
    Memory(Option<String>),
    File(Option<PathBuf>),
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for redis: alone"))]
    Redis {
        /// As the driver wants it, password and all.
        url: String,
        options: RedisOptions,
    },
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for redlock: alone"))]
    RedLock(RedLockOptions),
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "for etcd: alone"))]
    Etcd {
        servers: Servers,
        prefix: String,
    },
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code, reason = "for zookeeper: alone"))]
    ZooKeeper {
        servers: Servers,
        options: ZooKeeperOptions,
    },
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "for postgres: alone"))]
    Postgres(SqlOptions),
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "for mysql: alone"))]
    MySql(SqlOptions),
}

impl Url {
    /// The time to live that it asks for.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// The name of the store's scheme.
    pub fn scheme(&self) -> &'static str {
        match &self.scheme {
            Scheme::Memory(_) => "memory",
            Scheme::File(_) => "file",
            Scheme::Redis { url, .. } => {
                let is = |name: &str| url.split(':').next() == Some(name);
                KNOWN.iter().find(|(name, _)| is(name)).map_or("redis", |(name, _)| name)
            }
            Scheme::RedLock(options) if options.nodes[0].starts_with("rediss:") => "redlocks",
            Scheme::RedLock(_) => "redlock",
            Scheme::Etcd { servers, .. } if servers.tls.is_some() => "etcds",
            Scheme::Etcd { .. } => "etcd",
            Scheme::ZooKeeper { servers, .. } if servers.tls.is_some() => "zookeepers",
            Scheme::ZooKeeper { .. } => "zookeeper",
            Scheme::Postgres(_) => "postgres",
            Scheme::MySql(_) => "mysql",
        }
    }

    /// What the store is called: no password, and of the options those that make other locks of it. Where
    /// two stores are called the same, a lock of one is taken for that of the other.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    fn place(&self) -> String {
        let mut place = self.text.split('?').next().unwrap_or_default().to_owned();
        let (prefix, dialect) = match &self.scheme {
            Scheme::Redis { options, .. } => {
                (&*options.prefix, (options.dialect == Dialect::Plain).then_some("plain"))
            }
            Scheme::RedLock(options) => (&*options.prefix, None),
            Scheme::Etcd { prefix, .. } => (&**prefix, None),
            Scheme::ZooKeeper { options, .. } => {
                ("", (options.dialect == Recipe::Kazoo).then_some("kazoo"))
            }
            Scheme::Postgres(options) | Scheme::MySql(options) => (&*options.prefix, None),
            Scheme::Memory(_) | Scheme::File(_) => ("", None),
        };
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let options = [("prefix", prefix), ("dialect", dialect)];
        for (name, value) in options.iter().filter_map(|(name, value)| Some((name, (*value)?))) {
            place.push(if place.contains('?') { '&' } else { '?' });
            place.push_str(&format!("{name}={value}"));
        }
        place
    }

    /// The servers of Redis that it names, as the driver wants them; what they are called; and the options.
    #[cfg(feature = "redis")]
    pub(crate) fn redis(&self) -> Option<(&str, String, &RedisOptions)> {
        match &self.scheme {
            Scheme::Redis { url, options } => Some((url, self.place(), options)),
            _ => None,
        }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the store cannot be reached or used, [`Error::Config`] when a file
    /// that an option names cannot.
    pub async fn open(&self) -> Result<Arc<dyn Backend>> {
        match &self.scheme {
            Scheme::Memory(None) => Ok(Memory::private()),
            Scheme::Memory(Some(name)) => Ok(Memory::shared(name)),
            Scheme::File(None) => Ok(File::open(&File::default_directory()?).await?),
            Scheme::File(Some(directory)) => Ok(File::open(directory).await?),
            #[cfg(feature = "redis")]
            Scheme::Redis { url, options } => {
                Ok(crate::backend::redis::Redis::connect(url, self.place(), options).await?)
            }
            #[cfg(feature = "redis")]
            Scheme::RedLock(options) => {
                Ok(crate::backend::redlock::RedLock::connect(self.place(), options).await?)
            }
            #[cfg(feature = "etcd")]
            Scheme::Etcd { servers, prefix } => {
                Ok(crate::backend::etcd::Etcd::connect(servers, self.place(), prefix).await?)
            }
            #[cfg(feature = "zookeeper")]
            Scheme::ZooKeeper { servers, options } => {
                use crate::backend::zookeeper::ZooKeeper;
                Ok(ZooKeeper::connect(servers, self.place(), options).await?)
            }
            #[cfg(feature = "postgres")]
            Scheme::Postgres(options) => crate::backend::sql::postgres(self.place(), options).await,
            #[cfg(feature = "mysql")]
            Scheme::MySql(options) => crate::backend::sql::mysql(self.place(), options).await,
            #[cfg(not(all(
                feature = "etcd",
                feature = "mysql",
                feature = "postgres",
                feature = "redis",
                feature = "zookeeper"
            )))]
            other => Err(other.missing()),
        }
    }

    /// Prepares the store where somebody has to: makes the tables in a database, and lets Redis servers
    /// vote on a RedLock at once if all of them are new. Where that is done, and for every other store,
    /// there is nothing to do.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[cfg_attr(
        not(any(feature = "mysql", feature = "postgres", feature = "redis")),
        allow(clippy::unused_async, reason = "for stores that somebody has to prepare")
    )]
    pub async fn init(&self) -> Result<()> {
        match &self.scheme {
            #[cfg(feature = "postgres")]
            Scheme::Postgres(options) => crate::backend::sql::init_postgres(options).await,
            #[cfg(feature = "mysql")]
            Scheme::MySql(options) => crate::backend::sql::init_mysql(options).await,
            #[cfg(feature = "redis")]
            Scheme::RedLock(options) => {
                crate::backend::redlock::RedLock::init(self.place(), options).await
            }
            #[cfg(not(feature = "redis"))]
            missing @ Scheme::RedLock(_) => Err(missing.missing()),
            #[cfg(not(feature = "postgres"))]
            missing @ Scheme::Postgres(_) => Err(missing.missing()),
            #[cfg(not(feature = "mysql"))]
            missing @ Scheme::MySql(_) => Err(missing.missing()),
            _ => Ok(()),
        }
    }

    /// Makes a table of a database refuse late and forgetful writers, with a trigger: see
    /// [`fence`](crate::fence). Not `on`: removes the trigger again.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where there are no tables, [`Error::Config`] for one that is not there or
    /// cannot be fenced, [`Error::Unavailable`] when the server cannot be reached or refuses.
    #[cfg_attr(
        not(any(feature = "mysql", feature = "postgres")),
        allow(clippy::unused_async, unused_variables, reason = "for databases")
    )]
    pub async fn fence(&self, table: &str, on: bool) -> Result<()> {
        match &self.scheme {
            #[cfg(feature = "postgres")]
            Scheme::Postgres(with) => crate::backend::sql::fence_postgres(with, table, on).await,
            #[cfg(feature = "mysql")]
            Scheme::MySql(with) => crate::backend::sql::fence_mysql(with, table, on).await,
            #[cfg(not(feature = "postgres"))]
            missing @ Scheme::Postgres(_) => Err(missing.missing()),
            #[cfg(not(feature = "mysql"))]
            missing @ Scheme::MySql(_) => Err(missing.missing()),
            _ => {
                let what = "fences of tables: it has none".into();
                Err(Error::Unsupported { backend: self.scheme(), what })
            }
        }
    }
}

#[cfg(not(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
)))]
impl Scheme {
    fn missing(&self) -> Error {
        Error::Config(format!(
            "this build has no such backend; enable the cargo feature `{}`",
            match self {
                Self::Redis { .. } | Self::RedLock(_) => "redis",
                Self::Etcd { .. } => "etcd",
                Self::Postgres(_) => "postgres",
                Self::MySql(_) => "mysql",
                _ => "zookeeper",
            }
        ))
    }
}

impl fmt::Display for Url {
    /// Without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
