//! What can go wrong with locks that live with a connection.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::database::{Database, Place, System};
use testkit::proxy::Way;
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    a_connection_that_the_server_ends_is_a_loss_at_once
    a_waiter_whose_connection_the_server_ends_asks_again
    connections_that_the_server_ends_all_the_time
    a_restart_loses_what_is_held_and_keeps_who_waits
    a_lost_reply_to_a_session_leaves_no_orphan
    a_session_that_is_cut_at_any_point_leaves_nothing
    a_grant_that_is_never_heard_of_is_undone
    a_release_does_not_wait_for_a_sign_of_life
    a_holder_that_is_cut_off_knows_before_others_are_granted
    a_waiter_that_gives_up_leaves_the_server_at_once
    deadlines_hold_whatever_the_server_does
    a_grant_at_the_deadline_leaves_nothing
    a_stopped_waiter_has_the_lock_for_seconds_only
    who_does_not_hear_of_its_eviction_is_cut_off
    only_one_of_a_process_waits_at_the_server
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn holders(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.unwrap().holders.len()
}

async fn in_line(locks: &Locks, waiters: usize) {
    let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == waiters;
    eventually("in line", queued).await;
}

/// Ends the connections of our clients, as an operator does.
fn end_connections(system: System, database: &Database) {
    match system {
        System::Postgres => {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE usename = 'app'";
            database.operator("here", sql);
        }
        System::MariaDb => {
            database.operator("", "KILL USER app@'%'");
        }
    }
}

async fn a_connection_that_the_server_ends_is_a_loss_at_once(system: System) {
    let place = Place::start(system, &[]).await;
    let locks = place.connect().await;
    for lease in [false, true] {
        let locks = if lease { locks.lease(Duration::from_secs(600)) } else { locks.clone() };
        let held = locks.mutex("x").lock().await.unwrap();
        end_connections(system, &place.database);
        let since = Instant::now();
        assert_eq!(soon("told", held.lost()).await, Cause::Gone);
        let took = Instant::now().since(since);
        // PostgreSQL tells; MariaDB has to be asked, every second.
        let within = if system == System::Postgres { 500 } else { 2000 };
        assert!(took < Duration::from_millis(within), "{took:?}");
        let next = soon("free", place.connect().await.mutex("x").lock()).await.unwrap();
        assert!(next.token() > held.token());
        let error = held.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        next.release().await.unwrap();
    }
}

async fn a_waiter_whose_connection_the_server_ends_asks_again(system: System) {
    let place = Place::start(system, &[]).await;
    // Another user, whose connection is left alone.
    let root = format!("{}?mode=session", place.database.url("here"));
    let holder = Locks::connect(&root).await.unwrap();
    let locks = place.connect().await;
    let held = holder.mutex("x").lock().await.unwrap();
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    in_line(&holder, 1).await;
    for _ in 0..2 {
        end_connections(system, &place.database);
        in_line(&holder, 1).await;
    }
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

async fn connections_that_the_server_ends_all_the_time(system: System) {
    let place = Place::start(system, &[]).await;
    let locks = [place.connect().await, place.connect().await];
    let tokens = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let workers: Vec<_> = (0..6)
        .map(|at| {
            let (mutex, tokens) = (locks[at % 2].mutex("x"), Arc::clone(&tokens));
            tokio::spawn(async move {
                for _ in 0..15 {
                    let guard = mutex.lock().await.unwrap();
                    tokens.lock().unwrap().insert(guard.token());
                    let released = guard.release().await;
                    let told = matches!(
                        released,
                        Ok(()) | Err(Error::Unknown { .. } | Error::Lost { .. })
                    );
                    assert!(told, "{released:?}");
                }
            })
        })
        .collect();
    let all = futures_util::future::join_all(workers);
    tokio::pin!(all);
    let done = loop {
        tokio::select! {
            done = &mut all => break done,
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                let database = Arc::clone(&place.database);
                let kill = tokio::task::spawn_blocking(move || end_connections(system, &database));
                kill.await.unwrap();
            }
        }
    };
    for worker in done {
        worker.unwrap();
    }
    assert_eq!(tokens.lock().unwrap().len(), 6 * 15, "no token twice");
    eventually("nobody holds it", async || holders(&locks[0]).await == 0).await;
}

async fn a_restart_loses_what_is_held_and_keeps_who_waits(system: System) {
    let Place { database, url } = Place::start(system, &[]).await;
    let mut database = Arc::into_inner(database).unwrap();
    let connect = || Locks::connect(&url);
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    let held = locks.mutex("x").lock().await.unwrap();
    let mutex = other.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    in_line(&locks, 1).await;
    database.server.kill();
    assert_eq!(soon("told", held.lost()).await, Cause::Gone);
    database.server.start_again().await;
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.token() > held.token(), "tokens survive");
    assert_eq!(holders(&locks).await, 1);
    next.release().await.unwrap();
}

async fn a_lost_reply_to_a_session_leaves_no_orphan(system: System) {
    let place = Place::share(system, "alrtaslno").await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through().await;
    for _ in 0..3 {
        // Of the lock, of the row, or of the settings, whichever is next.
        proxy.lose_next_reply();
        let guard = soon("granted all the same", locks.mutex("x").lock()).await.unwrap();
        assert!(proxy.lost_a_reply());
        assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
        assert_eq!(holders(&direct).await, 1, "once");
        guard.release().await.unwrap();
        let next = soon("no orphan", direct.mutex("x").lock()).await.unwrap();
        next.release().await.unwrap();
    }
}

/// The network swallows the answer and forgets the connection: neither side hears that it has ended.
async fn a_grant_that_is_never_heard_of_is_undone(system: System) {
    let place = Place::share(system, "agtinhoiu").await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through().await;
    // A session and a connection for errands that are there already.
    let mutex = locks.lease(Duration::from_secs(600)).mutex("x");
    mutex.lock().await.unwrap().release().await.unwrap();
    proxy.delay(Way::Down, Duration::from_secs(600));
    let locking = tokio::spawn(async move { mutex.lock().await });
    let taken = async || direct.admin().show(&name("x")).await.unwrap().kind.is_some();
    eventually("granted", taken).await;
    proxy.silence();
    proxy.delay(Way::Down, Duration::ZERO);
    let guard = soon("asked again", locking).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A connection may be silent for long under a long lease; whoever releases it is told soon all the same.
async fn a_release_does_not_wait_for_a_sign_of_life(system: System) {
    let place = Place::share(system, "ardnwfasol").await;
    let (locks, proxy) = place.through().await;
    let held = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    proxy.freeze();
    // It is asked every second whether it is there. If not by now, there is less to wait for.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let since = Instant::now();
    let error = soon("an answer", held.release()).await.unwrap_err();
    let took = Instant::now().since(since);
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    proxy.pass();
    let next = soon("released after all", place.connect().await.mutex("x").lock()).await.unwrap();
    next.release().await.unwrap();
}

/// Cut after so many bytes, up and down.
async fn a_session_that_is_cut_at_any_point_leaves_nothing(system: System) {
    let place = Place::share(system, "asticaapln").await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through().await;
    let mut last = 0;
    for way in [Way::Up, Way::Down] {
        for bytes in [0, 1, 20, 60, 200, 400, 700, 1000, 1500] {
            proxy.cut_after(way, bytes);
            let mutex = locks.mutex("x");
            let locking = tokio::spawn(async move { mutex.lock().await });
            let cut = tokio::time::timeout(Duration::from_millis(100), async {
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
            drop(guard);
            let next = soon("nothing is left", direct.mutex("x").lock()).await.unwrap();
            next.release().await.unwrap();
        }
    }
}

async fn a_holder_that_is_cut_off_knows_before_others_are_granted(system: System) {
    let place = Place::share(system, "ahticokboag").await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through().await;
    let held = locks.ttl(Duration::from_secs(2)).mutex("x").lock().await.unwrap();
    let mutex = direct.mutex("x");
    let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
    in_line(&direct, 1).await;
    proxy.freeze();
    assert_eq!(soon("told", held.lost()).await, Cause::Expired);
    let told = Instant::now();
    assert!(!waiting.is_finished(), "not before");
    let (next, granted) = soon("free", waiting).await.unwrap();
    assert!(told < granted && next.token() > held.token());
    next.release().await.unwrap();
}

async fn a_waiter_that_gives_up_leaves_the_server_at_once(system: System) {
    let place = Place::share(system, "awtgultsao").await;
    let (holder, locks, third) =
        (place.connect().await, place.connect().await, place.connect().await);
    for direct in [false, true] {
        let held = holder.mutex("x").lock().await.unwrap();
        let locks = if direct { locks.lease(Duration::from_secs(60)) } else { locks.clone() };
        let mutex = locks.mutex("x");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        in_line(&holder, 1).await;
        waiting.abort();
        // Long before the server would have ended the wait by itself.
        let since = Instant::now();
        in_line(&holder, 0).await;
        assert!(Instant::now().since(since) < Duration::from_secs(2));
        held.release().await.unwrap();
        let next = third.mutex("x").try_lock().await.unwrap().expect("free at once");
        next.release().await.unwrap();
    }
}

async fn deadlines_hold_whatever_the_server_does(system: System) {
    let place = Place::share(system, "dhwtsd").await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through().await;
    let held = direct.mutex("x").lock().await.unwrap();
    for (millis, fixed) in [(300, false), (300, true), (1500, true)] {
        let wait = Duration::from_millis(millis);
        let locks = if fixed { locks.lease(Duration::from_secs(60)) } else { locks.clone() };
        let since = Instant::now();
        let error = locks.mutex("x").lock_timeout(wait).await.unwrap_err();
        let took = Instant::now().since(since);
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(took >= wait && took < wait + Duration::from_millis(700), "{took:?}");
    }
    proxy.freeze();
    for fixed in [false, true] {
        let locks = if fixed { locks.lease(Duration::from_secs(60)) } else { locks.clone() };
        let since = Instant::now();
        let error = locks.mutex("x").lock_timeout(Duration::from_millis(500)).await.unwrap_err();
        let took = Instant::now().since(since);
        assert!(took < Duration::from_millis(1500), "{took:?}: {error}");
    }
    held.release().await.unwrap();
}

/// The server may grant a lock and end the wait for it at the same moment.
async fn a_grant_at_the_deadline_leaves_nothing(system: System) {
    let place = Place::share(system, "agatdln").await;
    let (holder, waiter, third) =
        (place.connect().await, place.connect().await, place.connect().await);
    let (mut granted, mut late) = (0, 0);
    for round in 0_u64..150 {
        let held = holder.mutex("x").lock().await.unwrap();
        let direct = waiter.lease(Duration::from_secs(60)).mutex("x");
        let waiting =
            tokio::spawn(async move { direct.lock_timeout(Duration::from_millis(10)).await });
        // Around the end of the wait.
        tokio::time::sleep(Duration::from_micros(4_000 + round * 60)).await;
        held.release().await.unwrap();
        match soon("an answer", waiting).await.unwrap() {
            Ok(guard) => {
                granted += 1;
                guard.release().await.unwrap();
            }
            Err(_) => late += 1,
        }
        let since = Instant::now();
        let next = soon("nothing is left", third.mutex("x").lock()).await.unwrap();
        assert!(Instant::now().since(since) < Duration::from_secs(2), "round {round}");
        next.release().await.unwrap();
    }
    assert!(granted > 0 && late > 0, "{granted} {late}: not at the same moment");
}

async fn a_stopped_waiter_has_the_lock_for_seconds_only(system: System) {
    let place = Place::share(system, "aswhtlfso").await;
    let locks = place.connect().await;
    let held = locks.mutex("x").lock().await.unwrap();
    let mut other = Taker::spawn(&place.url).await;
    other.send("lock x");
    in_line(&locks, 1).await;
    other.stop();
    held.release().await.unwrap();
    // Granted to one who cannot take it, with 30 s to live.
    let since = Instant::now();
    let next = soon("after seconds", locks.mutex("x").lock()).await.unwrap();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(10), "{took:?}");
    other.go_on();
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(soon("asks again", other.granted()).await > token);
}

async fn who_does_not_hear_of_its_eviction_is_cut_off(system: System) {
    let place = Place::share(system, "wdnhoieico").await;
    let locks = place.connect().await;
    let mut other = Taker::spawn(&place.url).await;
    let token = other.token("lock x lease=600000").await;
    other.stop();
    let eviction = soon("evicted", locks.admin().evict(&name("x"), "stuck")).await.unwrap();
    assert!(eviction.token.get() > token && eviction.holders.len() == 1);
    let next = soon("free", locks.mutex("x").lock()).await.unwrap();
    assert!(next.token() > eviction.token);
    other.go_on();
    other.send("wait-lost");
    soon("told", other.answer()).await;
    next.release().await.unwrap();
}

async fn only_one_of_a_process_waits_at_the_server(system: System) {
    let place = Place::share(system, "oooapwats").await;
    let (holder, locks) = (place.connect().await, place.connect().await);
    let held = holder.mutex("x").lock().await.unwrap();
    let order = Arc::new(tokio::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for at in 0..12 {
        let mutex = locks.lease(Duration::from_secs(60)).mutex("x");
        let order = Arc::clone(&order);
        let mut task = Box::pin(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().await.push(at);
            guard.release().await.unwrap();
        });
        // In line before the next one comes.
        assert!(futures_util::poll!(task.as_mut()).is_pending());
        waiting.push(tokio::spawn(task));
    }
    // By another way, so that it tells what the server knows and not what this process knows besides.
    let (watcher, _proxy) = place.through().await;
    in_line(&watcher, 1).await;
    in_line(&holder, 12).await;
    held.release().await.unwrap();
    for task in waiting {
        soon("its turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().await, (0..12).collect::<Vec<_>>(), "in order of arrival");
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
