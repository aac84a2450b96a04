//! The part of a URL that says where the servers are and who we are.

use std::fmt;

use super::TlsFiles;
use crate::error::{Error, Result};

/// `[USER[:PASSWORD]@]HOST[:PORT],…[/PATH]`, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    /// `HOST[:PORT]` each, as they were written; there is at least one.
    pub hosts: Vec<String>,
    /// User and password.
    pub credentials: Option<(String, String)>,
    /// What follows the first slash, without one at its end.
    pub path: String,
    /// By TLS, with these files.
    pub tls: Option<TlsFiles>,
}

impl Servers {
    /// Takes apart what follows the colon of a URL that [`check`] has found good.
    pub(super) fn parse(text: &str, rest: &str, tls: Option<TlsFiles>) -> Result<Self> {
        // A database may know a user by other means than a password.
        let is_database = text.starts_with("postgres:") || text.starts_with("mysql:");
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let credentials = match credentials.map(|both| both.split_once(':')) {
            Some(Some((user, password))) => Some((decode(user)?, decode(password)?)),
            Some(None) if is_database => {
                Some((decode(credentials.unwrap_or_default())?, String::new()))
            }
            Some(None) => {
                let text = redacted(text);
                return Err(Error::Config(format!(
                    "{text:?} has a user and no password: write USER:PASSWORD@ or neither"
                )));
            }
            None => None,
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
        if hosts.iter().any(|host| host.is_empty() || host.starts_with(':')) {
            return Err(nowhere(text));
        }
        let path = decode(path.strip_suffix('/').unwrap_or(path))?;
        Ok(Self { hosts, credentials, path, tls })
    }
}

/// The nodes of a RedLock, each as a URL of its own with the same user, password and database.
pub(super) fn redis_nodes(text: &str, scheme: &str, rest: &str) -> Result<Vec<String>> {
    let servers = Servers::parse(text, rest, None)?;
    let mut names = servers.hosts.clone();
    names.sort();
    names.dedup();
    if names.len() < 3 || names.len() < servers.hosts.len() {
        return Err(Error::Config(format!(
            "{:?} names {} different servers: a majority that survives the loss of one takes three or \
             more, each named once; for one server write redis://",
            redacted(text),
            names.len()
        )));
    }
    let scheme = if scheme == "redlocks" { "rediss" } else { "redis" };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let credentials = rest.rsplit_once('@').map_or(String::new(), |(who, _)| format!("{who}@"));
    let database = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let database = database.split_once('/').map_or(String::new(), |(_, path)| format!("/{path}"));
    let url = |host: &String| format!("{scheme}://{credentials}{host}{database}");
    Ok(servers.hosts.iter().map(url).collect())
}

impl fmt::Debug for Servers {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers")
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// Refuses what a driver would read in another way than we do. No message shows the password.
pub(super) fn check(text: &str, rest: &str) -> Result<()> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(nowhere(text));
    };
    let text = redacted(text);
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

fn nowhere(text: &str) -> Error {
    let scheme = text.split(':').next().unwrap_or_default();
    let form = match scheme {
        "redis" | "rediss" => "HOST:PORT/DB",
        "redis+sentinel" | "rediss+sentinel" => "HOST:PORT,HOST:PORT/MASTER",
        "redlock" | "redlocks" => "HOST:PORT,HOST:PORT,HOST:PORT",
        "postgres" | "mysql" => "USER:PASSWORD@HOST:PORT/DATABASE",
        "zookeeper" | "zookeepers" => "HOST:PORT,HOST:PORT/PATH",
        _ => "HOST:PORT,HOST:PORT",
    };
    Error::Config(format!("{:?} names no server: write {scheme}://{form}", redacted(text)))
}

/// The text without the password that it may carry. Whatever stands before the last `@` is taken for
/// one rather than shown.
pub(super) fn redacted(text: &str) -> String {
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

/// Turns `%2F` and the like into bytes. The text itself is not in the error: it may be a password.
pub(crate) fn decode(text: &str) -> Result<String> {
    let bad = || Error::Config("the URL has a % that is not followed by two hex digits".into());
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
    String::from_utf8(bytes)
        .map_err(|_| Error::Config("the URL has bytes, written with %, that are not UTF-8".into()))
}
