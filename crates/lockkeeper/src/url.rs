//! URLs that choose a store.

mod options;
mod servers;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use self::options::{
    Access, Dialect, Mode, Recipe, RedLockOptions, RedisOptions, SqlOptions, TlsFiles,
    ZooKeeperOptions,
};
use self::options::{Options, REDIS_DIALECTS, ZOOKEEPER_DIALECTS};
pub use self::servers::Servers;
pub(crate) use self::servers::decode;
use self::servers::{check, redacted, redis_nodes};
use crate::backend::Backend;
use crate::backend::file::File;
use crate::backend::memory::Memory;
use crate::error::{Error, Result};
use crate::name::Name;

/// The schemes of this version, with the options that each one knows.
const KNOWN: [(&str, &[&str]); 16] = [
    ("memory", &["ttl"]),
    ("file", &["ttl"]),
    ("redis", &REDIS),
    ("rediss", &REDIS_BY_TLS),
    ("redlock", &["ttl", "prefix"]),
    ("redlocks", &["ttl", "prefix", "ca", "cert", "key"]),
    ("etcd", &["ttl", "prefix"]),
    ("etcds", &["ttl", "prefix", "ca", "cert", "key"]),
    ("zookeeper", &["ttl", "dialect", "acl"]),
    ("zookeepers", &["ttl", "dialect", "acl", "ca", "cert", "key"]),
    ("postgres", &["ttl", "prefix", "mode", "pool", "tls", "ca", "cert", "key"]),
    ("mysql", &["ttl", "prefix", "mode", "pool", "tls", "ca", "cert", "key"]),
    ("redis+sentinel", &REDIS),
    ("rediss+sentinel", &REDIS_BY_TLS),
    ("redis+cluster", &REDIS),
    ("rediss+cluster", &REDIS_BY_TLS),
];

const REDIS: [&str; 4] = ["ttl", "prefix", "dialect", "replicas"];
const REDIS_BY_TLS: [&str; 7] = ["ttl", "prefix", "dialect", "replicas", "ca", "cert", "key"];

/// How many connections to a database there are at most when nothing else is said.
const POOL: usize = 4;
/// The same where each lock has a connection of its own.
const SESSIONS: usize = 16;

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

    /// What the store is called: no password, no options.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    fn place(&self) -> String {
        self.text.split('?').next().unwrap_or_default().to_owned()
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

impl Url {
    fn at_server(text: &str, name: &str, rest: &str, known: &[&str]) -> Result<Self> {
        // First of all: a question mark in a password does not begin the options.
        check(text, rest)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = Options::parse(name, known, query)?;
        let (ttl, tls) = (options.ttl, options.tls_files()?);
        let by_tls = known.contains(&"ca").then(|| tls.clone());
        let scheme = match name {
            name if name.starts_with("redis") => {
                check_nodes(text, name, rest)?;
                let (dialect, replicas) = (options.dialect(&REDIS_DIALECTS)?, options.replicas);
                let options = RedisOptions { tls, prefix: options.prefix, dialect, replicas };
                Scheme::Redis { url: format!("{name}:{rest}"), options }
            }
            "redlock" | "redlocks" => {
                let nodes = redis_nodes(text, name, rest)?;
                let prefix = options.prefix;
                Scheme::RedLock(RedLockOptions { nodes, tls, prefix, ttl })
            }
            "etcd" | "etcds" => {
                let servers = Servers::parse(text, rest, by_tls)?;
                if !servers.path.is_empty() {
                    return Err(Error::Config(format!(
                        "{:?} has a path, and etcd has none: use prefix= instead",
                        redacted(text)
                    )));
                }
                Scheme::Etcd { servers, prefix: options.prefix }
            }
            "postgres" | "mysql" => {
                let options = Self::sql(text, rest, options)?;
                if name == "postgres" { Scheme::Postgres(options) } else { Scheme::MySql(options) }
            }
            _ => {
                let servers = Servers::parse(text, rest, by_tls)?;
                let (dialect, access) = (options.dialect(&ZOOKEEPER_DIALECTS)?, options.access);
                let options = ZooKeeperOptions { session: ttl, dialect, access };
                Scheme::ZooKeeper { servers, options }
            }
        };
        Ok(Self { text: redacted(text), scheme, ttl })
    }
}

impl Url {
    fn sql(text: &str, rest: &str, options: Options) -> Result<SqlOptions> {
        let servers = Servers::parse(text, rest, options.chosen_tls()?)?;
        let wrong = match &servers {
            servers if servers.hosts.len() > 1 => "names more than one server",
            servers if servers.credentials.is_none() => "names no user",
            servers if servers.path.is_empty() => "names no database",
            _ if options.prefix.len() > Name::MAX_BYTES => "has a prefix of more than 255 bytes",
            _ => {
                let default = if options.mode == Mode::Session { SESSIONS } else { POOL };
                let (prefix, pool, mode) =
                    (options.prefix, options.pool.unwrap_or(default), options.mode);
                return Ok(SqlOptions { servers, prefix, pool, mode });
            }
        };
        let (text, scheme) = (redacted(text), text.split(':').next().unwrap_or_default());
        Err(Error::Config(format!(
            "{text:?} {wrong}: write {scheme}://USER:PASSWORD@HOST:PORT/DATABASE"
        )))
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once(':').ok_or_else(|| {
            Error::Config(format!("{:?} is not a URL; known are {}", redacted(text), known()))
        })?;
        let Some((_, options)) = KNOWN.iter().find(|(name, _)| *name == scheme) else {
            return Err(Error::Config(format!(
                "this version knows no {scheme:?} URLs; known are {}",
                known()
            )));
        };
        if !matches!(scheme, "memory" | "file") {
            return Self::at_server(text, scheme, rest, options);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = Options::parse(scheme, options, query)?;
        let path = decode(rest.strip_prefix("//").unwrap_or(rest))?;
        let path = (!path.is_empty()).then_some(path);
        let scheme = match scheme {
            "memory" => Scheme::Memory(path),
            _ => Scheme::File(path.map(PathBuf::from)),
        };
        if let Scheme::File(Some(directory)) = &scheme
            && !directory.is_absolute()
        {
            return Err(Error::Config(format!(
                "{:?} is not an absolute directory: write file:/DIR, or file: for the default one",
                redacted(text)
            )));
        }
        Ok(Self { text: text.to_owned(), scheme, ttl: options.ttl })
    }
}

/// Refuses a URL of several Redis servers that says too little or too much.
fn check_nodes(text: &str, name: &str, rest: &str) -> Result<()> {
    let Some((_, topology)) = name.split_once('+') else { return Ok(()) };
    let path = Servers::parse(text, rest, None)?.path;
    let (master, database) = path.split_once('/').unwrap_or((&path, "0"));
    let wrong = match topology {
        "sentinel" if master.is_empty() => "does not say which master: end it with /MASTER",
        "sentinel" if database.parse::<u16>().is_err() => "has a database that is not a number",
        "cluster" if !path.is_empty() => "has a path, and a cluster has only one database",
        _ => return Ok(()),
    };
    Err(Error::Config(format!("{:?} {wrong}", redacted(text))))
}

fn known() -> String {
    KNOWN.map(|(scheme, _)| format!("{scheme}:")).join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_urls_say_what_is_known() {
        let cases = [
            ("postgres:h", "write postgres://USER:PASSWORD@HOST:PORT/DATABASE"),
            ("postgres://h/db", "names no user"),
            ("postgres://me@h", "names no database"),
            ("mysql://me@a,b/db", "more than one server"),
            ("mysql://me@h/db?pool=0", "between 1 and 1000"),
            ("postgres://me@h/db?mode=fast", "knows no mode \"fast\"; known are: lease, session"),
            ("redis://h?mode=session", "knows no option \"mode\""),
            ("postgres://me@h/db?tls=maybe", "known are: on, off"),
            ("postgres://me@h/db?tls=off&ca=/x", "leave out"),
            ("postgres://me@h/db?sslmode=require", "knows no option \"sslmode\""),
            (
                "",
                "known are memory:, file:, redis:, rediss:, redlock:, redlocks:, etcd:, etcds:, zookeeper:",
            ),
            ("nonsense", "known are memory:, file:, redis:, rediss:, redlock:"),
            ("ftp://h", "knows no \"ftp\" URLs"),
            ("file:/x?prefix=a", "knows no option \"prefix\"; known are: ttl"),
            ("file:/x?tll=3s", "knows no option \"tll\"; known are: ttl"),
            ("redis://h?dialect=klingon", "known are: redisson, plain"),
            ("file:/x?ttl=soon", "such as 30s"),
            ("file:/x?ttl=0s", "cannot be meant"),
            ("memory:?ttl=3000years", "cannot be meant"),
            ("file:relative", "absolute"),
            ("file:/a%zz", "two hex digits"),
            ("file:/a%f", "two hex digits"),
            ("redis:h", "write redis://HOST"),
            (
                "redis://h?ca=/x",
                "known are: ttl, prefix, dialect, replicas; for TLS write rediss://",
            ),
            ("redis+cluster://h?ca=/x", "for TLS write rediss+cluster://"),
            ("redis+cluster://h/1", "only one database"),
            ("redis+cluster://a,,b", "names no server"),
            ("redis+sentinel://h", "end it with /MASTER"),
            ("redis+sentinel:///m", "write redis+sentinel://HOST:PORT,HOST:PORT/MASTER"),
            ("redis+sentinel://h/m/x", "not a number"),
            ("redis://h?replicas=some", "between 0 and 100"),
            ("etcd://h?replicas=1", "knows no option \"replicas\""),
            ("rediss://h?cert=/x", "belong together"),
            ("rediss://h?ca=/x&key=/x", "belong together"),
            ("rediss://h?ca", "ca=/path.pem"),
            ("rediss://h?insecure=1", "knows no option \"insecure\""),
            ("rediss://h#insecure", "means nothing here"),
            ("rediss://h/0#insecure?ttl=3s", "means nothing here"),
            ("rediss://h?ca=/a@b", "in an option write @ as %40"),
            ("redlock://a,b", "names 2 different servers"),
            ("redlock://a,b,a", "each named once"),
            ("redlock://a", "for one server write redis://"),
            ("redlock:a,b,c", "write redlock://HOST:PORT,HOST:PORT,HOST:PORT"),
            ("redlock://a,b,c?dialect=plain", "known are: ttl, prefix"),
            ("redlock://a,b,c?ca=/x", "for TLS write redlocks://"),
            ("etcd:h", "write etcd://HOST"),
            ("etcd://", "write etcd://HOST"),
            ("etcd://a,,b", "names no server"),
            ("etcd://:2379", "names no server"),
            ("etcd://a/b", "use prefix= instead"),
            ("etcd://me@a", "USER:PASSWORD@ or neither"),
            ("etcd://a?dialect=go", "known are: ttl, prefix"),
            ("etcd://a?ca=/x", "for TLS write etcds://"),
            ("etcds://a?cert=/x", "belong together"),
            ("zookeeper:///x", "write zookeeper://HOST:PORT,HOST:PORT/PATH"),
            ("zookeeper://a?dialect=plain", "known are: curator, kazoo"),
            ("zookeeper://a?acl=all", "known are: open, creator"),
            ("zookeeper://a?ca=/x", "for TLS write zookeepers://"),
        ];
        for (url, reason) in cases {
            let error = url.parse::<Url>().expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn good_urls_are_taken_apart() {
        let parse = |text: &str| text.parse::<Url>().expect("valid");
        assert_eq!(parse("memory:").scheme, Scheme::Memory(None));
        assert_eq!(parse("memory:a").scheme, Scheme::Memory(Some("a".into())));
        assert_eq!(parse("file:").scheme, Scheme::File(None));
        assert_eq!(parse("file:///a%20b").scheme, Scheme::File(Some("/a b".into())));
        assert_eq!(parse("file:/a?ttl=500ms").ttl(), Some(Duration::from_millis(500)));
        let url = parse("rediss://me:p%3Fw@h:1/0?prefix=a%40b&ca=/c%20a&cert=c&key=/k");
        let tls = TlsFiles { ca: Some("/c a".into()), identity: Some(("c".into(), "/k".into())) };
        let driver = "rediss://me:p%3Fw@h:1/0".into();
        let (prefix, dialect) = ("a@b".into(), Dialect::Redisson);
        let options = RedisOptions { tls, prefix, dialect, replicas: 0 };
        assert_eq!(url.scheme, Scheme::Redis { url: driver, options });
        assert_eq!((url.scheme(), parse("redis://h").scheme()), ("rediss", "redis"));
        let nodes = parse("redis+sentinel://:pw@a,b:1/main/2?replicas=2");
        assert_eq!((nodes.scheme(), nodes.to_string().contains("pw")), ("redis+sentinel", false));
        let Scheme::Redis { options, .. } = nodes.scheme else { panic!("redis") };
        assert_eq!(options.replicas, 2);
        assert_eq!(parse("rediss+cluster://a,b").scheme(), "rediss+cluster");
        let url = parse("redlocks://me:p%40w@a:1,b,[::1]:3/2?prefix=x&ttl=5s");
        let nodes = ["a:1", "b", "[::1]:3"].map(|host| format!("rediss://me:p%40w@{host}/2"));
        let (nodes, ttl) = (nodes.to_vec(), Some(Duration::from_secs(5)));
        let options = RedLockOptions { nodes, tls: TlsFiles::default(), prefix: "x".into(), ttl };
        assert_eq!(url.scheme, Scheme::RedLock(options));
        assert_eq!((url.scheme(), parse("redlock://a,b,c,d").scheme()), ("redlocks", "redlock"));
        assert!(!format!("{url:?}").contains("p%40w"));
        let mut servers = Servers {
            hosts: vec!["a:1".into(), "b".into()],
            credentials: Some(("me".into(), "s:3@".into())),
            path: String::new(),
            tls: None,
        };
        let etcd = parse("etcd://me:s:3%40@a:1,b/?prefix=x");
        assert_eq!(etcd.scheme, Scheme::Etcd { servers: servers.clone(), prefix: "x".into() });
        servers.path = "app/x y".into();
        servers.tls = Some(TlsFiles { ca: Some("/c".into()), identity: None });
        let zookeeper =
            parse("zookeepers://me:s:3%40@a:1,b/app/x%20y/?ca=/c&ttl=3s&acl=creator&dialect=kazoo");
        let options = ZooKeeperOptions {
            session: Some(Duration::from_secs(3)),
            dialect: Recipe::Kazoo,
            access: Access::Creator,
        };
        assert_eq!(zookeeper.scheme, Scheme::ZooKeeper { servers, options });
        assert_eq!((etcd.scheme(), zookeeper.scheme()), ("etcd", "zookeepers"));
        let Scheme::MySql(options) = parse("mysql://me@h/db?ca=/c&pool=2&prefix=x").scheme else {
            panic!("mysql");
        };
        assert_eq!((options.pool, options.prefix.as_str()), (2, "x"));
        assert_eq!(options.servers.credentials, Some(("me".into(), String::new())));
        assert_eq!(options.servers.path, "db");
        assert_eq!(options.servers.tls, Some(TlsFiles { ca: Some("/c".into()), identity: None }));
        let Scheme::Postgres(options) = parse("postgres://me:p%40w@[::1]:1/db").scheme else {
            panic!("postgres");
        };
        assert_eq!((options.pool, options.mode, options.servers.tls), (POOL, Mode::Lease, None));
        let Scheme::MySql(options) = parse("mysql://me@h/db?mode=session").scheme else {
            panic!("mysql");
        };
        assert_eq!((options.pool, options.mode), (SESSIONS, Mode::Session));
        let Scheme::Postgres(options) = parse("postgres://me:p%40w@[::1]:1/db").scheme else {
            panic!("postgres");
        };
        assert_eq!(options.servers.credentials, Some(("me".into(), "p@w".into())));
    }

    #[test]
    fn passwords_are_never_shown() {
        let bad = [
            "redisss://me:s3cret@h:1/0",
            "x://:s3cret@h",
            "x://a:s3:cret@h?x=1",
            "redis:me:s3cret@h",
            "redis:/me:s3cret@h",
            "redis://me:s3/cret@h",
            "redis://me:12?cret@h",
            "redis://me:s3#cret@h",
            "redis://me:s3cret@h#x",
            "redis://me:s3@cret@h?x=1",
            "rediss://me:s3cret@h?ca=/a@b",
            "file://me:s3cret@h",
            "etcd://me:s3cret@",
            "etcd://me:s3cret@h/path",
            "etcd://me:s3/cret@h",
            "etcds://me:s3cret@h?ca=/a@b",
            "etcd://me:s3cret%zz@h",
            "zookeeper://me:s3cret@/x",
            "zookeeper://me:s3%FFcret@h",
            "postgres://me:s3cret@h",
            "mysql://me:s3cret@a,b/db",
            "mysql://me:s3/cret@h/db",
        ];
        for url in bad {
            assert!(!redacted(url).contains("cret"), "{}", redacted(url));
            let error = url.parse::<Url>().expect_err(url);
            assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
        }
        assert_eq!(redacted("redis://me:s3cret@h:1/0"), "redis://me@h:1/0");
        for text in [
            "redis://me:s3cret@h:1/0?prefix=a",
            "rediss://:s3cr@cret@h?ca=/a",
            "etcd://me:s3cr@cret@h",
            "zookeeper://me:s3cret@h/app",
            "postgres://me:s3cret@h/db?pool=3",
        ] {
            let url: Url = text.parse().expect("valid");
            assert!(!format!("{url} {url:?}").contains("cret"), "{url}");
        }
        for text in ["file:/a:b@c", "file:///a:b@c", "memory:a:b@c", "rediss://me@h:1?ca=/a:b"] {
            assert_eq!(text.parse::<Url>().expect("valid").to_string(), text, "no password there");
        }
    }
}
