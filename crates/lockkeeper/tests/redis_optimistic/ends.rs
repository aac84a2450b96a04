//! Commit, conflict, abort, holes; and what is left on the connection after each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper::backend::redis::optimistic::redis::{self, Cmd, Value};
use lockkeeper::backend::redis::optimistic::{Optimistic, Outcome, Tx};
use lockkeeper::{Error, Locks};
use testkit::resp::Raw;
use testkit::wait::{eventually, soon};

use super::start;

/// Shows that nothing is watched on any connection that is used again: `a` changes, and a transaction
/// over another key does not mind.
async fn nothing_is_watched(locks: &Locks, raw: &Raw) {
    raw.ask("INCR a").await;
    let other = Optimistic::new(locks, ["other"])
        .attempts(1)
        .run(|tx| async move { tx.queue(Cmd::incr("other", 1)) });
    let outcome = other.await.unwrap();
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

async fn clients(raw: &Raw) -> usize {
    raw.text("CLIENT LIST").await.unwrap().lines().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_decides_what_is_written() {
    let (_server, locks, raw) = start().await;
    raw.ask("SET stock 7").await;
    let sell = || {
        locks.optimistic(["stock"], |tx| async move {
            let stock: i64 = tx.read(Cmd::get("stock")).await?;
            if stock < 5 {
                return Ok(false);
            }
            tx.queue(Cmd::decr("stock", 5))?;
            tx.queue(Cmd::rpush("orders", "five"))?;
            Ok(true)
        })
    };
    let Outcome::Committed { value: true, replies } = sell().await.unwrap() else {
        panic!("sold");
    };
    assert_eq!(replies, [Value::Int(2), Value::Int(1)]);
    let sold_out = sell().await.unwrap();
    assert!(
        matches!(&sold_out, Outcome::Committed { value: false, replies } if replies.is_empty()),
        "{sold_out:?}"
    );
    assert_eq!(raw.text("GET stock").await.as_deref(), Some("2"));
    assert_eq!(raw.number("LLEN orders").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_meanwhile_runs_the_body_again() {
    let (_server, locks, raw) = start().await;
    raw.ask("SET a 1").await;
    let (raw, runs) = (&raw, &AtomicU32::new(0));
    let doubled = locks.optimistic(["a"], |tx| async move {
        let a: i64 = tx.read(Cmd::get("a")).await?;
        if runs.fetch_add(1, Ordering::SeqCst) < 2 {
            raw.ask("INCR a").await;
        }
        tx.queue(Cmd::set("a", 2 * a))?;
        Ok(a)
    });
    assert!(matches!(doubled.await.unwrap(), Outcome::Committed { value: 3, .. }));
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(raw.text("GET a").await.as_deref(), Some("6"));
}

/// A body that only reads gets values that were there at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_belongs_together() {
    let (_server, locks, raw) = start().await;
    let (raw, runs) = (&raw, &AtomicU32::new(0));
    let seen = locks.optimistic(["a", "b"], |tx| async move {
        let a: Option<i64> = tx.read(Cmd::get("a")).await?;
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            raw.ask("MSET a 1 b 1").await;
        }
        let b: Option<i64> = tx.read(Cmd::get("b")).await?;
        Ok((a, b))
    });
    let seen = seen.await.unwrap();
    assert!(matches!(seen, Outcome::Committed { value: (Some(1), Some(1)), .. }), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_discarded_is_not_written_and_what_was_read_is_checked() {
    let (_server, locks, raw) = start().await;
    let (raw, runs) = (&raw, &AtomicU32::new(0));
    let changed_its_mind = locks.optimistic(["a"], |tx| async move {
        let a: Option<i64> = tx.read(Cmd::get("a")).await?;
        tx.queue(Cmd::set("b", "discarded"))?;
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            raw.ask("SET a 1").await;
        }
        tx.discard();
        tx.queue(Cmd::set("c", "kept"))?;
        Ok(a)
    });
    let outcome = changed_its_mind.await.unwrap();
    let Outcome::Committed { value: Some(1), replies } = outcome else { panic!("{outcome:?}") };
    assert_eq!(replies, [Value::Okay]);
    assert!(!raw.exists("b").await);
    assert_eq!(raw.text("GET c").await.as_deref(), Some("kept"));
}

/// The rights that OPERATIONS names, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rights_are_enough_for_transactions() {
    let (server, _, raw) = start().await;
    raw.ask("ACL SETUSER app reset on >pw ~stock resetchannels &lockkeeper_wake:* +@connection \
             +@scripting +@pubsub +@read +@write +time -@dangerous +info +watch +unwatch +multi +exec")
        .await;
    raw.ask("SET stock 7").await;
    let url = format!("redis://app:pw@{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    for fails in [true, false] {
        let sold = locks.optimistic(["stock"], |tx| async move {
            let stock: i64 = tx.read(Cmd::get("stock")).await?;
            tx.queue(Cmd::decr("stock", 5))?;
            if fails { Err(Error::Config("not today".into())) } else { Ok(stock) }
        });
        match sold.await {
            Ok(Outcome::Committed { value: 7, .. }) => assert!(!fails),
            Err(Error::Config(_)) => assert!(fails),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(raw.text("GET stock").await.as_deref(), Some("2"));
}

/// Without a runtime of one's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_waited_for_without_a_runtime() {
    let (server, _, raw) = start().await;
    let url = format!("redis://{}", server.address());
    let sold = tokio::task::spawn_blocking(move || {
        // Threads for blocking work have a runtime; this one has none.
        let counting = std::thread::spawn(move || {
            let locks = lockkeeper::blocking::Locks::connect(&url)?;
            locks.optimistic(["count"], |tx| async move {
                let count: Option<i64> = tx.read(Cmd::get("count")).await?;
                tx.queue(Cmd::set("count", count.unwrap_or(0) + 1))
            })
        });
        counting.join().unwrap()
    });
    assert!(matches!(sold.await.unwrap(), Ok(Outcome::Committed { .. })));
    assert_eq!(raw.text("GET count").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_found_on_the_way_can_be_watched() {
    let (_server, locks, raw) = start().await;
    raw.ask("MSET which b b 1").await;
    let (raw, runs) = (&raw, &AtomicU32::new(0));
    let followed = locks.optimistic(["which"], |tx| async move {
        let which: String = tx.read(Cmd::get("which")).await?;
        tx.watch([&which]).await?;
        let before: i64 = tx.read(Cmd::get(&which)).await?;
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            raw.ask("SET b 5").await;
        }
        tx.queue(Cmd::set(&which, before + 1))
    });
    assert!(matches!(followed.await.unwrap(), Outcome::Committed { .. }));
    assert_eq!(raw.text("GET b").await.as_deref(), Some("6"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_conflict_is_an_error() {
    let (_server, locks, raw) = start().await;
    let (raw, runs) = (&raw, &AtomicU32::new(0));
    let contended = Optimistic::new(&locks, ["a", "b"]).attempts(3);
    let in_vain = contended.run(|tx| async move {
        runs.fetch_add(1, Ordering::SeqCst);
        raw.ask("INCR a").await;
        tx.queue(Cmd::set("b", "written"))
    });
    let error = in_vain.await.unwrap_err();
    assert!(
        matches!(&error, Error::Conflict { keys, attempts: 3 } if keys == &["a", "b"]),
        "{error}"
    );
    assert!(error.is_transient() && !error.is_outcome_unknown());
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert!(!raw.exists("b").await);
    nothing_is_watched(&locks, raw).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_refused_aborts_all() {
    let (_server, locks, raw) = start().await;
    let too_short = redis::cmd("SET").arg("b").to_owned();
    for wrong in [redis::cmd("NONSENSE"), too_short] {
        let wrong = &wrong;
        let refused = locks.optimistic(["a"], |tx| async move {
            tx.queue(Cmd::set("b", "written"))?;
            tx.queue(wrong.clone())?;
            tx.queue(Cmd::set("c", "written"))
        });
        let error = refused.await.unwrap_err();
        let Error::Aborted { command, at: Some(1), source } = &error else { panic!("{error:?}") };
        assert!(["NONSENSE", "SET"].contains(&command.as_str()), "{command}");
        assert!(source.to_string().contains("ERR") || source.to_string().contains("command"));
        assert!(!raw.exists("b").await && !raw.exists("c").await, "nothing ran");
        nothing_is_watched(&locks, &raw).await;
    }
}

/// There is no rollback: what failed when it ran did not undo the others, before and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_does_not_undo_the_others() {
    let (_server, locks, raw) = start().await;
    raw.ask("SET a text").await;
    let outcome = locks.optimistic(["a"], |tx| async move {
        tx.queue(Cmd::set("before", 1))?;
        tx.queue(Cmd::lpop("a", None))?;
        tx.queue(Cmd::set("after", 1))
    });
    let Outcome::Partial { replies, .. } = outcome.await.unwrap() else { panic!("with a hole") };
    let codes: Vec<_> = replies.iter().map(|reply| reply.as_ref().err()?.code()).collect();
    assert_eq!(codes, [None, Some("WRONGTYPE"), None]);
    assert!(raw.exists("before").await && raw.exists("after").await, "no rollback");
    raw.ask("SET a 0").await;
    nothing_is_watched(&locks, &raw).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_fails_writes_nothing_and_leaves_nothing() {
    let (_server, locks, raw) = start().await;
    nothing_is_watched(&locks, &raw).await;
    let before = clients(&raw).await;
    let failed = locks.optimistic(["a"], |tx| async move {
        tx.queue(Cmd::set("b", "written"))?;
        Err::<(), _>(Error::Config("the body's own".into()))
    });
    assert!(matches!(failed.await, Err(Error::Config(text)) if text == "the body's own"));
    assert!(!raw.exists("b").await);
    assert_eq!(clients(&raw).await, before, "the connection went back");
    nothing_is_watched(&locks, &raw).await;
}

/// A read that fails at the server is the body's to judge, and no reason to run it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_refused_is_told() {
    let (_server, locks, raw) = start().await;
    raw.ask("SET a text").await;
    let read = locks.optimistic(["a"], |tx| async move {
        let refused = tx.read::<Vec<String>>(Cmd::lrange("a", 0, -1)).await;
        Ok(refused.is_err())
    });
    assert!(matches!(read.await.unwrap(), Outcome::Committed { value: true, .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_dropped_leaves_nothing() {
    let (_server, locks, raw) = start().await;
    nothing_is_watched(&locks, &raw).await;
    let before = clients(&raw).await;
    let (reached, mut reaches) = tokio::sync::mpsc::channel(1);
    let endless = locks.optimistic(["a"], |tx| {
        let reached = reached.clone();
        async move {
            let _: Option<i64> = tx.read(Cmd::get("a")).await?;
            tx.queue(Cmd::set("b", "written"))?;
            reached.send(()).await.unwrap();
            std::future::pending().await
        }
    });
    let mut endless: std::pin::Pin<
        Box<dyn Future<Output = lockkeeper::Result<Outcome<()>>> + Send>,
    > = Box::pin(endless);
    tokio::select! {
        _ = &mut endless => panic!("endless"),
        _ = soon("in the body", reaches.recv()) => {}
    }
    drop(endless);
    eventually("the connection is closed", async || clients(&raw).await < before).await;
    assert!(!raw.exists("b").await);
    nothing_is_watched(&locks, &raw).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_of_no_use_after_its_body() {
    let (_server, locks, raw) = start().await;
    let kept: &std::sync::Mutex<Option<Tx>> = &std::sync::Mutex::default();
    let outcome = locks.optimistic(["a"], |tx| async move {
        kept.lock().unwrap().replace(tx);
        Ok(())
    });
    assert!(matches!(outcome.await.unwrap(), Outcome::Committed { .. }));
    let late = kept.lock().unwrap().take().unwrap();
    assert!(matches!(late.read::<()>(Cmd::get("a")).await, Err(Error::Config(_))));
    assert!(matches!(late.watch(["a"]).await, Err(Error::Config(_))));
    assert!(matches!(late.queue(Cmd::set("a", 1)), Err(Error::Config(_))));
    nothing_is_watched(&locks, &raw).await;
}

/// A read that goes on behind the back of a body that has ended: the connection is not kept for it, and
/// nothing is accepted that nobody would carry out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_ends_while_it_reads_keeps_nothing() {
    let (_server, locks, raw) = start().await;
    let before = clients(&raw).await;
    let (raw, kept) = (&raw, &std::sync::Mutex::<Option<Arc<Tx>>>::default());
    let ended = locks.optimistic(["a"], |tx| async move {
        let tx = Arc::new(tx);
        kept.lock().unwrap().replace(Arc::clone(&tx));
        tokio::spawn(async move { tx.read::<Value>(Cmd::blpop("nothing", 2.0)).await });
        let reads = async || raw.text("CLIENT LIST").await.unwrap().contains("cmd=blpop");
        eventually("it reads", reads).await;
        Ok(())
    });
    let ended = ended.await;
    assert!(matches!(ended, Err(Error::Config(_))), "{ended:?}");
    let late = kept.lock().unwrap().take().unwrap();
    assert!(matches!(late.queue(Cmd::set("a", 1)), Err(Error::Config(_))));
    eventually("the connection is closed", async || clients(raw).await == before).await;
    assert!(matches!(late.read::<()>(Cmd::get("a")).await, Err(Error::Config(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_said() {
    let (_server, redis, _raw) = start().await;
    let nothing = |_: Tx| async { Ok(()) };
    let elsewhere = Locks::memory().optimistic(["a"], nothing).await;
    assert!(matches!(elsewhere, Err(Error::Unsupported { backend: "memory", .. })));
    let without_keys: [&str; 0] = [];
    assert!(matches!(redis.optimistic(without_keys, nothing).await, Err(Error::Config(_))));
    let meddles = redis.optimistic(["a"], |tx| async move { tx.queue(redis::cmd("DISCARD")) });
    assert!(matches!(meddles.await, Err(Error::Config(_))));
    redis.shutdown(std::time::Duration::ZERO).await;
    assert!(matches!(redis.optimistic(["a"], nothing).await, Err(Error::ShutDown)));
}
