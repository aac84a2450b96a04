//! `/metrics` and `/health`: two pages, for few at a time and none for long.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::health::Health;
use super::metrics;
use super::view::View;
use crate::exit::Failure;

/// So many connections at a time; others are closed at once.
const CONNECTIONS: usize = 32;

/// How long a connection may last, from its first byte to its last.
const CONNECTION: Duration = Duration::from_secs(10);

/// How long its request may take to come.
const REQUEST: Duration = Duration::from_secs(5);

/// The longest head of a request: the smallest that the parser can be given.
const HEAD: usize = 8 << 10;

/// What is shown.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) name: String,
    pub(crate) max_lag: Option<Duration>,
    pub(crate) view: watch::Receiver<View>,
}

/// Listens; before anything else, because who cannot do that is to be told at once.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener, Failure> {
    let cannot = |error| Failure::system(&format!("cannot listen at {at}"), &error);
    TcpListener::bind(at).await.map_err(cannot)
}

/// Answers for ever.
pub(crate) async fn serve(listener: TcpListener, pages: Pages) {
    let (pages, free) = (Arc::new(pages), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, or the like: it may get better.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            // Whatever is wrong with it, it is over.
            let _ = timeout(CONNECTION, connection(stream, &pages)).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, pages: &Pages) -> hyper::Result<()> {
    let answer = async |request: Request<Incoming>| {
        Ok::<_, Infallible>(pages.answer(request.method(), request.uri().path()))
    };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await
}

impl Pages {
    fn answer(&self, method: &Method, path: &str) -> Response<String> {
        if !matches!(path, "/metrics" | "/health") {
            let known = "there are /metrics and /health\n";
            return page(StatusCode::NOT_FOUND, "text/plain", known.into());
        }
        if method != Method::GET && method != Method::HEAD {
            let mut refusal =
                page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n".into());
            refusal
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        let view = self.view.borrow().clone();
        if path == "/metrics" {
            let text = metrics::write(&self.name, &view);
            return page(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text);
        }
        let health = Health::of(&view, self.max_lag);
        let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let text = serde_json::to_string(&health).unwrap_or_default();
        page(status, "application/json", text + "\n")
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<String> {
    let mut page = Response::new(text);
    *page.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static;
    page.headers_mut().insert(CONTENT_TYPE, value(kind));
    page.headers_mut().insert(CACHE_CONTROL, value("no-store"));
    page
}

#[cfg(test)]
mod tests {
    use super::super::view::State;
    use super::*;

    #[test]
    fn only_two_pages_are_there_and_only_to_be_read() {
        let (view, seen) = watch::channel(View::default());
        let pages = Pages { name: "shop".into(), max_lag: None, view: seen };
        let status = |method: Method, path| pages.answer(&method, path).status().as_u16();
        for path in ["/", "/metrics/", "/health/x", "/metrics.txt", "*", ""] {
            assert_eq!(status(Method::GET, path), 404, "{path}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH] {
            assert_eq!(status(method.clone(), "/metrics"), 405, "{method}");
            assert_eq!(status(method, "/health"), 405);
        }
        assert_eq!(pages.answer(&Method::POST, "/health").headers()[ALLOW], "GET, HEAD");
        assert_eq!(status(Method::GET, "/metrics"), 200);
        assert_eq!(status(Method::GET, "/health"), 503);
        view.send_modify(|view| view.state = State::Following);
        assert_eq!(status(Method::HEAD, "/health"), 200);
        let health = pages.answer(&Method::GET, "/health");
        assert!(health.body().starts_with(r#"{"healthy":true,"state":"following""#), "{health:?}");
    }
}
