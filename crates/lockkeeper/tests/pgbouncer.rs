//! `postgres:` behind PgBouncer in transaction mode: no message arrives there, and no two statements
//! need have the same session.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::{Cause, Locks, Name};
use testkit::database::{self, DatabaseHarness, System};
use testkit::wait::{eventually, soon};

testkit::conformance!(across_processes, DatabaseHarness::pooled().await);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_before_and_behind_a_pooler_share_locks() {
    let server = System::Postgres.start(&[]).await;
    let url = server.url("here");
    Locks::init(&url).await.unwrap();
    let pooler = database::pgbouncer(&server).await;
    let pooled = url.replace(&server.server.address().to_string(), &pooler.address().to_string());
    let (direct, pooled) =
        (Locks::connect(&url).await.unwrap(), Locks::connect(&pooled).await.unwrap());
    let name: Name = "x".parse().unwrap();
    let mut last = 0;
    for round in 0..10 {
        let (holder, waiter) = match round % 2 {
            0 => (&direct, &pooled),
            _ => (&pooled, &direct),
        };
        let held = holder.mutex("x").lock().await.unwrap();
        assert!(held.token().get() > last);
        let mutex = waiter.mutex("x").fair();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued = async || holder.admin().show(&name).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        held.release().await.unwrap();
        let next = soon("its turn", waiting).await.unwrap().unwrap();
        last = next.token().get();
        next.release().await.unwrap();
    }
    // One that is never renewed hears nothing, and finds out all the same.
    let held = pooled.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    direct.admin().evict(&name, "stuck").await.unwrap();
    assert_eq!(soon("told", held.lost()).await, Cause::Evicted("stuck".into()));
}
