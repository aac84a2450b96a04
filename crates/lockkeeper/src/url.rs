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
const KNOWN: [(&str, &[&str]); 3] =
    [("memory", &["ttl"]), ("file", &["ttl"]), ("redis", &["ttl", "prefix"])];

/// Where the locks are.
///
/// | form | store |
/// | --- | --- |
/// | `memory:` | inside this process, shared with nobody |
/// | `memory:NAME` | inside this process, shared by all that use the same name |
/// | `file:` | this host: `/var/lib/lockkeeper` for root, else `lockkeeper` in `$XDG_STATE_HOME` or `~/.local/state` |
/// | `file:/DIR` | this host: all processes that use the same directory |
/// | `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]` | a Redis server, with Redisson's layout (feature `redis`) |
///
/// Options follow as a query: `file:/srv/locks?ttl=10s`.
///
/// | option | meaning |
/// | --- | --- |
/// | `ttl` | time to live of a hosted lock, `100ms` to `30days`; default 30 s |
/// | `prefix` | what all keys begin with (`redis:` only); default nothing, as in Redisson |
///
/// `%` and two hexadecimal digits stand for a byte, as in any URL.
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
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only redis: has one"))]
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scheme {
    Memory(Option<String>),
    File(Option<PathBuf>),
    /// The URL as the driver wants it, password and all.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for redis: alone"))]
    Redis(String),
}

impl Url {
    /// The time to live that it asks for.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// The name of the store's scheme.
    pub fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::Memory(_) => "memory",
            Scheme::File(_) => "file",
            Scheme::Redis(_) => "redis",
        }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the store cannot be reached or used.
    pub async fn open(&self) -> Result<Arc<dyn Backend>> {
        match &self.scheme {
            Scheme::Memory(None) => Ok(Memory::private()),
            Scheme::Memory(Some(name)) => Ok(Memory::shared(name)),
            Scheme::File(None) => Ok(File::open(&File::default_directory()?).await?),
            Scheme::File(Some(directory)) => Ok(File::open(directory).await?),
            #[cfg(feature = "redis")]
            Scheme::Redis(url) => {
                let place = self.text.split('?').next().unwrap_or_default().to_owned();
                Ok(crate::backend::redis::Redis::connect(url, place, &self.prefix).await?)
            }
            #[cfg(not(feature = "redis"))]
            Scheme::Redis(_) => Err(Error::Config(
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
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Some((_, options)) = KNOWN.iter().find(|(name, _)| *name == scheme) else {
            return Err(Error::Config(format!(
                "this version knows no {scheme:?} URLs; known are {}",
                known()
            )));
        };
        let (mut ttl, mut prefix) = (None, String::new());
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            match key {
                "ttl" => ttl = Some(parse_ttl(value)?),
                "prefix" if options.contains(&key) => prefix = decode(value)?,
                _ => {
                    return Err(Error::Config(format!(
                        "{scheme}: knows no option {key:?}; known are: {}",
                        options.join(", ")
                    )));
                }
            }
        }
        if scheme == "redis" {
            let scheme = Scheme::Redis(format!("redis:{rest}"));
            return Ok(Self { text: redacted(text), scheme, ttl, prefix });
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
        Ok(Self { text: redacted(text), scheme, ttl, prefix })
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

/// The text without the password that it may carry.
fn redacted(text: &str) -> String {
    let credentials = text.split_once("//").and_then(|(_, rest)| {
        let (authority, _) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
        authority.rsplit_once('@').map(|(credentials, _)| credentials)
    });
    match credentials.and_then(|credentials| credentials.split_once(':')) {
        Some((user, password)) => {
            text.replacen(&format!("{user}:{password}@"), &format!("{user}@"), 1)
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
            ("", "known are memory:, file:, redis:"),
            ("nonsense", "known are memory:, file:, redis:"),
            ("rediss://h", "knows no \"rediss\" URLs"),
            ("file:/x?prefix=a", "knows no option \"prefix\"; known are: ttl"),
            ("file:/x?tll=3s", "knows no option \"tll\"; known are: ttl"),
            ("file:/x?ttl=soon", "such as 30s"),
            ("file:/x?ttl=0s", "cannot be meant"),
            ("memory:?ttl=3000years", "cannot be meant"),
            ("file:relative", "absolute"),
            ("file:/a%zz", "two hex digits"),
            ("file:/a%f", "two hex digits"),
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
    }

    #[test]
    fn passwords_are_never_shown() {
        for url in ["rediss://me:s3cret@h:1/0", "x://:s3cret@h", "x://a:s3:cret@h?x=1"] {
            assert!(!redacted(url).contains("cret"), "{}", redacted(url));
            let error = url.parse::<Url>().expect_err(url);
            assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
        }
        assert_eq!(redacted("redis://me:s3cret@h:1/0"), "redis://me@h:1/0");
        let url: Url = "redis://me:s3cret@h:1/0?prefix=a".parse().expect("valid");
        assert!(!format!("{url} {url:?}").contains("cret"));
    }
}
