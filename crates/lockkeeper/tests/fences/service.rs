//! Services.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::{Router, routing};
use lockkeeper::fence::http::http::{Request, Response};
use lockkeeper::fence::http::{AttachLayer, Enforce, EnforceLayer, FENCE, Fence, Missing, newest};
use lockkeeper::fence::redis::RedisTokens;
use lockkeeper::fence::{Error, MemoryTokens, Result, TokenStore};
use lockkeeper::{Name, Token};
use parking_lot::Mutex;
use testkit::server;
use testkit::wait::{LONG, eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::late::overtaken;
use crate::redis::connect;
use crate::token;

type Value = Arc<Mutex<String>>;

/// A service with one value.
fn router(value: &Value, layer: EnforceLayer) -> Router {
    let put = async |State(value): State<Value>, body: String| *value.lock() = body;
    let get = async |State(value): State<Value>| value.lock().clone();
    Router::new()
        .route("/value", routing::put(put).get(get))
        .with_state(Value::clone(value))
        .layer(layer)
}

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_to_a_service_is_refused() {
    let server = server::redis(&[]).await;
    let value = Value::default();
    let layer = EnforceLayer::new(MemoryTokens::default());
    let uri = format!("http://{}/value", serve(router(&value, layer)).await);
    let (mut late, guard, mut writer) = overtaken(&server, &uri, &["http", "http"]).await;
    assert_eq!(*value.lock(), "late");
    writer.write("http", &guard, "new").await.unwrap();
    late.go_on();
    assert_eq!(late.ask("http").await, format!("stale {}", guard.token()));
    assert_eq!(*value.lock(), "new", "the new holder's value is intact");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_was_started_again_has_not_forgotten() {
    let server = server::redis(&[]).await;
    let value = Value::default();
    for (under, status) in [(7, 200), (7, 200), (6, 412), (8, 200), (7, 412)] {
        // As after a restart: of the service before only the store is left.
        let layer = EnforceLayer::new(RedisTokens::new(connect(&server).await));
        let fence = Fence::new("x".parse().unwrap(), token(under));
        let client = AttachLayer::new(&fence).layer(router(&value, layer));
        let put = Request::put("/value").body(Body::from(under.to_string())).unwrap();
        assert_eq!(client.oneshot(put).await.unwrap().status(), status, "under {under}");
    }
    assert_eq!(*value.lock(), "8");
}

async fn ask(router: &Router, method: &str, headers: &[&str]) -> (u16, Response<()>, String) {
    let mut request = Request::builder().method(method).uri("/value");
    for value in headers {
        request = request.header(FENCE, *value);
    }
    let response = router.clone().oneshot(request.body(Body::from("new")).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 10_000).await.unwrap();
    let status = parts.status.as_u16();
    (status, Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn refusals_are_problems_with_a_status_each() {
    let value = Value::default();
    let router = router(&value, EnforceLayer::new(MemoryTokens::default()));
    let cases = [
        (vec!["7 x"], 200, ""),
        (vec!["7 x"], 200, ""),
        (vec!["3 y"], 200, ""),
        (vec!["6 x"], 412, "stale"),
        (vec![], 428, "missing"),
        (vec!["x"], 400, "malformed"),
        (vec!["9 x", "9 x"], 400, "malformed"),
        (vec!["7 x"], 200, ""),
    ];
    for (headers, status, kind) in cases {
        *value.lock() = "old".into();
        let (is, response, body) = ask(&router, "PUT", &headers).await;
        assert_eq!(is, status, "{headers:?}: {body}");
        if kind.is_empty() {
            assert_eq!(*value.lock(), "new");
            continue;
        }
        assert_eq!(*value.lock(), "old", "{headers:?}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(body.contains(&format!("urn:lockkeeper:fence:{kind}")), "{body}");
        assert_eq!(newest(response.headers()), (kind == "stale").then(|| token(7)));
    }
}

#[tokio::test]
async fn what_happens_without_a_header_can_be_chosen() {
    let value = Value::default();
    let expected =
        [(Missing::Reject, 428, 428), (Missing::RejectWrites, 200, 428), (Missing::Pass, 200, 200)];
    for (missing, get, put) in expected {
        let layer = EnforceLayer::new(MemoryTokens::default()).missing(missing);
        let router = router(&value, layer);
        assert_eq!(ask(&router, "GET", &[]).await.0, get, "{missing:?}");
        assert_eq!(ask(&router, "PUT", &[]).await.0, put, "{missing:?}");
        for method in ["GET", "PUT"] {
            assert_eq!(ask(&router, method, &["7"]).await.0, 400, "{missing:?}");
            assert_eq!(ask(&router, method, &["7 x"]).await.0, 200, "{missing:?}");
        }
        assert_eq!(ask(&router, "GET", &["6 x"]).await.0, 412, "{missing:?}");
    }
}

#[tokio::test]
async fn a_token_of_another_lock_is_not_one_of_this_resource() {
    let by_path = |uri: &axum::http::Uri| uri.path().trim_matches('/').parse().ok();
    let layer = EnforceLayer::new(MemoryTokens::default()).name_by(by_path);
    let router = router(&Value::default(), layer);
    assert_eq!(ask(&router, "PUT", &["7 value"]).await.0, 200);
    let (status, _, body) = ask(&router, "PUT", &["9 other"]).await;
    assert!(status == 400 && body.contains("another lock"), "{status}: {body}");
    assert_eq!(ask(&router, "PUT", &["6 value"]).await.0, 412);
    // A path that cannot be read as a name is no way around.
    let layer = EnforceLayer::new(MemoryTokens::default()).name_by(|_| None);
    let (status, _, body) = ask(&self::router(&Value::default(), layer), "PUT", &["7 value"]).await;
    assert!(status == 400 && body.contains("no lock"), "{status}: {body}");
}

#[tokio::test]
async fn handlers_find_the_token_that_passed() {
    let told = async |Extension(fence): Extension<Fence>| format!("{fence:?}");
    let router = Router::new()
        .route("/value", routing::put(told))
        .layer(EnforceLayer::new(MemoryTokens::default()));
    let (status, _, body) = ask(&router, "PUT", &["7 a%20b"]).await;
    assert_eq!(status, 200);
    assert_eq!(body, format!("{:?}", Fence::new("a b".parse().unwrap(), token(7))));
}

/// The head of a request is there, and half of its body, when its client is stopped: what it has begun
/// must not end after the next holder's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_stopped_in_the_middle_is_dropped_for_a_newer_one() {
    let value = Value::default();
    let layer = EnforceLayer::new(MemoryTokens::default()).patience(Duration::from_millis(200));
    let router = router(&value, layer);
    let mut half = tokio::net::TcpStream::connect(serve(router.clone()).await).await.unwrap();
    let head = "PUT /value HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nLockkeeper-Fence: ";
    half.write_all(format!("{head}6 x\r\n\r\nlate").as_bytes()).await.unwrap();
    let inside = async || ask(&router, "PUT", &["5 x"]).await.0 == 412;
    eventually("the half is inside", inside).await;
    assert_eq!(ask(&router, "PUT", &["7 x"]).await.0, 200);
    // Before the rest is sent: it would be answered by a reset, and that overtakes the answer.
    let mut answer = String::new();
    soon("answered", half.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    let _ = half.write_all(b"late").await;
    assert_eq!(*value.lock(), "new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_request_waits_for_older_ones_that_are_inside() {
    let (entered, mut inside) = mpsc::unbounded_channel();
    let (go_on, gate) = watch::channel(false);
    let slow = move |Extension(fence): Extension<Fence>| {
        let (entered, mut gate) = (entered.clone(), gate.clone());
        async move {
            entered.send(fence.token().get()).unwrap();
            gate.wait_for(|open| *open).await.unwrap();
            entered.send(1000 + fence.token().get()).unwrap();
        }
    };
    let layer = EnforceLayer::new(MemoryTokens::default()).patience(LONG);
    let router = Router::new().route("/value", routing::put(slow)).layer(layer);
    let put = |header: &'static str| {
        let router = router.clone();
        tokio::spawn(async move { ask(&router, "PUT", &[header]).await.0 })
    };
    let mut next = async || soon("somebody", inside.recv()).await.unwrap();
    let old = [put("6 x"), put("6 x")];
    assert_eq!((next().await, next().await), (6, 6), "together");
    let elsewhere = put("1 y");
    assert_eq!(next().await, 1, "another lock does not wait");
    let new = put("7 x");
    let seen = async || newest(ask(&router, "PUT", &["5 x"]).await.1.headers());
    eventually("the newer one has arrived", async || seen().await == Some(token(7))).await;
    go_on.send(true).unwrap();
    let mut order = Vec::new();
    for _ in 0..5 {
        order.push(next().await);
    }
    let at = |what| order.iter().rposition(|seen| *seen == what).unwrap();
    assert!(at(1006) < at(7) && at(7) < at(1007), "{order:?}");
    for answered in old.into_iter().chain([elsewhere, new]) {
        assert_eq!(answered.await.unwrap(), 200);
    }
}

/// Who has waited for its turn is compared again: in the meantime somebody newer may have been at another
/// process of the service, which has turns of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_overtaken_elsewhere_while_it_waited_does_not_pass() {
    let store = Arc::new(MemoryTokens::default());
    let (entered, mut inside) = mpsc::unbounded_channel();
    let (go_on, gate) = watch::channel(false);
    let slow = move |Extension(fence): Extension<Fence>| {
        let (entered, mut gate) = (entered.clone(), gate.clone());
        async move {
            entered.send(fence.token().get()).unwrap();
            gate.wait_for(|open| *open).await.unwrap();
        }
    };
    let layer = EnforceLayer::new(Arc::clone(&store)).patience(LONG);
    let here = Router::new().route("/value", routing::put(slow)).layer(layer);
    let there = router(&Value::default(), EnforceLayer::new(store));
    let put = |header: &'static str| {
        let here = here.clone();
        tokio::spawn(async move { ask(&here, "PUT", &[header]).await })
    };
    let first = put("5 x");
    assert_eq!(soon("inside", inside.recv()).await, Some(5));
    let second = put("6 x");
    let seen = async || newest(ask(&here, "PUT", &["4 x"]).await.1.headers());
    eventually("the second has arrived", async || seen().await == Some(token(6))).await;
    assert_eq!(ask(&there, "PUT", &["7 x"]).await.0, 200);
    go_on.send(true).unwrap();
    assert_eq!(first.await.unwrap().0, 200, "was inside before");
    let (status, response, _) = second.await.unwrap();
    assert_eq!((status, newest(response.headers())), (412, Some(token(7))));
    assert!(inside.try_recv().is_err(), "it has not reached the service");
}

/// A request that is inside, and that nobody goes on with, cannot be shown out.
#[tokio::test]
async fn who_cannot_go_in_is_told_so_in_time() {
    let value = Value::default();
    let layer = EnforceLayer::new(MemoryTokens::default()).patience(Duration::from_millis(20));
    let never = Router::new()
        .route("/value", routing::put(async || std::future::pending::<()>().await))
        .layer(layer.clone());
    let mut stuck = Box::pin(ask(&never, "PUT", &["6 x"]));
    assert!(futures_util::poll!(&mut stuck).is_pending());
    let router = router(&value, layer);
    let (status, _, body) = soon("told", ask(&router, "PUT", &["7 x"])).await;
    assert!(status == 503 && body.contains("unavailable"), "{status}: {body}");
    assert_eq!(*value.lock(), "");
    drop(stuck);
    assert_eq!(ask(&router, "PUT", &["7 x"]).await.0, 200);
}

/// A store that says nothing at all.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl TokenStore for Silent {
    async fn raise(&self, _: &Name, _: Token) -> Result<()> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_store_that_is_silent_is_not_waited_for_for_ever() {
    let value = Value::default();
    let layer = EnforceLayer::new(Silent).patience(Duration::from_millis(20));
    let router = router(&value, layer);
    let (status, _, body) = soon("told", ask(&router, "PUT", &["7 x"])).await;
    assert!(status == 503 && body.contains("unavailable"), "{status}: {body}");
    assert_eq!(*value.lock(), "");
}

/// A store that does not say.
#[derive(Debug)]
struct Broken;

#[async_trait]
impl TokenStore for Broken {
    async fn raise(&self, _: &Name, _: Token) -> Result<()> {
        Err(Error::Store { context: "out of order".into(), source: None })
    }
}

#[tokio::test]
async fn without_its_store_nothing_passes() {
    let value = Value::default();
    let router = router(&value, EnforceLayer::new(Broken).missing(Missing::Pass));
    let (status, _, body) = ask(&router, "PUT", &["7 x"]).await;
    assert!(status == 503 && body.contains("unavailable"), "{status}: {body}");
    assert_eq!(*value.lock(), "");
}

/// A service that only counts how often it is called, and the layer around it.
#[allow(clippy::type_complexity, reason = "it is what it is made of")]
pub(crate) fn counted(
    missing: Missing,
) -> (
    Arc<AtomicUsize>,
    Enforce<
        impl Service<
            Request<()>,
            Response = Response<String>,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static,
    >,
) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let inner = service_fn(move |_: Request<()>| {
        counting.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::new(String::new())))
    });
    (count, EnforceLayer::new(MemoryTokens::default()).missing(missing).layer(inner))
}
