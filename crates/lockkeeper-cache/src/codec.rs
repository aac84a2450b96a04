//! How values become bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BoxError;

/// Turns values into bytes and back.
///
/// What cannot be decoded is loaded again, so a codec may refuse what it does not know; it must not make a wrong value
/// of it.
pub trait Codec<V>: Send + Sync {
    /// The bytes of a value.
    ///
    /// # Errors
    ///
    /// The value is then returned to who loaded it, and not cached.
    fn encode(&self, value: &V) -> Result<Vec<u8>, BoxError>;

    /// The value of some bytes.
    ///
    /// # Errors
    ///
    /// The value is then loaded.
    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError>;
}

/// JSON, by serde. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<V: Serialize + DeserializeOwned> Codec<V> for Json {
    fn encode(&self, value: &V) -> Result<Vec<u8>, BoxError> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}
