//! What can go wrong between a client and its database.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::database::{Database, System};
use testkit::proxy::{Proxy, Way};
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    a_lost_reply_to_acquire_is_asked_for_again
    a_connection_that_breaks_at_any_point_of_a_step_costs_nothing
    giving_up_without_an_answer_leaves_nothing
    a_lost_reply_to_renew_costs_nothing
    a_lost_reply_to_a_count_down_does_not_count_twice
    a_waiter_survives_cut_connections
    connections_that_the_server_kills_cost_nothing
    a_server_that_does_not_answer_breaks_no_bound
    a_dead_server_is_an_error_in_bounded_time
    a_restart_keeps_holders_and_waiters
    an_eviction_while_nobody_listened_is_told
    a_connection_that_has_gone_silent_is_replaced
    who_waits_occupies_no_connection
}

async fn start(system: System) -> Database {
    let database = system.start(&[]).await;
    Locks::init(&database.url("here")).await.unwrap();
    database
}

async fn connect(database: &Database) -> Locks {
    Locks::connect(&database.url("here")).await.unwrap()
}

/// A client behind a proxy.
async fn through(database: &Database) -> (Locks, Proxy) {
    let proxy = Proxy::to(database.server.address()).await;
    let direct = database.server.address().to_string();
    let url = database.url("here").replace(&direct, &proxy.address().to_string());
    (Locks::connect(&url).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn holders(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.unwrap().holders.len()
}

async fn idle(locks: &Locks) {
    let idle = async || {
        let status = locks.admin().show(&name("x")).await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    };
    eventually("idle", idle).await;
}

async fn in_line(locks: &Locks, waiters: usize) {
    let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == waiters;
    eventually("in line", queued).await;
}

async fn a_lost_reply_to_acquire_is_asked_for_again(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    for fair in [false, true] {
        let (locks, proxy) = through(&database).await;
        let mutex = locks.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        proxy.lose_next_reply();
        let guard = soon("granted all the same", mutex.lock()).await.unwrap();
        assert_eq!(holders(&direct).await, 1, "once");
        assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        idle(&direct).await;
    }
    let (locks, proxy) = through(&database).await;
    proxy.lose_next_reply();
    let guard = soon("tried once", locks.mutex("x").fair().try_lock()).await.unwrap();
    guard.expect("free").release().await.unwrap();
}

/// Cut after so many bytes, up and down: in the middle of a statement, before it and after it.
async fn a_connection_that_breaks_at_any_point_of_a_step_costs_nothing(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    let mut last = 0;
    for way in [Way::Up, Way::Down] {
        for bytes in [0, 1, 20, 60, 200, 400, 700, 1000, 1500, 2500] {
            proxy.cut_after(way, bytes);
            let mutex = locks.mutex("x").fair();
            let locking = tokio::spawn(async move { mutex.lock().await });
            let cut = tokio::time::timeout(Duration::from_millis(150), async {
                while !proxy.is_cut() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            // Not at all, if it took fewer bytes.
            let _ = cut.await;
            proxy.pass();
            let guard = soon("granted", locking).await.unwrap().unwrap();
            assert!(guard.token().get() > last, "{way:?} {bytes}");
            last = guard.token().get();
            assert_eq!(holders(&direct).await, 1, "{way:?} {bytes}");
            guard.release().await.unwrap();
            idle(&direct).await;
        }
    }
}

async fn giving_up_without_an_answer_leaves_nothing(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    for wait in [5, 50] {
        proxy.lose_next_reply();
        let mutex = locks.mutex("x").fair();
        let given_up = tokio::time::timeout(Duration::from_millis(wait), mutex.lock()).await;
        drop(given_up);
        idle(&direct).await;
    }
}

async fn a_lost_reply_to_renew_costs_nothing(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let guard = locks.ttl(Duration::from_secs(3)).mutex("x").lock().await.unwrap();
    for _ in 0..3 {
        proxy.lose_next_reply();
        eventually("a reply is lost", async || proxy.lost_a_reply()).await;
        let before = guard.expires_at().unwrap();
        eventually("renewed again", async || guard.expires_at().unwrap() > before).await;
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

async fn a_lost_reply_to_a_count_down_does_not_count_twice(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let latch = locks.latch("x");
    assert!(latch.close(5).await.unwrap());
    for left in (1..5).rev() {
        proxy.lose_next_reply();
        assert_eq!(soon("counted", latch.count_down()).await.unwrap(), left);
        eventually("a reply was lost", async || {
            latch.count().await.unwrap();
            proxy.lost_a_reply()
        })
        .await;
    }
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(locks.admin().list().await.unwrap().is_empty());
}

async fn a_waiter_survives_cut_connections(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    for fair in [false, true] {
        let held = direct.mutex("x").lock().await.unwrap();
        let mutex = locks.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        in_line(&direct, 1).await;
        proxy.drop_connections();
        held.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// Ends all connections of our clients, as an operator does.
fn kill_connections(system: System, database: &Database) {
    match system {
        System::Postgres => {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE application_name = 'lockkeeper'";
            database.operator("here", sql);
        }
        System::MariaDb => {
            database.operator("", "KILL USER app@'%'");
        }
    }
}

async fn connections_that_the_server_kills_cost_nothing(system: System) {
    let database = Arc::new(start(system).await);
    if system == System::MariaDb {
        database.operator("here", "CREATE USER app; GRANT ALL ON here.* TO app");
    }
    let user = if system == System::MariaDb { "app" } else { "postgres" };
    let url = database.url_of(user, "here");
    let locks = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let inside = Arc::new(tokio::sync::Mutex::new(0));
    let workers: Vec<_> = (0..6)
        .map(|at| {
            let (mutex, inside) = (locks[at % 2].mutex("x"), Arc::clone(&inside));
            let mutex = if at < 3 { mutex.fair() } else { mutex };
            tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = mutex.lock().await.unwrap();
                    let mut last = inside.try_lock().expect("alone");
                    assert!(guard.token().get() > *last, "{} after {last}", guard.token());
                    *last = guard.token().get();
                    drop(last);
                    // A connection may be gone just then: it is done all the same.
                    let released = guard.release().await;
                    assert!(
                        matches!(released, Ok(()) | Err(Error::Unknown { .. })),
                        "{released:?}"
                    );
                }
            })
        })
        .collect();
    let all = futures_util::future::join_all(workers);
    tokio::pin!(all);
    let mut killed = 0;
    let done = loop {
        tokio::select! {
            done = &mut all => break done,
            () = tokio::time::sleep(Duration::from_millis(30)) => {
                let database = Arc::clone(&database);
                let kill = tokio::task::spawn_blocking(move || kill_connections(system, &database));
                kill.await.unwrap();
                killed += 1;
                assert!(killed < 1000, "it never ends");
            }
        }
    };
    for worker in done {
        worker.unwrap();
    }
    idle(&locks[0]).await;
}

async fn a_server_that_does_not_answer_breaks_no_bound(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let ttl = Duration::from_secs(5);
    let held = locks.ttl(ttl).mutex("y").lock().await.unwrap();
    proxy.freeze();
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(3), "{took:?}: {error}");
    let error = locks.mutex("x").fair().lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. } | Error::Unavailable { .. }), "{error}");
    assert_eq!(soon("the loss", held.lost()).await, Cause::Expired);
    assert!(Instant::now() < held.expires_at().unwrap(), "in time");
    proxy.pass();
    let direct = connect(&database).await;
    idle(&direct).await;
}

async fn a_dead_server_is_an_error_in_bounded_time(system: System) {
    let mut database = start(system).await;
    let locks = connect(&database).await;
    database.server.kill();
    let error = soon("an error", locks.mutex("x").lock()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_millis(500)).await.unwrap_err();
    assert!(Instant::now().since(since) < Duration::from_secs(3), "{error}");
    let error = soon("refused", Locks::connect(&database.url("here"))).await;
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}

async fn a_restart_keeps_holders_and_waiters(system: System) {
    let mut database = start(system).await;
    let (locks, other) = (connect(&database).await, connect(&database).await);
    let held = locks.mutex("x").lock().await.unwrap();
    let first = other.mutex("x").fair();
    let first = tokio::spawn(async move { first.lock().await });
    in_line(&locks, 1).await;
    database.server.kill();
    database.server.start_again().await;
    assert!(!held.is_lost());
    let token = held.token();
    held.release().await.unwrap();
    let next = soon("its turn", first).await.unwrap().unwrap();
    assert!(next.token() > token);
    let token = next.token();
    next.release().await.unwrap();
    let again = soon("works on", other.mutex("x").lock()).await.unwrap();
    assert!(again.token() > token, "tokens survive");
}

async fn an_eviction_while_nobody_listened_is_told(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    proxy.cut();
    direct.admin().evict(&name("x"), "stuck").await.unwrap();
    proxy.pass();
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

async fn a_connection_that_has_gone_silent_is_replaced(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    proxy.silence();
    let guard = soon("through another one", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    // The one that listens as well.
    let held = direct.mutex("x").lock().await.unwrap();
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    in_line(&direct, 1).await;
    proxy.silence();
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

async fn who_waits_occupies_no_connection(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let url = format!("{}?pool=1", database.url("here"));
    let locks = Locks::connect(&url).await.unwrap();
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for at in 0..8 {
        let name = format!("held/{at}");
        held.push(direct.mutex(&name).lock().await.unwrap());
        let mutex = locks.mutex(&name);
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
    }
    for _ in 0..20 {
        let guard = soon("not held up", locks.mutex("free").lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    for guard in held {
        guard.release().await.unwrap();
    }
    for waiting in waiting {
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}
