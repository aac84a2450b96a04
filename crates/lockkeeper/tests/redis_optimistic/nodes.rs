//! Transactions where there are several servers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::backend::redis::optimistic::redis::Cmd;
use lockkeeper::backend::redis::optimistic::{Optimistic, Outcome};
use lockkeeper::{Error, Locks};
use testkit::nodes::{Cluster, SETTLE, Sentinels, ask};

/// Short, because the tests that kill a master wait for it.
const DOWN: Duration = Duration::from_secs(1);

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SETTLE, future).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_all_keys_have_to_be_in_one_slot() {
    let cluster = Cluster::shared().await;
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let several = locks.optimistic(["a", "b"], |_| async { Ok(()) }).await;
    let Err(Error::Unsupported { what, .. }) = &several else { panic!("{several:?}") };
    assert!(what.contains("{tag}") && what.contains("\"b\""), "{what}");
    let [one, other] = ["{optimistic}one", "{optimistic}other"];
    let moved = locks.optimistic([one, other], |tx| async move {
        let _: Option<i64> = tx.read(Cmd::get(other)).await?;
        tx.queue(Cmd::incr(one, 1))?;
        tx.queue(Cmd::incr(other, 1))
    });
    let moved = moved.await.unwrap();
    assert!(
        matches!(&moved, Outcome::Committed { replies, .. } if replies.len() == 2),
        "{moved:?}"
    );
    // Keys that only turn up in commands: at this server, at another one, or watched later.
    for stray in ["optimistic-1", "optimistic-2", "optimistic-3", "optimistic-4", "optimistic-5"] {
        let strays = locks.optimistic([one], |tx| async move {
            tx.queue(Cmd::incr(one, 1))?;
            tx.queue(Cmd::incr(stray, 1))
        });
        let strays = strays.await;
        assert!(matches!(&strays, Err(Error::Unsupported { .. })), "{stray}: {strays:?}");
        let reads = locks.optimistic([one], |tx| async move {
            let _: Option<i64> = tx.read(Cmd::get(stray)).await?;
            tx.watch([stray]).await
        });
        assert!(matches!(reads.await, Err(Error::Unsupported { .. })), "{stray}");
        let runs = &AtomicU32::new(0);
        let does_without = locks.optimistic([one], |tx| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(tx.read::<Option<i64>>(Cmd::get(stray)).await.is_ok())
        });
        let outcome = in_time(does_without).await;
        assert!(matches!(outcome, Ok(Outcome::Committed { .. })), "{stray}: {outcome:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 1, "it would be refused again");
    }
    let same = locks.optimistic([one], |tx| async move { tx.read::<i64>(Cmd::get(one)).await });
    assert!(matches!(same.await.unwrap(), Outcome::Committed { value: 1, .. }), "nothing ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed() {
    let cluster = Cluster::start(SETTLE).await;
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let count = |move_it: Option<(usize, usize)>, only_read: bool| {
        let (cluster, locks) = (&cluster, &locks);
        async move {
            let runs = &AtomicU32::new(0);
            let counted = Optimistic::new(locks, ["x"]).run(|tx| async move {
                let count: Option<i64> = tx.read(Cmd::get("x")).await?;
                if let Some((from, to)) = move_it
                    && runs.fetch_add(1, Ordering::SeqCst) == 0
                {
                    cluster.move_slot(cluster.slot("x").await, from, to).await;
                }
                if !only_read {
                    tx.queue(Cmd::set("x", count.unwrap_or(0) + 1))?;
                }
                Ok(count.unwrap_or(0))
            });
            let outcome = in_time(counted).await.unwrap();
            let Outcome::Committed { value, .. } = outcome else { panic!("{outcome:?}") };
            (value, runs.load(Ordering::SeqCst))
        }
    };
    let slot = cluster.slot("x").await;
    let owner = cluster.owner_other_than(slot, None).await;
    let [second, third] = [(owner + 1) % 3, (owner + 2) % 3];
    assert_eq!(count(None, false).await.0, 0);
    assert_eq!(count(Some((owner, second)), false).await, (1, 2), "moved while the body ran");
    cluster.move_slot(slot, second, third).await;
    assert_eq!(count(None, false).await.0, 2, "moved before");
    assert_eq!(count(Some((third, owner)), true).await, (3, 2), "moved under one that only reads");
    assert_eq!(ask(cluster.servers[owner].address(), "GET x").await, "3");
}

/// A key that is not there leaves nothing behind when its slot moves, and a command without a key is
/// carried out anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_noticed_by_commands_without_keys() {
    let cluster = Cluster::start(SETTLE).await;
    let locks = Locks::connect(&cluster.url()).await.unwrap();
    let slot = cluster.slot("x").await;
    let owner = cluster.owner_other_than(slot, None).await;
    let (other, cluster, runs) = ((owner + 1) % 3, &cluster, &AtomicU32::new(0));
    let announced = locks.optimistic(["x"], |tx| async move {
        let x: Option<i64> = tx.read(Cmd::get("x")).await?;
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            cluster.move_slot(slot, owner, other).await;
            assert_eq!(ask(cluster.servers[other].address(), "SET x 1").await, "OK");
        }
        tx.queue(Cmd::publish("news", "of x"))?;
        Ok(x)
    });
    let outcome = in_time(announced).await.unwrap();
    let Outcome::Committed { value: Some(1), replies } = outcome else { panic!("{outcome:?}") };
    assert_eq!(replies.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_follows_the_master_of_the_sentinels() {
    let mut redis = Sentinels::start(DOWN).await;
    let locks = Locks::connect(&redis.url()).await.unwrap();
    let count = || {
        locks.optimistic(["count"], |tx| async move {
            let count: Option<i64> = tx.read(Cmd::get("count")).await?;
            tx.queue(Cmd::set("count", count.unwrap_or(0) + 1))?;
            Ok(count.unwrap_or(0))
        })
    };
    assert!(matches!(count().await.unwrap(), Outcome::Committed { value: 0, .. }));
    assert_eq!(ask(redis.nodes.servers[0].address(), "WAIT 2 10000").await, "2");
    redis.nodes.servers[0].kill();
    let outcome = in_time(count()).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed { value: 1, .. }), "{outcome:?}");
    let master = redis.master_other_than(0).await;
    assert_eq!(ask(redis.nodes.servers[master].address(), "GET count").await, "2");
}

/// What no replica had is lost with the master, although it was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_may_lose_what_was_committed() {
    let mut redis = Sentinels::start(DOWN).await;
    let locks = Locks::connect(&redis.url()).await.unwrap();
    redis.nodes.cut_off_replicas().await;
    let counted = locks.optimistic(["count"], |tx| async move { tx.queue(Cmd::set("count", 1)) });
    assert!(matches!(counted.await.unwrap(), Outcome::Committed { .. }));
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    let read = locks
        .optimistic(["count"], |tx| async move { tx.read::<Option<i64>>(Cmd::get("count")).await });
    assert!(matches!(in_time(read).await.unwrap(), Outcome::Committed { value: None, .. }));
}
