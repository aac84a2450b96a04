//! The cryptography of this process.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// What the program has chosen, else ring.
///
/// Drivers ask rustls for that choice, and rustls panics when there is none and two are compiled in.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let ring = rustls::crypto::ring::default_provider();
    // Refused when the program has chosen already.
    let _ = ring.clone().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring))
}
