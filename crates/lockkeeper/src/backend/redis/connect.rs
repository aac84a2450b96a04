//! From a URL to the driver's client, with TLS by rustls where the URL says so.
//!
//! The server's certificate and host name are always checked; there is no way around it. Whatever is
//! wrong with the files is found here, before anything is sent: the driver reports some of it late,
//! and panics where rustls has no usable cryptography.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ErrorKind, RedisError, TlsCertificates};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::error::{Error, Result};
use crate::url::TlsFiles;

/// The client for a URL; nothing is sent yet. `place` is the URL without its password.
pub(super) fn client(url: &str, files: &TlsFiles, place: &str) -> Result<Client> {
    let bad = |_| Error::Config(format!("{place} is not a redis:// URL: redis://HOST:PORT/DB"));
    if !url.starts_with("rediss:") {
        return Client::open(url).map_err(bad);
    }
    let root_cert = files.ca.as_deref().map(|path| read("ca", path)).transpose()?;
    let client_tls = match &files.identity {
        Some((cert, key)) => Some(ClientTlsConfig {
            client_cert: read("cert", cert)?,
            client_key: read("key", key)?,
        }),
        None => None,
    };
    check(provider(), files, root_cert.as_deref(), client_tls.as_ref())?;
    Client::build_with_tls(url, TlsCertificates { client_tls, root_cert }).map_err(bad)
}

/// The cryptography of this process: what the program has chosen, else ring.
///
/// The driver asks rustls for that choice, and rustls panics when there is none and two are compiled in.
fn provider() -> Arc<CryptoProvider> {
    let ring = rustls::crypto::ring::default_provider();
    // Refused when the program has chosen already.
    let _ = ring.clone().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        Error::Config(format!("{option}={} cannot be read: {error}", path.display()))
    })
}

/// Whether rustls can use the files.
fn check(
    provider: Arc<CryptoProvider>,
    files: &TlsFiles,
    ca: Option<&[u8]>,
    identity: Option<&ClientTlsConfig>,
) -> Result<()> {
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            let text = "the rustls CryptoProvider that this program has installed is of no use";
            Error::Config(format!("{text}: {error}"))
        })?;
    let mut roots = RootCertStore::empty();
    if let (Some(path), Some(pem)) = (&files.ca, ca) {
        for certificate in certificates("ca", path, pem)? {
            let bad = |error| unusable("ca", path, "a CA's certificate that can be used", error);
            roots.add(certificate).map_err(bad)?;
        }
    }
    let config = config.with_root_certificates(roots);
    if let (Some((cert, key)), Some(pem)) = (&files.identity, identity) {
        let chain = certificates("cert", cert, &pem.client_cert)?;
        let private = PrivateKeyDer::from_pem_slice(&pem.client_key)
            .map_err(|error| unusable("key", key, "a private key without a pass phrase", error))?;
        config.with_client_auth_cert(chain, private).map_err(|error| {
            let (cert, key) = (cert.display(), key.display());
            Error::Config(format!("cert={cert} and key={key} cannot be used together: {error}"))
        })?;
    }
    Ok(())
}

fn certificates(option: &str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| unusable(option, path, "certificates", error))?;
    if found.is_empty() {
        return Err(unusable(option, path, "certificates", "there is none"));
    }
    Ok(found)
}

fn unusable(option: &str, path: &Path, wanted: &str, why: impl std::fmt::Display) -> Error {
    let path = path.display();
    Error::Config(format!("{option}={path} must be a PEM file with {wanted}: {why}"))
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
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    match rustls_error(error) {
        Some(InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => ": the server's certificate is for another host name; use that name in the URL",
        Some(InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => ": the server's certificate is not signed by a CA that we trust; name its CA by ca=",
        Some(AlertReceived(_)) => {
            ": the server refuses us; does it want a certificate, or another one? See cert= and key="
        }
        Some(InvalidMessage(_)) => {
            ": the server speaks no TLS on this port; another port, or redis://?"
        }
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

/// The error of rustls, which the driver and the standard library have wrapped.
fn rustls_error(error: &RedisError) -> Option<&rustls::Error> {
    let inner = std::error::Error::source(error)?;
    let inner = inner.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    inner.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cryptography_that_cannot_be_used_is_an_error_and_not_a_panic() {
        let useless = CryptoProvider {
            cipher_suites: Vec::new(),
            ..rustls::crypto::ring::default_provider()
        };
        let error =
            check(Arc::new(useless), &TlsFiles::default(), None, None).expect_err("useless");
        assert!(matches!(&error, Error::Config(text) if text.contains("of no use")), "{error}");
    }
}
