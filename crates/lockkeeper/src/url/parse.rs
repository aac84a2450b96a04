//! From text to a [`Url`].

use std::path::PathBuf;
use std::str::FromStr;

use super::options::{
    Mode, Options, REDIS_DIALECTS, RedLockOptions, RedisOptions, SqlOptions, ZOOKEEPER_DIALECTS,
    ZooKeeperOptions,
};
use super::servers::{Servers, check, decode, redacted, redis_nodes};
use super::{Scheme, Url};
use crate::error::{Error, Result};
use crate::name::Name;

/// The schemes of this version, with the options that each one knows.
pub(super) const KNOWN: [(&str, &[&str]); 16] = [
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Access, Dialect, Recipe, TlsFiles};
    use super::*;

    /// Else a multi-lock would leave one of two out, and circles would be looked for in the wrong list.
    #[cfg(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    #[test]
    fn other_locks_of_one_server_are_another_place() {
        let place = |url: &str| url.parse::<Url>().unwrap().place();
        for (url, other) in [
            ("redis://h:1", "prefix=a"),
            ("redis://h:1?prefix=b", "prefix=a"),
            ("redis://h:1", "dialect=plain"),
            ("redlock://a,b,c", "prefix=a"),
            ("etcd://h", "prefix=a"),
            ("zookeeper://h/x", "dialect=kazoo"),
            ("postgres://me@h/db", "prefix=a"),
            ("mysql://me@h/db", "prefix=a"),
        ] {
            let base = url.split('?').next().unwrap();
            assert_ne!(place(url), place(&format!("{base}?{other}")), "{url} {other}");
        }
        assert_eq!(place("redis://me:s3cret@h:1?ttl=5s&prefix=a"), "redis://me@h:1?prefix=a");
        assert_eq!(place("redis://h?ttl=5s&dialect=redisson&replicas=1"), "redis://h");
        assert_eq!(
            place("redis://h?dialect=plain&prefix=a"),
            place("redis://h?prefix=%61&dialect=plain")
        );
    }

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
