//! From a URL to the driver's client, with TLS by rustls where the URL says so.

use redis::{Client, ClientTlsConfig, ConnectionAddr, ErrorKind, RedisError, TlsCertificates};

use crate::error::{Error, Result};
use crate::tls::{self, Pem};
use crate::url::{TlsFiles, decode};

/// The client for a URL; nothing is sent yet. `place` is the URL without its password.
pub(in crate::backend) fn client(url: &str, files: &TlsFiles, place: &str) -> Result<Client> {
    let bad = |_| Error::Config(format!("{place} is not a redis:// URL: redis://HOST:PORT/DB"));
    if !url.starts_with("rediss:") {
        return Client::open(url).map_err(bad);
    }
    let Pem { ca: root_cert, identity } = Pem::read(files)?;
    let client_tls =
        identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Client::build_with_tls(url, TlsCertificates { client_tls, root_cert }).map_err(bad)
}

/// How to get into every server of a topology: by TLS or not, and as whom.
pub(super) struct Door {
    scheme: &'static str,
    /// `USER:PASSWORD@` as it stands in the URL, or nothing.
    who: String,
    database: String,
    files: TlsFiles,
}

impl Door {
    /// From a URL that has been found good; also the hosts, and what the path begins with.
    pub(super) fn parse(url: &str, files: &TlsFiles) -> (Self, Vec<String>, String) {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (who, rest) = match rest.rsplit_once('@') {
            Some((who, rest)) => (format!("{who}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        let port = if scheme.ends_with("sentinel") { 26379 } else { 6379 };
        let hosts = hosts.split(',').map(|host| with_port(host, port)).collect();
        let scheme = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
        let database = database.trim_end_matches('/').to_owned();
        let name = decode(name).unwrap_or_else(|_| name.to_owned());
        (Self { scheme, who, database, files: files.clone() }, hosts, name)
    }

    /// To a server that keeps locks.
    pub(super) fn to(&self, address: &str) -> Result<Client> {
        let Self { scheme, who, database, files } = self;
        client(&format!("{scheme}://{who}{address}/{database}"), files, address)
    }

    /// To a sentinel.
    pub(super) fn to_sentinel(&self, address: &str, with_password: bool) -> Result<Client> {
        let who = if with_password { &self.who } else { "" };
        client(&format!("{}://{who}{address}/", self.scheme), &self.files, address)
    }
}

/// An address always has a port.
fn with_port(host: &str, port: u16) -> String {
    match host.rsplit_once(':') {
        // What is in brackets is an address of IPv6, colons and all.
        Some((_, number)) if !number.contains(']') => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}

/// Adds to the error of a first connection what TLS, or the lack of it, may have to do with it.
pub(in crate::backend) fn explain(error: Error, client: &Client) -> Error {
    let Error::Unavailable { backend, context, source: Some(source) } = error else {
        return error;
    };
    let tls = matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. });
    let hint = source.downcast_ref::<RedisError>().map_or("", |error| hint(error, tls));
    Error::Unavailable { backend, context: format!("{context}{hint}"), source: Some(source) }
}

fn hint(error: &RedisError, tls: bool) -> &'static str {
    match tls::hint(error) {
        Some(hint) => hint,
        // A plain server takes our greeting for half a command and waits for the rest.
        None if tls && error.is_timeout() => {
            ": no answer; if the server speaks no TLS on this port: another port, or redis://?"
        }
        // Closed, or answered with something that is not Redis.
        None if !tls
            && !error.is_connection_refusal()
            && (error.is_connection_dropped() || error.kind() == ErrorKind::Parse) =>
        {
            ": does the server want TLS? Then write rediss://"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_lead_to_every_server() {
        let url = "redis+sentinel://me:p%40w@a,[::1],b:7/main/3";
        let (door, hosts, name) = Door::parse(url, &TlsFiles::default());
        assert_eq!(hosts, ["a:26379", "[::1]:26379", "b:7"]);
        assert_eq!((name.as_str(), door.database.as_str()), ("main", "3"));
        let client = door.to("c:1").unwrap();
        let redis = client.get_connection_info().redis_settings();
        assert_eq!((redis.username(), redis.password()), (Some("me"), Some("p@w")));
        assert_eq!(redis.db(), 3);
        let sentinel = door.to_sentinel("c:1", false).unwrap();
        assert_eq!(sentinel.get_connection_info().redis_settings().password(), None);
        let (door, hosts, _) = Door::parse("rediss+cluster://a", &TlsFiles::default());
        assert_eq!((hosts, door.scheme), (vec!["a:6379".to_owned()], "rediss"));
    }
}
