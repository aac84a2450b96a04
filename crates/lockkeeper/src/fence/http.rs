//! Services that refuse late requests: layers of [tower](https://docs.rs/tower), for axum and whatever else is made of
//! `tower::Service`s of HTTP.
//!
//! Who holds a lock sends its name and its token with each request, in the header `Lockkeeper-Fence`
//! ([`AttachLayer`]); the service remembers the largest token of each name and refuses older ones
//! ([`EnforceLayer`]).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, body::Body, routing::put};
//! use lockkeeper::fence::{MemoryTokens, http::{AttachLayer, EnforceLayer, http::Request}};
//! use tower::{Layer, ServiceExt};
//!
//! // The service. Tokens in memory are forgotten with it: better are RedisTokens or SqlTokens.
//! let service: Router = Router::new()
//!     .route("/report", put(|| async { "written" }))
//!     .layer(EnforceLayer::new(MemoryTokens::default()));
//!
//! // Its clients.
//! let locks = lockkeeper::Locks::memory();
//! let sleepy = locks.mutex("report").lock().await?;
//! let late = AttachLayer::of(&sleepy).layer(service.clone());
//! sleepy.release().await?;
//! let guard = locks.mutex("report").lock().await?;
//! let timely = AttachLayer::of(&guard).layer(service);
//!
//! let request = || Request::put("/report").body(Body::empty());
//! assert_eq!(timely.oneshot(request()?).await?.status(), 200);
//! assert_eq!(late.oneshot(request()?).await?.status(), 412);
//! # Ok(())
//! # }
//! ```
//!
//! # The header
//!
//! ```text
//! Lockkeeper-Fence: 7 orders/42
//!
//! field-value = token SP name
//! token       = %x31-39 *19DIGIT                 ; 1 to 2^64-1, as decimals
//! name        = 1*( plain / "%" 2UPHEX )         ; a lock's name in UTF-8, see lockkeeper::Name
//! plain       = ALPHA / DIGIT / "-" / "." / "_" / "~" / "/" / ":"
//! ```
//!
//! Each name has one spelling: what is plain is not escaped, everything else is. There is one such header in
//! a request. Whatever else it says is malformed.
//!
//! # What the service answers
//!
//! | request | answer |
//! | --- | --- |
//! | a token not older than the largest of its name | what the service inside answers; it finds the [`Fence`] among the extensions of the request |
//! | an older one | 412, and the newest in `Lockkeeper-Fence-Newest` |
//! | a malformed header, or two | 400, always |
//! | the name of another lock than [`EnforceLayer::name_by`] wants, or it knows none | 400 |
//! | no header | 428, or as [`Missing`] says |
//! | the store of tokens fails or is silent, or older requests do not end | 503 |
//!
//! The refusals are `application/problem+json` (RFC 9457) with the types `urn:lockkeeper:fence:…`: `stale`,
//! `malformed`, `missing` and `unavailable`.

mod attach;
mod enforce;
mod header;
mod problem;
mod turns;

pub use http;

pub use self::attach::{Attach, AttachLayer};
pub use self::enforce::{Enforce, EnforceLayer, Missing};
pub use self::header::{FENCE, Fence, Malformed, NEWEST, newest};
