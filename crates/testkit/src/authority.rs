//! A certificate authority of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use tempfile::TempDir;

/// Signs certificates; the files go away with it.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    signed: AtomicU32,
}

impl Authority {
    /// A new one of this name. Two of the same name have different keys.
    ///
    /// # Panics
    ///
    /// When a file cannot be written.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = TempDir::with_prefix("testkit-").unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.as_ref().pem()).unwrap();
        Self { dir, issuer, signed: AtomicU32::new(0) }
    }

    /// Its own certificate: what others trust it by.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Where all its files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A certificate for a host name or an address, and its key.
    ///
    /// # Panics
    ///
    /// When it is neither, or a file cannot be written.
    pub fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let number = self.signed.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str, pem: String| {
            let path = self.dir.path().join(format!("{kind}{number}.pem"));
            fs::write(&path, pem).unwrap();
            path
        };
        (file("cert", cert.pem()), file("key", key.serialize_pem()))
    }
}

/// The option of a URL that names it.
pub fn trusting(authority: &Authority) -> String {
    format!("?ca={}", authority.ca().display())
}
