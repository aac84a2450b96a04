//! URLs that choose a store.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::file::File;
use crate::backend::memory::Memory;
use crate::backend::{Backend, Term};
use crate::error::{Error, Result};

/// The schemes of this version, with the options that each one knows.
const KNOWN: [(&str, &[&str]); 4] = [
    ("memory", &["ttl"]),
    ("file", &["ttl"]),
    ("redis", &["ttl", "prefix", "dialect"]),
    ("rediss", &["ttl", "prefix", "dialect", "ca", "cert", "key"]),
];

/// Where the locks are.
///
/// | form | store |
/// | --- | --- |
/// | `memory:` | inside this process, shared with nobody |
/// | `memory:NAME` | inside this process, shared by all that use the same name |
/// | `file:` | this host: `/var/lib/lockkeeper` for root, else `lockkeeper` in `$XDG_STATE_HOME` or `~/.local/state` |
/// | `file:/DIR` | this host: all processes that use the same directory |
/// | `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]` | a Redis server, with Redisson's layout (feature `redis`) |
/// | `rediss://…` | the same by TLS; the server's certificate must be valid for HOST |
///
/// Options follow as a query: `file:/srv/locks?ttl=10s`.
///
/// | option | meaning |
/// | --- | --- |
/// | `ttl` | time to live of a hosted lock, `100ms` to `30days`; default 30 s |
/// | `prefix` | what all keys begin with (`redis:` and `rediss:`); default nothing, as in Redisson |
/// | `dialect` | with which other clients locks are shared (`redis:` and `rediss:`): `redisson` (default), or `plain` for those that use `SET name value NX PX` |
/// | `ca` | a PEM file of the CAs to trust (`rediss:`); default those of the system |
/// | `cert`, `key` | PEM files of our own certificate and its key (`rediss:`), for a server that asks for one |
///
/// `%` and two hexadecimal digits stand for a byte, as in any URL. In a URL with a server, write `@` as
/// `%40` wherever it does not end the password.
///
/// `rediss:` uses the `CryptoProvider` of rustls that the program has installed by then; where there is
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
}

/// How locks are kept at a Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisOptions {
    /// The files for a `rediss:` URL.
    pub tls: TlsFiles,
    /// What all keys begin with.
    pub prefix: String,
    /// What other clients see.
    pub dialect: Dialect,
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

/// The PEM files that a connection by TLS uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CAs to trust; without, those of the system.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
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
            Scheme::Redis { url, .. } if url.starts_with("rediss:") => "rediss",
            Scheme::Redis { .. } => "redis",
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
                let place = self.text.split('?').next().unwrap_or_default().to_owned();
                Ok(crate::backend::redis::Redis::connect(url, place, options).await?)
            }
            #[cfg(not(feature = "redis"))]
            Scheme::Redis { .. } => Err(Error::Config(
                "this build has no redis: backend; enable the cargo feature `redis`".into(),
            )),
        }
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
        let at_server = matches!(scheme, "redis" | "rediss");
        if at_server {
            // First of all: a question mark in a password does not begin the options.
            check_server(text, rest)?;
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = Options::parse(scheme, options, query)?;
        if at_server {
            let (url, tls) = (format!("{scheme}:{rest}"), options.tls_files()?);
            let (ttl, dialect) = (options.ttl, options.dialect);
            let options = RedisOptions { tls, prefix: options.prefix, dialect };
            return Ok(Self { text: redacted(text), scheme: Scheme::Redis { url, options }, ttl });
        }
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

/// What follows the question mark.
#[derive(Default)]
struct Options {
    ttl: Option<Duration>,
    prefix: String,
    dialect: Dialect,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Options {
    fn parse(scheme: &str, known: &[&str], query: &str) -> Result<Self> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                _ if !known.contains(&name) => return Err(unknown(scheme, name, known)),
                "prefix" => options.prefix = decode(value)?,
                "dialect" => options.dialect = parse_dialect(value)?,
                "ca" => options.ca = Some(parse_file(name, value)?),
                "cert" => options.cert = Some(parse_file(name, value)?),
                "key" => options.key = Some(parse_file(name, value)?),
                _ => options.ttl = Some(parse_ttl(value)?),
            }
        }
        Ok(options)
    }

    fn tls_files(&self) -> Result<TlsFiles> {
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

fn unknown(scheme: &str, name: &str, known: &[&str]) -> Error {
    let hint = match name {
        "ca" | "cert" | "key" if scheme == "redis" => "; for TLS write rediss://",
        _ => "",
    };
    let known = known.join(", ");
    Error::Config(format!("{scheme}: knows no option {name:?}; known are: {known}{hint}"))
}

fn parse_file(name: &str, value: &str) -> Result<PathBuf> {
    match decode(value)? {
        path if path.is_empty() => {
            Err(Error::Config(format!("{name}= needs a file: {name}=/path.pem")))
        }
        path => Ok(path.into()),
    }
}

fn parse_dialect(value: &str) -> Result<Dialect> {
    match value {
        "redisson" => Ok(Dialect::Redisson),
        "plain" => Ok(Dialect::Plain),
        _ => Err(Error::Config(format!(
            "this version knows no dialect {value:?}; known are: redisson, plain"
        ))),
    }
}

fn parse_ttl(value: &str) -> Result<Duration> {
    let ttl = humantime::parse_duration(value).map_err(|error| {
        Error::Config(format!("ttl={value:?} is not a duration such as 30s or 500ms: {error}"))
    })?;
    Ok(Term::Hosted(ttl).check()?.ttl())
}

fn known() -> String {
    KNOWN.map(|(scheme, _)| format!("{scheme}:")).join(", ")
}

/// Refuses what the driver would read in another way than we do. No message shows the password.
fn check_server(text: &str, rest: &str) -> Result<()> {
    let text = redacted(text);
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(Error::Config(format!("{text:?} names no server: write redis://HOST:PORT/DB")));
    };
    if let Some((credentials, _)) = rest.rsplit_once('@')
        && credentials.contains(['/', '?', '#'])
    {
        return Err(Error::Config(format!(
            "{text:?} has an @ that is not right before the host: in a password write / ? # as %2F \
             %3F %23, in an option write @ as %40"
        )));
    }
    // The driver knows fragments, and one of them would switch the check of certificates off.
    if rest.split('?').next().unwrap_or_default().contains('#') {
        return Err(Error::Config(format!("{text:?} has a #, which means nothing here")));
    }
    Ok(())
}

/// The text without the password that it may carry. Whatever stands before the last `@` is taken for
/// one rather than shown.
fn redacted(text: &str) -> String {
    let start = text.find(':').map_or(0, |colon| colon + 1);
    let start = text.len() - text[start..].trim_start_matches('/').len();
    let credentials = text[start..].rsplit_once('@').map_or("", |(credentials, _)| credentials);
    match credentials.split_once(':') {
        Some((user, _)) => {
            format!("{}{}", &text[..start + user.len()], &text[start + credentials.len()..])
        }
        None => text.to_owned(),
    }
}

/// Turns `%2F` and the like into bytes.
fn decode(text: &str) -> Result<String> {
    let bad = || Error::Config(format!("{text:?} has a % that is not followed by two hex digits"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or_else(bad)?;
        bytes.push(byte);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| Error::Config(format!("{text:?} is not UTF-8")))
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
            ("", "known are memory:, file:, redis:, rediss:"),
            ("nonsense", "known are memory:, file:, redis:, rediss:"),
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
            ("redis://h?ca=/x", "known are: ttl, prefix, dialect; for TLS write rediss://"),
            ("rediss://h?cert=/x", "belong together"),
            ("rediss://h?ca=/x&key=/x", "belong together"),
            ("rediss://h?ca", "ca=/path.pem"),
            ("rediss://h?insecure=1", "knows no option \"insecure\""),
            ("rediss://h#insecure", "means nothing here"),
            ("rediss://h/0#insecure?ttl=3s", "means nothing here"),
            ("rediss://h?ca=/a@b", "in an option write @ as %40"),
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
        let options = RedisOptions { tls, prefix: "a@b".into(), dialect: Dialect::Redisson };
        assert_eq!(url.scheme, Scheme::Redis { url: driver, options });
        assert_eq!((url.scheme(), parse("redis://h").scheme()), ("rediss", "redis"));
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
        ];
        for url in bad {
            assert!(!redacted(url).contains("cret"), "{}", redacted(url));
            let error = url.parse::<Url>().expect_err(url);
            assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
        }
        assert_eq!(redacted("redis://me:s3cret@h:1/0"), "redis://me@h:1/0");
        for text in ["redis://me:s3cret@h:1/0?prefix=a", "rediss://:s3cr@cret@h?ca=/a"] {
            let url: Url = text.parse().expect("valid");
            assert!(!format!("{url} {url:?}").contains("cret"), "{url}");
        }
        for text in ["file:/a:b@c", "file:///a:b@c", "memory:a:b@c", "rediss://me@h:1?ca=/a:b"] {
            assert_eq!(text.parse::<Url>().expect("valid").to_string(), text, "no password there");
        }
    }
}
