//! TLS for the connection that is not sqlx's, by the options that sqlx takes.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use sqlx::postgres::PgSslMode;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::BoxError;
use crate::provider::provider;

/// What the URL says about TLS. Files, or what would be in them.
#[derive(Clone, Default)]
pub(super) struct Tls {
    pub(super) mode: PgSslMode,
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

impl Tls {
    /// Whether a server that has no TLS is taken for an error.
    pub(super) fn required(&self) -> bool {
        matches!(self.mode, PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull)
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        let name = ServerName::try_from(host.to_owned())?;
        let config = self.config()?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    fn config(&self) -> Result<ClientConfig, BoxError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let by_name = matches!(self.mode, PgSslMode::VerifyFull);
        let inner = match self.mode {
            PgSslMode::VerifyCa | PgSslMode::VerifyFull => {
                let roots = Arc::new(self.roots()?);
                let builder =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                Some(builder.build()?)
            }
            _ => None,
        };
        let verifier = Arc::new(Verifier { provider, inner, by_name });
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        Ok(match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&content("sslkey", key)?)?;
                builder.with_client_auth_cert(certificates("sslcert", cert)?, key)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("sslcert and sslkey go together".into()),
        })
    }

    /// Those of the file that is named, and no others; or those that this machine trusts.
    fn roots(&self) -> Result<RootCertStore, BoxError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates("sslrootcert", ca)? {
                    roots.add(certificate)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        Ok(roots)
    }
}

fn content(option: &str, file: &str) -> Result<Vec<u8>, BoxError> {
    if file.trim().starts_with("-----BEGIN") {
        return Ok(file.as_bytes().to_vec());
    }
    std::fs::read(file).map_err(|error| format!("{option}={file} cannot be read: {error}").into())
}

fn certificates(option: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let content = content(option, file)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&content).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(format!("{option}: there is no certificate in it").into());
    }
    Ok(found)
}

/// As `sslmode` says: `require` and `prefer` look at no certificate, `verify-ca` at no name.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    inner: Option<Arc<WebPkiServerVerifier>>,
    by_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.by_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
