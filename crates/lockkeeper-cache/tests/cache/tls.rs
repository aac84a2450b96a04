//! By TLS, the first level included: its messages come by the same kind of connection.

use testkit::authority::{Authority, trusting};
use testkit::server;
use testkit::wait::{eventually, soon};

use crate::first::{cache, first, read};
use crate::harness::Database;
use lockkeeper_cache::{Redis, Source};

#[tokio::test]
async fn a_cache_and_its_first_level_work_by_tls() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let mut server = server::redis_with_tls(&authority, "127.0.0.1", false).await;
    let url = |scheme: &str, options: &str| format!("{scheme}://{}{options}", server.address());
    let [ours, others] = [&authority, &other].map(|trusted| url("rediss", &trusting(trusted)));
    for wrong in [url("redis", ""), url("rediss", ""), others] {
        let refused = soon("an answer", Redis::connect(&wrong)).await;
        assert!(refused.is_err(), "{wrong}");
    }
    let database = Database::new();
    let [reader, writer] = [cache(&ours, &database).await, cache(&ours, &database).await];
    assert_eq!(first(&reader).await, 1);
    database.commit();
    writer.invalidate(&[1]).await.unwrap();
    eventually("it is heard", async || read(&reader).await.0 == 2).await;
    assert_eq!(first(&reader).await, 2);
    let before = reader.stats();
    assert_eq!((before.store_errors, before.debts), (0, 0), "{before:?}");
    // Both kinds of connections come back by TLS.
    server.restart().await;
    eventually("it is cached again", async || {
        read(&writer).await.1 == Source::First && read(&reader).await.1 == Source::First
    })
    .await;
    database.commit();
    writer.invalidate(&[1]).await.unwrap();
    eventually("it is heard again", async || read(&reader).await.0 == 3).await;
    assert!(reader.stats().first_flushes > before.first_flushes);
}
