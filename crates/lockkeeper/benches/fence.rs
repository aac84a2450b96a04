//! What the fence of a service adds to a request, with tokens in memory: the same service without it and with it, in
//! rounds that take turns. `cargo bench --features http --bench fence`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that prints figures")]

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use lockkeeper::Token;
use lockkeeper::clock::Instant;
use lockkeeper::fence::MemoryTokens;
use lockkeeper::fence::http::http::{HeaderValue, Request, Response};
use lockkeeper::fence::http::{AttachLayer, EnforceLayer, FENCE, Fence};
use tokio::runtime::Builder;
use tower::{Layer, Service, ServiceExt, service_fn};

const ROUNDS: usize = 9;
/// Of a round, one after the other.
const CALLS: usize = 20_000;

fn main() {
    println!("| what | p50 | p99 | without, p50 | adds, p50 | target |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (what, names) in [("one lock", 1), ("1,000 locks", 1000), ("100,000 locks", 100_000)] {
        let what = format!("fence of a service, tokens in memory, {what}");
        let layer = EnforceLayer::new(MemoryTokens::default());
        runtime.block_on(versus(&what, "< 20 µs", names, layer.layer(service())));
    }
    let client = AttachLayer::new(&fence(0)).layer(service());
    runtime.block_on(versus("the header of a client", "", 1, client));
}

/// A service that does nothing.
fn service()
-> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    service_fn(|_: Request<()>| ready(Ok(Response::new(String::new()))))
}

fn fence(name: usize) -> Fence {
    Fence::new(format!("orders/{name}").parse().unwrap(), Token::new(7).unwrap())
}

/// Measures both and prints a row.
async fn versus<S>(what: &str, target: &str, names: usize, mut fenced: S)
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    let headers: Vec<HeaderValue> = (0..names).map(|name| fence(name).to_value()).collect();
    let (mut bare, mut with, mut without) = (service(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        round(&mut fenced, &headers, &mut with).await;
        round(&mut bare, &headers, &mut without).await;
    }
    let at = |sorted: &[Duration], percent: usize| sorted[sorted.len() * percent / 100];
    with.sort_unstable();
    without.sort_unstable();
    let (half, most, bare) = (at(&with, 50), at(&with, 99), at(&without, 50));
    let adds = half.saturating_sub(bare);
    println!("| {what} | {half:?} | {most:?} | {bare:?} | {adds:?} | {target} |");
}

async fn round<S>(service: &mut S, headers: &[HeaderValue], taken: &mut Vec<Duration>)
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    for at in 0..CALLS {
        let mut request = Request::new(());
        // Some are far from each other, so that not all of it is in the cache.
        request.headers_mut().insert(FENCE, headers[at * 7919 % headers.len()].clone());
        let before = Instant::now();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        taken.push(Instant::now().since(before));
        assert_eq!(response.status(), 200);
    }
}
