//! A service that refuses the requests of a holder that comes too late: an axum server and its clients.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::{Router, extract::Extension, routing::put};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lockkeeper::fence::MemoryTokens;
use lockkeeper::fence::http::{AttachLayer, EnforceLayer, Fence, http::Request};
use lockkeeper::{Guard, Locks};
use tower::{Layer, ServiceExt};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What the service does. If it wrote to a database, it would hand the token on to `fence::sql`.
async fn report(Extension(fence): Extension<Fence>, body: String) -> String {
    format!("wrote {body:?} under token {} of {}", fence.token(), fence.name())
}

/// What its clients do.
async fn send(guard: &Guard, uri: &str, body: &'static str) -> Result<(), Error> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let client = AttachLayer::of(guard).layer(client);
    let answer = client.oneshot(Request::put(uri).body(Body::from(body))?).await?;
    let (status, body) = (answer.status(), Body::new(answer.into_body()));
    println!("{status}: {}", String::from_utf8_lossy(&to_bytes(body, 10_000).await?));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    // Tokens in memory are forgotten with the process: a real service keeps them in Redis or SQL.
    let fence = EnforceLayer::new(MemoryTokens::default())
        .name_by(|uri| uri.path().trim_matches('/').parse().ok());
    let service = Router::new().route("/report", put(report)).layer(fence);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/report", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, service).await });

    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let sleepy = locks.lease(Duration::from_millis(200)).mutex("report").lock().await?;
    send(&sleepy, &uri, "in time").await?;
    // It falls asleep, and its lease ends.
    let quick = locks.mutex("report").lock().await?;
    send(&quick, &uri, "the next").await?;
    send(&sleepy, &uri, "too late").await?;
    Ok(quick.release().await?)
}
