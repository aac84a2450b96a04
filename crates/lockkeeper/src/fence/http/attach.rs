//! The side of the client.

use std::task::{Context, Poll};

use http::{HeaderValue, Request};
use tower_layer::Layer;
use tower_service::Service;

use super::header::{FENCE, Fence};
use crate::guard::Guard;

/// Sends the lock and its token with every request of a client. One that the request says itself is replaced.
///
/// It does not ask whether the lock is lost: that is for the service to say, which knows better. A client
/// that is made for a guard is thrown away with it.
#[derive(Clone, Debug)]
pub struct AttachLayer {
    value: HeaderValue,
}

impl AttachLayer {
    /// For this lock and token.
    pub fn new(fence: &Fence) -> Self {
        Self { value: fence.to_value() }
    }

    /// For those of a guard.
    pub fn of(guard: &Guard) -> Self {
        Self::new(&Fence::of(guard))
    }
}

impl<S> Layer<S> for AttachLayer {
    type Service = Attach<S>;

    fn layer(&self, inner: S) -> Attach<S> {
        Attach { inner, value: self.value.clone() }
    }
}

/// What [`AttachLayer`] makes of a client.
#[derive(Clone, Debug)]
pub struct Attach<S> {
    inner: S,
    value: HeaderValue,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Attach<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        request.headers_mut().insert(FENCE, self.value.clone());
        self.inner.call(request)
    }
}
