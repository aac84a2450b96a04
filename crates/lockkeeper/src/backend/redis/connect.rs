//! From a URL to the driver's client, with TLS by rustls where the URL says so.

use redis::{Client, ClientTlsConfig, ConnectionAddr, ErrorKind, RedisError, TlsCertificates};

use crate::error::{Error, Result};
use crate::tls::{self, Pem};
use crate::url::TlsFiles;

/// The client for a URL; nothing is sent yet. `place` is the URL without its password.
pub(super) fn client(url: &str, files: &TlsFiles, place: &str) -> Result<Client> {
    let bad = |_| Error::Config(format!("{place} is not a redis:// URL: redis://HOST:PORT/DB"));
    if !url.starts_with("rediss:") {
        return Client::open(url).map_err(bad);
    }
    let Pem { ca: root_cert, identity } = Pem::read(files)?;
    let client_tls =
        identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Client::build_with_tls(url, TlsCertificates { client_tls, root_cert }).map_err(bad)
}

/// Adds to the error of a first connection what TLS, or the lack of it, may have to do with it.
pub(super) fn explain(error: Error, client: &Client) -> Error {
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
