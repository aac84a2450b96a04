//! Connections that break, servers that forget, rights that are missing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::backend::redis::optimistic::redis::Cmd;
use lockkeeper::backend::redis::optimistic::{Optimistic, Outcome};
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks, Result};
use testkit::proxy::Way;
use testkit::resp::Raw;
use testkit::wait::LONG;

use super::{connect, start, start_behind};

/// One more in `count`, decided on what is there.
async fn count_up(locks: &Locks) -> Result<Outcome<i64>> {
    let counted = locks.optimistic(["count"], |tx| async move {
        let count: Option<i64> = tx.read(Cmd::get("count")).await?;
        tx.queue(Cmd::incr("count", 1))?;
        Ok(count.unwrap_or(0))
    });
    counted.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_unknown_and_nothing_is_sent_twice() {
    let (_server, locks, raw, proxy) = start_behind().await;
    let (proxy, runs) = (&proxy, &AtomicU32::new(0));
    let counted = locks.optimistic(["count"], |tx| async move {
        runs.fetch_add(1, Ordering::SeqCst);
        tx.queue(Cmd::incr("count", 1))?;
        proxy.lose_next_reply();
        Ok("decided")
    });
    let outcome = counted.await.unwrap();
    assert!(matches!(&outcome, Outcome::Unknown { value: "decided", .. }), "{outcome:?}");
    assert!(proxy.lost_a_reply());
    assert_eq!(raw.text("GET count").await.as_deref(), Some("1"), "it took effect, once");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { value: 1, .. }));
}

/// The other half of unknown: the request did not arrive, or not all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_transaction_is_no_transaction() {
    for bytes in [0, 20, 60] {
        let (_server, locks, raw, proxy) = start_behind().await;
        let proxy = &proxy;
        let counted = locks.optimistic(["count"], |tx| async move {
            tx.queue(Cmd::incr("count", 1))?;
            tx.queue(Cmd::incr("count", 1))?;
            proxy.cut_after(Way::Up, bytes);
            Ok(())
        });
        let outcome = counted.await.unwrap();
        assert!(matches!(&outcome, Outcome::Unknown { .. }), "{outcome:?}");
        assert!(proxy.is_cut());
        assert!(!raw.exists("count").await, "after {bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_is_unknown_too() {
    let (_server, locks, raw, proxy) = start_behind().await;
    let proxy = &proxy;
    let counted = locks.optimistic(["count"], |tx| async move {
        tx.queue(Cmd::incr("count", 1))?;
        proxy.freeze();
        Ok(())
    });
    let since = Instant::now();
    assert!(matches!(counted.await.unwrap(), Outcome::Unknown { .. }));
    assert!(Instant::now().since(since) < LONG);
    assert!(!raw.exists("count").await, "it is on its way");
    proxy.pass();
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { .. }));
}

/// How to repeat what is unknown: a key that says that it is done, in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_says_it_is_done_makes_repeating_harmless() {
    let (_server, locks, raw, proxy) = start_behind().await;
    let (proxy, runs) = (&proxy, &AtomicU32::new(0));
    let pay = || {
        locks.optimistic(["paid/42", "account"], |tx| async move {
            if tx.read(Cmd::exists("paid/42")).await? {
                return Ok(());
            }
            tx.queue(Cmd::set("paid/42", 1))?;
            tx.queue(Cmd::decr("account", 10))?;
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                proxy.lose_next_reply();
            }
            Ok(())
        })
    };
    assert!(matches!(pay().await.unwrap(), Outcome::Unknown { .. }));
    assert!(matches!(pay().await.unwrap(), Outcome::Committed { .. }));
    assert_eq!(raw.text("GET account").await.as_deref(), Some("-10"), "paid once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_before_the_end_cost_a_run() {
    let (_server, locks, _raw, proxy) = start_behind().await;
    let (proxy, runs) = (&proxy, &AtomicU32::new(0));
    let counted = locks.optimistic(["count"], |tx| async move {
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            proxy.drop_connections();
        }
        let count: Option<i64> = tx.read(Cmd::get("count")).await?;
        tx.queue(Cmd::incr("count", 1))?;
        Ok(count)
    });
    assert!(matches!(counted.await.unwrap(), Outcome::Committed { value: None, .. }));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    // One that was kept, and is broken by now: noticed before the body runs.
    proxy.drop_connections();
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { value: 1, .. }));
}

/// A body that does not mind that it cannot read is not committed on what it guessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_swallows_a_broken_connection_runs_again() {
    let (_server, locks, raw, proxy) = start_behind().await;
    raw.ask("SET a 7").await;
    let (proxy, runs) = (&proxy, &AtomicU32::new(0));
    let guessed = locks.optimistic(["a"], |tx| async move {
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            proxy.drop_connections();
        }
        let a: i64 = tx.read(Cmd::get("a")).await.unwrap_or(0);
        tx.queue(Cmd::set("b", a))?;
        Ok(a)
    });
    assert!(matches!(guessed.await.unwrap(), Outcome::Committed { value: 7, .. }));
    assert_eq!(raw.text("GET b").await.as_deref(), Some("7"));
}

/// Nor is an error that it made of a read that failed the last word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_with_an_error_of_its_own_for_a_broken_connection_runs_again() {
    let (_server, locks, raw, proxy) = start_behind().await;
    raw.ask("SET a 7").await;
    let (proxy, runs) = (&proxy, &AtomicU32::new(0));
    let renamed = locks.optimistic(["a"], |tx| async move {
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            proxy.drop_connections();
        }
        let a = tx.read::<i64>(Cmd::get("a")).await;
        a.map_err(|_| Error::Config("a cannot be read".into()))
    });
    assert!(matches!(renamed.await.unwrap(), Outcome::Committed { value: 7, .. }));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// Who may not say `EXEC` leaves nothing on a connection that is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_not_carried_out_later() {
    let (server, _, raw) = start().await;
    raw.ask("ACL SETUSER some on >secret ~* &* +@all").await;
    let url = format!("redis://some:secret@{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { .. }));
    raw.ask("ACL SETUSER some -exec").await;
    let error = count_up(&locks).await.unwrap_err();
    assert!(matches!(&error, Error::Aborted { at: None, .. }), "{error:?}");
    raw.ask("ACL SETUSER some +exec").await;
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { .. }));
    assert_eq!(raw.text("GET count").await.as_deref(), Some("2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_an_error_in_bounded_time() {
    let (_server, locks, _raw, proxy) = start_behind().await;
    for silent in [false, true] {
        if silent {
            proxy.blackhole()
        } else {
            proxy.cut()
        }
        let since = Instant::now();
        let error = count_up(&locks).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(Instant::now().since(since) < LONG, "{error}");
        proxy.pass();
    }
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { value: 0, .. }));
}

/// Dropped while the answer is on its way: the connection is not used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_dropped_happens_or_does_not() {
    let (_server, locks, raw, proxy) = start_behind().await;
    let at_proxy = &proxy;
    let counted = locks.optimistic(["count"], |tx| async move {
        tx.queue(Cmd::incr("count", 1))?;
        tx.queue(Cmd::incr("count", 1))?;
        at_proxy.delay(Way::Down, Duration::from_secs(2));
        Ok(())
    });
    assert!(tokio::time::timeout(Duration::from_millis(300), counted).await.is_err());
    proxy.pass();
    let count = raw.text("GET count").await;
    assert!(matches!(count.as_deref(), None | Some("2")), "{count:?}");
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { .. }));
}

/// Without `MULTI`, what follows it would run one by one. So who may not say it is refused before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_begin_a_transaction_writes_nothing() {
    let (server, _, raw) = start().await;
    raw.ask("ACL SETUSER some on >secret ~* &* +@all -multi").await;
    let url = format!("redis://some:secret@{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    let error = count_up(&locks).await.unwrap_err();
    let Error::Unavailable { context, .. } = &error else { panic!("{error}") };
    assert!(context.contains("may not"), "{context}");
    assert!(!raw.exists("count").await);
    // The same for a right that is missing for one command only.
    raw.ask("ACL SETUSER some +multi -incrby").await;
    let error = count_up(&locks).await.unwrap_err();
    assert!(matches!(&error, Error::Aborted { at: Some(0), .. }), "{error:?}");
    assert!(!raw.exists("count").await);
}

/// A right that is withdrawn under a connection that had it: then what ran is not known, and it is said
/// so, not that it was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_none_is_not_called_committed() {
    let (server, _, raw) = start().await;
    raw.ask("ACL SETUSER some on >secret ~* &* +@all").await;
    let url = format!("redis://some:secret@{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { .. }));
    raw.ask("ACL SETUSER some -multi").await;
    let outcome = count_up(&locks).await.unwrap();
    assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
}

/// Durable is what the server makes durable: this one keeps nothing on disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_is_gone_with_a_server_that_keeps_nothing() {
    let (mut server, locks, raw) = start().await;
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { value: 0, .. }));
    assert_eq!(raw.text("GET count").await.as_deref(), Some("1"));
    server.restart().await;
    assert!(!Raw::connect(server.address()).await.exists("count").await, "forgotten");
    assert!(matches!(count_up(&locks).await.unwrap(), Outcome::Committed { value: 0, .. }));
}

/// Sixty-four at a time; the others wait for their turn, and all of them count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_have_a_connection_each() {
    let (server, _, raw) = start().await;
    let locks = connect(&server).await;
    let tasks = (0..100).map(|at| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let key = format!("count/{}", at % 50);
            let counting = Optimistic::new(&locks, [&key]).attempts(100);
            let key = &key;
            let counted = counting.run(|tx| async move {
                let count: Option<i64> = tx.read(Cmd::get(key)).await?;
                tx.queue(Cmd::set(key, count.unwrap_or(0) + 1))
            });
            assert!(matches!(counted.await.unwrap(), Outcome::Committed { .. }));
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    for at in 0..50 {
        assert_eq!(raw.text(&format!("GET count/{at}")).await.as_deref(), Some("2"));
    }
}
