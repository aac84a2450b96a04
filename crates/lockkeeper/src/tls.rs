//! The files that TLS needs, read and tried out on rustls.
//!
//! The server's certificate and host name are always checked; there is no way around it. Whatever is
//! wrong with the files is found here, before anything is sent: drivers report some of it late, and
//! panic where rustls has no usable cryptography.

use std::error::Error as StdError;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::error::{Error, Result};
use crate::url::TlsFiles;

/// What is in the files, and found good.
pub(crate) struct Pem {
    pub(crate) ca: Option<Vec<u8>>,
    /// The certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pem {
    /// Also sees to it that rustls has cryptography to use.
    pub(crate) fn read(files: &TlsFiles) -> Result<Self> {
        let ca = files.ca.as_deref().map(|path| read("ca", path)).transpose()?;
        let identity = match &files.identity {
            Some((cert, key)) => Some((read("cert", cert)?, read("key", key)?)),
            None => None,
        };
        let pem = Self { ca, identity };
        check(provider(), files, &pem)?;
        Ok(pem)
    }
}

/// The cryptography of this process: what the program has chosen, else ring.
///
/// Drivers ask rustls for that choice, and rustls panics when there is none and two are compiled in.
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
fn check(provider: Arc<CryptoProvider>, files: &TlsFiles, pem: &Pem) -> Result<()> {
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            let text = "the rustls CryptoProvider that this program has installed is of no use";
            Error::Config(format!("{text}: {error}"))
        })?;
    let mut roots = RootCertStore::empty();
    if let (Some(path), Some(pem)) = (&files.ca, &pem.ca) {
        for certificate in certificates("ca", path, pem)? {
            let bad = |error| unusable("ca", path, "a CA's certificate that can be used", error);
            roots.add(certificate).map_err(bad)?;
        }
    }
    let config = config.with_root_certificates(roots);
    if let (Some((cert, key)), Some((chain, private))) = (&files.identity, &pem.identity) {
        let chain = certificates("cert", cert, chain)?;
        let private = PrivateKeyDer::from_pem_slice(private)
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

/// What to do about an error of rustls that is among the causes of this one.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) fn hint(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    Some(match rustls_error(error)? {
        InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => ": the server's certificate is for another host name; use that name in the URL",
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            ": the server's certificate is not signed by a CA that we trust; name its CA by ca="
        }
        AlertReceived(_) => {
            ": the server refuses us; does it want a certificate, or another one? See cert= and key="
        }
        InvalidMessage(_) => ": the server speaks no TLS on this port; another port, or no TLS?",
        _ => return None,
    })
}

/// The error of rustls, which drivers and the standard library have wrapped.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis"))]
fn rustls_error<'a>(mut error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    loop {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let shared = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>();
        let shared = shared.map(|inner| -> &'a (dyn StdError + 'static) { &**inner });
        let inner = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let inner = inner.map(|inner| -> &'a (dyn StdError + 'static) { inner });
        error = shared.or(inner).or_else(|| error.source())?;
    }
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
        let (files, pem) = (TlsFiles::default(), Pem { ca: None, identity: None });
        let error = check(Arc::new(useless), &files, &pem).expect_err("useless");
        assert!(matches!(&error, Error::Config(text) if text.contains("of no use")), "{error}");
    }
}
