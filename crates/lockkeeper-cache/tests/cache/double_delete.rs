//! The second delete comes, whatever becomes of the writer.

use std::time::Duration;

use lockkeeper_cache::entry::Ticket;
use lockkeeper_cache::store::Due;
use lockkeeper_cache::{Builder, Cache, Loaded, Memory, Redis, Source, Store, Strategy, Table};
use testkit::nodes::Cluster;
use testkit::resp::{Raw, Reply};
use testkit::server;
use testkit::wait::{eventually, soon};
use tokio::sync::oneshot;

use crate::harness::{Place, on_each_store};
use crate::tables::Names;

on_each_store! {
    what_a_reader_sets_around_the_commit_is_deleted
    a_writer_that_ends_in_the_middle_is_followed_by_its_delete
    what_is_moved_meanwhile_stays
}

const SHORT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

fn table(builder: Builder, names: &Names) -> Table<u32, String> {
    // Longer than its writes take.
    let builder = builder.second_delete(SHORT).intent(Duration::from_secs(2));
    builder.table(Strategy::DoubleDelete, names.clone()).unwrap()
}

async fn hit(table: &Table<u32, String>) -> Option<String> {
    let read = table.read(&1).await.unwrap();
    assert_eq!(read.source, Source::Hit);
    read.value.map(|name| (*name).clone())
}

async fn sees_new(table: &Table<u32, String>) {
    eventually("the second delete", async || {
        table.read(&1).await.unwrap().value.as_deref().map(String::as_str) == Some("new")
    })
    .await;
}

/// A reader caches what there was before, while a writer is between its first delete and its commit.
async fn set_around_the_commit(builder: Builder) -> Table<u32, String> {
    let names = Names::default();
    let table = builder.table(Strategy::DoubleDelete, names.clone()).unwrap();
    let commit = async {
        assert_eq!(table.read(&1).await.unwrap().source, Source::Loaded);
        Ok(Loaded::found("new".to_owned()).version(names.set(1, Some("new"))))
    };
    table.write_with(&1, commit).await.unwrap();
    table
}

async fn what_a_reader_sets_around_the_commit_is_deleted(place: &Place) {
    for (namespace, after) in [("late", HOUR), ("soon", SHORT)] {
        let builder = place.builder().await.namespace(namespace).second_delete(after);
        let table = set_around_the_commit(builder).await;
        match after {
            HOUR => assert_eq!(hit(&table).await, None, "stale, as it says"),
            _ => sees_new(&table).await,
        }
    }
}

async fn a_writer_that_ends_in_the_middle_is_followed_by_its_delete(place: &Place) {
    let names = Names::default();
    let [writer, reader] =
        [place.builder().await, place.builder().await].map(|builder| table(builder, &names));
    let (committed, wait) = oneshot::channel();
    let commit = async {
        reader.read(&1).await.unwrap();
        names.set(1, Some("new"));
        committed.send(()).unwrap();
        std::future::pending().await
    };
    tokio::select! {
        _ = writer.write_with(&1, commit) => unreachable!(),
        done = wait => done.unwrap(),
    }
    drop(writer);
    sees_new(&reader).await;
}

async fn what_is_moved_meanwhile_stays(place: &Place) {
    let redis;
    let store: &dyn Store = match place {
        Place::Memory(memory) => memory,
        Place::Redis(server) => {
            redis = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
            &redis
        }
    };
    let deletes = store.deletes().unwrap();
    assert_eq!(deletes.due("q", 10).await.unwrap(), Due { deletes: Vec::new(), next: None });
    let [one, other] = [Ticket::new(), Ticket::new()];
    for (ticket, key) in [(one, "a"), (other, "b")] {
        deletes.schedule("q", ticket, key, Duration::ZERO, HOUR).await.unwrap();
    }
    let due = deletes.due("q", 10).await.unwrap().deletes;
    let mut keys: Vec<_> = due.iter().map(|delete| (delete.ticket, &*delete.key)).collect();
    keys.sort_unstable();
    assert_eq!(keys, [(one, "a"), (other, "b")]);
    assert_eq!(deletes.due("q", 1).await.unwrap().deletes, due[..1]);
    deletes.schedule("q", one, "a", HOUR, HOUR).await.unwrap();
    deletes.done("q", &due).await.unwrap();
    let left = deletes.due("q", 10).await.unwrap();
    assert_eq!(left.deletes, []);
    let next = left.next.unwrap();
    assert!(next <= HOUR && next > HOUR / 2, "{next:?}");
}

/// As if its process were killed: everything of it is gone, what was under way included.
#[tokio::test]
async fn another_process_deletes_for_one_that_is_gone() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let names = Names::default();
    let reader =
        table(Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache"), &names);
    let other = reader.clone();
    let (committed, wait) = oneshot::channel();
    let (near, rows) = (url.clone(), names.clone());
    let doomed = tokio::runtime::Runtime::new().unwrap();
    doomed.spawn(async move {
        let writer =
            table(Cache::builder(Redis::connect(&near).await.unwrap()).namespace("cache"), &rows);
        let commit = async {
            other.read(&1).await.unwrap();
            rows.set(1, Some("new"));
            committed.send(()).unwrap();
            std::future::pending().await
        };
        writer.write_with(&1, commit).await
    });
    soon("a commit", wait).await.unwrap();
    doomed.shutdown_background();
    sees_new(&reader).await;
    let raw = Raw::connect(server.address()).await;
    eventually("nothing is left in the queue", async || raw.keys("cache!deletes").await.is_empty())
        .await;
}

/// Whoever has put it there.
#[tokio::test]
async fn what_is_no_delete_is_in_nobodys_way() {
    let server = server::redis(&[]).await;
    let raw = Raw::connect(server.address()).await;
    assert_eq!(raw.ask("ZADD cache!deletes 1 foreign 1.5 more").await, Reply::Number(2));
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let builder = Cache::builder(store).namespace("cache").second_delete(SHORT);
    sees_new(&set_around_the_commit(builder).await).await;
    eventually("nothing is left in the queue", async || raw.keys("cache!deletes").await.is_empty())
        .await;
}

#[tokio::test]
async fn it_comes_in_a_cluster() {
    let cluster = Cluster::shared().await;
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let builder = Cache::builder(store).namespace("double-delete").second_delete(SHORT);
    sees_new(&set_around_the_commit(builder).await).await;
}

#[tokio::test]
async fn a_queue_that_nobody_looks_at_ends() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let names = Names::default();
    let late = Cache::builder(store).namespace("cache").second_delete(HOUR);
    let late = late.table(Strategy::DoubleDelete, names).unwrap();
    late.write(&1, Some("new".into())).await.unwrap();
    let raw = Raw::connect(server.address()).await;
    assert_eq!(raw.keys("*").await, ["cache!deletes"]);
    assert_eq!(raw.immortal().await, Vec::<String>::new());
}

#[test]
fn without_a_runtime_there_is_nobody_to_delete() {
    let refused = Cache::builder(Memory::new())
        .namespace("cache")
        .table(Strategy::DoubleDelete, Names::default())
        .unwrap_err();
    assert!(refused.to_string().contains("runtime"), "{refused}");
}
