//! A service that is told to go: it takes no new requests, finishes those that it has, under their locks,
//! and then gives back whatever it still holds. SIGINT, SIGTERM or SIGHUP.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use axum::extract::State;
use axum::{Router, routing::get};
use lockkeeper::Locks;
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Works under a lock. Finished, not stopped, when the service is told to go.
async fn work(State(locks): State<Locks>) -> Result<String, String> {
    let working = async {
        let guard = locks.mutex("example/report").lock().await?;
        println!("working under token {}", guard.token());
        guard.protect(tokio::time::sleep(Duration::from_millis(300))).await?;
        guard.release().await
    };
    working.await.map(|()| "done".to_owned()).map_err(|error: lockkeeper::Error| error.to_string())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    // A lock that the service has for as long as it runs, and nobody gives back but the shutdown below.
    let _leader = locks.mutex("example/leader").lock().await?;

    let [mut int, mut term, mut hup] = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let told_to_go = async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
        println!("finishing what has begun");
    };
    let service = Router::new().route("/", get(work)).with_state(locks.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, service).with_graceful_shutdown(told_to_go).await?;

    // Only now: while requests were worked on, their locks were theirs.
    let shutdown = locks.shutdown(Duration::ZERO).await;
    println!("given back at the end: {}", shutdown.released);
    Ok(())
}
