//! What follows the question mark of a URL.

use std::path::PathBuf;
use std::time::Duration;

use super::servers::{Servers, decode};
use crate::backend::Term;
use crate::error::{Error, Result};

/// How locks are kept at a Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisOptions {
    /// The files for a `rediss:` URL.
    pub tls: TlsFiles,
    /// What all keys begin with.
    pub prefix: String,
    /// What other clients see.
    pub dialect: Dialect,
    /// So many replicas must have a grant before it counts.
    pub replicas: u32,
}

/// What clients of other libraries see of a lock at a Redis server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// The layout of Redisson.
    #[default]
    Redisson,
    /// A string that expires, as `SET name value NX PX` makes it.
    Plain,
}

/// Where the nodes of a RedLock are, and how locks are kept there.
#[derive(Clone, PartialEq, Eq)]
pub struct RedLockOptions {
    /// The nodes, as `redis://` URLs, passwords and all.
    pub nodes: Vec<String>,
    /// For connections by TLS.
    pub tls: TlsFiles,
    /// What all keys begin with.
    pub prefix: String,
    /// The time to live that the URL asks for.
    pub ttl: Option<Duration>,
}

impl std::fmt::Debug for RedLockOptions {
    /// Without the passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedLockOptions")
            .field("nodes", &self.nodes.len())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// How locks are kept in a ZooKeeper ensemble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZooKeeperOptions {
    /// For how long a session lives without a sign of life; `None`: 10 s.
    pub session: Option<Duration>,
    /// What other clients see.
    pub dialect: Recipe,
    /// Who may use our nodes.
    pub access: Access,
}

/// Whose recipes a lock in ZooKeeper follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// Those of Apache Curator.
    #[default]
    Curator,
    /// Those of kazoo.
    Kazoo,
}

/// Who may use our nodes in ZooKeeper besides us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Everybody, as in Curator and kazoo.
    #[default]
    Open,
    /// Those who give the same user and password.
    Creator,
}

/// How locks are kept in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlOptions {
    /// The server, who we are, and the database, which is the path.
    pub servers: Servers,
    /// What all names in the table begin with.
    pub prefix: String,
    /// At most so many connections: [`Mode::Lease`] besides the one that listens, [`Mode::Session`] for
    /// locks that are held or waited for.
    pub pool: usize,
    /// What keeps a lock.
    pub mode: Mode,
}

/// What keeps a lock in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A row with a lease.
    #[default]
    Lease,
    /// A connection: the server frees the lock the moment it ends.
    Session,
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl SqlOptions {
    /// Host and port.
    pub(crate) fn address(&self, port: u16) -> Result<(String, u16)> {
        let address = self.servers.hosts.first().map(String::as_str).unwrap_or_default();
        // What is in brackets is an address of IPv6, colons and all.
        let (host, number) = match address.rsplit_once(':') {
            Some((host, number)) if !number.contains(']') => (host, number),
            _ => return Ok((address.trim_matches(['[', ']']).to_owned(), port)),
        };
        let number = number
            .parse()
            .map_err(|_| Error::Config(format!("{number:?} is not a port: write HOST:PORT")))?;
        Ok((host.trim_matches(['[', ']']).to_owned(), number))
    }
}

/// The PEM files that a connection by TLS uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CAs to trust; without, those of the system.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// What follows the question mark.
#[derive(Default)]
pub(super) struct Options {
    pub(super) ttl: Option<Duration>,
    pub(super) prefix: String,
    pub(super) access: Access,
    pub(super) pool: Option<usize>,
    pub(super) mode: Mode,
    pub(super) replicas: u32,
    tls: Option<bool>,
    dialect: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Options {
    pub(super) fn parse(scheme: &str, known: &[&str], query: &str) -> Result<Self> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                _ if !known.contains(&name) => return Err(unknown(scheme, name, known)),
                "prefix" => options.prefix = decode(value)?,
                "dialect" => options.dialect = Some(value.to_owned()),
                "tls" => options.tls = Some(one_of("tls", value, &SWITCH)?),
                "mode" => options.mode = one_of("mode", value, &MODES)?,
                "pool" => options.pool = Some(pool(value)?),
                "replicas" => options.replicas = replicas(value)?,
                "acl" => options.access = one_of("acl", value, &ACCESS)?,
                "ca" => options.ca = Some(file(name, value)?),
                "cert" => options.cert = Some(file(name, value)?),
                "key" => options.key = Some(file(name, value)?),
                _ => options.ttl = Some(ttl(value)?),
            }
        }
        Ok(options)
    }

    /// The dialect, one of these; the first when none was named.
    pub(super) fn dialect<T: Copy>(&self, known: &[(&str, T)]) -> Result<T> {
        match &self.dialect {
            Some(dialect) => one_of("dialect", dialect, known),
            None => Ok(known[0].1),
        }
    }

    /// Where an option says whether to use TLS: the files for it, if so. Naming a file says so too.
    pub(super) fn chosen_tls(&self) -> Result<Option<TlsFiles>> {
        let files = self.tls_files()?;
        let named = files != TlsFiles::default();
        match self.tls {
            Some(false) if named => Err(Error::Config(
                "tls=off and a file for TLS: leave out ca=, cert= and key=, or tls=off".into(),
            )),
            chosen => Ok((chosen.unwrap_or(named)).then_some(files)),
        }
    }

    pub(super) fn tls_files(&self) -> Result<TlsFiles> {
        let identity = match (self.cert.clone(), self.key.clone()) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(Error::Config(
                    "cert= and key= belong together: give the certificate and its key, or neither"
                        .into(),
                ));
            }
        };
        Ok(TlsFiles { ca: self.ca.clone(), identity })
    }
}

pub(super) const REDIS_DIALECTS: [(&str, Dialect); 2] =
    [("redisson", Dialect::Redisson), ("plain", Dialect::Plain)];
pub(super) const ZOOKEEPER_DIALECTS: [(&str, Recipe); 2] =
    [("curator", Recipe::Curator), ("kazoo", Recipe::Kazoo)];
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const MODES: [(&str, Mode); 2] = [("lease", Mode::Lease), ("session", Mode::Session)];
const ACCESS: [(&str, Access); 2] = [("open", Access::Open), ("creator", Access::Creator)];

fn one_of<T: Copy>(option: &str, value: &str, known: &[(&str, T)]) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == value);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        Error::Config(format!("this version knows no {option} {value:?}; known are: {known}"))
    })
}

fn unknown(scheme: &str, name: &str, known: &[&str]) -> Error {
    let by_tls = match scheme {
        "redis" | "redlock" | "etcd" | "zookeeper" => Some(format!("{scheme}s")),
        other => other.strip_prefix("redis+").map(|topology| format!("rediss+{topology}")),
    };
    let hint = match (name, by_tls) {
        ("ca" | "cert" | "key", Some(by_tls)) => format!("; for TLS write {by_tls}://"),
        _ => String::new(),
    };
    let known = known.join(", ");
    Error::Config(format!("{scheme}: knows no option {name:?}; known are: {known}{hint}"))
}

fn file(name: &str, value: &str) -> Result<PathBuf> {
    match decode(value)? {
        path if path.is_empty() => {
            Err(Error::Config(format!("{name}= needs a file: {name}=/path.pem")))
        }
        path => Ok(path.into()),
    }
}

fn pool(value: &str) -> Result<usize> {
    match value.parse() {
        Ok(pool @ 1..=1000) => Ok(pool),
        _ => Err(Error::Config(format!(
            "pool={value:?} is not a number of connections between 1 and 1000"
        ))),
    }
}

fn replicas(value: &str) -> Result<u32> {
    match value.parse() {
        Ok(replicas @ 0..=100) => Ok(replicas),
        _ => Err(Error::Config(format!(
            "replicas={value:?} is not a number of replicas between 0 and 100"
        ))),
    }
}

fn ttl(value: &str) -> Result<Duration> {
    let ttl = humantime::parse_duration(value).map_err(|error| {
        Error::Config(format!("ttl={value:?} is not a duration such as 30s or 500ms: {error}"))
    })?;
    Ok(Term::Hosted(ttl).check()?.ttl())
}
