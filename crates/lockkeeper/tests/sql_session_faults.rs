//! What can go wrong with locks that live with a connection.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::database::{self, Database, System};
use testkit::proxy::{Proxy, Way};
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};

/// Each case on both systems.
macro_rules! on_both {
    ($($case:ident)+) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(testkit::database::System::Postgres).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(testkit::database::System::MariaDb).await;
            })+
        }
    };
}

on_both! {
    a_connection_that_the_server_ends_is_a_loss_at_once
    a_waiter_whose_connection_the_server_ends_asks_again
    connections_that_the_server_ends_all_the_time
    a_restart_loses_what_is_held_and_keeps_who_waits
    a_lost_reply_to_a_session_leaves_no_orphan
    a_session_that_is_cut_at_any_point_leaves_nothing
    a_holder_that_is_cut_off_knows_before_others_are_granted
    a_waiter_that_gives_up_leaves_the_server_at_once
    deadlines_hold_whatever_the_server_does
    a_grant_at_the_deadline_leaves_nothing
    a_stopped_waiter_has_the_lock_for_seconds_only
    who_does_not_hear_of_its_eviction_is_cut_off
    only_one_of_a_process_waits_at_the_server
    more_locks_than_connections_is_an_error_that_says_so
    no_connection_left_is_an_error_that_says_so
    tokens_grow_from_one_mode_to_the_other
    rows_of_dead_sessions_are_deleted
    names_are_hashed_and_never_confused
    few_rights_are_enough_for_sessions
}

async fn start_with(system: System, arguments: &[&str]) -> Database {
    let database = system.start(arguments).await;
    Locks::init(&database.url("here")).await.unwrap();
    let rights = match system {
        System::Postgres => {
            "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON lockkeeper_names TO app; \
             GRANT SELECT, UPDATE ON lockkeeper_meta TO app"
        }
        System::MariaDb => {
            "CREATE USER app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON here.lockkeeper_names TO app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON here.lockkeeper_rows TO app; \
             GRANT SELECT, UPDATE ON here.lockkeeper_meta TO app"
        }
    };
    database.operator("here", rights);
    database
}

/// A server, and the URL of our locks there.
struct Place {
    database: Arc<Database>,
    url: String,
}

impl Place {
    fn new(database: Database) -> Self {
        let url = format!("{}?mode=session", database.url_of("app", "here"));
        Self { database: Arc::new(database), url }
    }

    async fn connect(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// A client behind a proxy.
    async fn through(&self) -> (Locks, Proxy) {
        let proxy = Proxy::to(self.database.server.address()).await;
        let direct = self.database.server.address().to_string();
        let url = self.url.replace(&direct, &proxy.address().to_string());
        (Locks::connect(&url).await.unwrap(), proxy)
    }
}

/// A server of its own, with a user of few rights.
async fn start(system: System) -> Place {
    Place::new(start_with(system, &[]).await)
}

/// The server that all have in common who do it no harm.
async fn share(system: System, prefix: &str) -> Place {
    let database = system.shared().await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    Place { database, url: format!("{url}?mode=session&prefix={prefix}/") }
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

/// The whole error, with its sources.
fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

async fn a_connection_that_the_server_ends_is_a_loss_at_once(system: System) {
    let place = start(system).await;
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
    let place = start(system).await;
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
    let place = start(system).await;
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
    let mut database = start_with(system, &[]).await;
    let url = format!("{}?mode=session", database.url_of("app", "here"));
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
    let place = share(system, "alrtaslno").await;
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

/// Cut after so many bytes, up and down.
async fn a_session_that_is_cut_at_any_point_leaves_nothing(system: System) {
    let place = share(system, "asticaapln").await;
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
    let place = share(system, "ahticokboag").await;
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
    let place = share(system, "awtgultsao").await;
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
    let place = share(system, "dhwtsd").await;
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
    let place = share(system, "agatdln").await;
    let (holder, waiter, third) =
        (place.connect().await, place.connect().await, place.connect().await);
    let (mut granted, mut late) = (0, 0);
    for round in 0_u64..150 {
        let held = holder.mutex("x").lock().await.unwrap();
        let direct = waiter.lease(Duration::from_secs(60)).mutex("x");
        let waiting =
            tokio::spawn(async move { direct.lock_timeout(Duration::from_millis(10)).await });
        // Around the end of the wait.
        tokio::time::sleep(Duration::from_micros(9_000 + round * 20)).await;
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
    let place = share(system, "aswhtlfso").await;
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
    let place = share(system, "wdnhoieico").await;
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
    let place = share(system, "oooapwats").await;
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
    in_line(&holder, 1).await;
    held.release().await.unwrap();
    for task in waiting {
        soon("its turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().await, (0..12).collect::<Vec<_>>(), "in order of arrival");
}

async fn more_locks_than_connections_is_an_error_that_says_so(system: System) {
    let place = share(system, "mltciaetss").await;
    let locks = Locks::connect(&format!("{}&pool=2", place.url)).await.unwrap();
    let held = [locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap()];
    let error = soon("refused", locks.mutex("c").lock()).await.unwrap_err();
    assert!(error.to_string().contains("raise pool="), "{error}");
    for guard in held {
        guard.release().await.unwrap();
    }
    locks.mutex("c").lock().await.unwrap().release().await.unwrap();
}

/// An operator's session that is busy for so long.
fn busy(system: System, database: &Database, sql: &str) -> Child {
    let port = database.server.address().port().to_string();
    let mut command = match system {
        System::Postgres => {
            let mut command = Command::new("psql");
            command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "here", "-c"]);
            command
        }
        System::MariaDb => {
            let mut command = Command::new("mariadb");
            command.args(["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-P", &port]);
            command.args(["-u", "root", "--database=here", "-e"]);
            command
        }
    };
    command.arg(sql).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn no_connection_left_is_an_error_that_says_so(system: System) {
    let few: &[&str] = match system {
        System::Postgres => {
            &["-cmax_connections=12", "-csuperuser_reserved_connections=1", "-cmax_wal_senders=0"]
        }
        System::MariaDb => &["--max-connections=12"],
    };
    let place = Place::new(start_with(system, few).await);
    let locks = place.connect().await;
    let mut held = Vec::new();
    let error = loop {
        match locks.mutex(format!("x{}", held.len())).lock().await {
            Ok(guard) => held.push(guard),
            Err(error) => break text(&error),
        }
        assert!(held.len() < 12, "more than there are");
    };
    assert!(error.contains("max_connections"), "{error}");
    assert!(held.iter().all(|guard| !guard.is_lost()), "who has one keeps it");
    held.pop().unwrap().release().await.unwrap();
    locks.mutex("y").lock().await.unwrap().release().await.unwrap();
}

async fn tokens_grow_from_one_mode_to_the_other(system: System) {
    let place = share(system, "tgfomtto").await;
    let lease = Locks::connect(&place.url.replace("mode=session&", "")).await.unwrap();
    let session = place.connect().await;
    let mut last = 0;
    for _ in 0..3 {
        for locks in [&lease, &session] {
            let guard = locks.mutex("x").lock().await.unwrap();
            assert!(guard.token().get() > last, "{} after {last}", guard.token());
            last = guard.token().get();
            guard.release().await.unwrap();
        }
    }
    let held = session.mutex("x").lock().await.unwrap();
    assert!(lease.admin().list().await.unwrap().is_empty(), "it knows nothing of the others");
    held.release().await.unwrap();
}

async fn rows_of_dead_sessions_are_deleted(system: System) {
    let place = start(system).await;
    let mut dead = Taker::spawn(&place.url).await;
    dead.token("lock x").await;
    let rows = || place.database.operator("here", "SELECT count(*) FROM lockkeeper_names");
    assert_eq!(rows(), "1");
    dead.kill();
    let locks = place.connect().await;
    eventually("deleted by those who come later", async || {
        locks.admin().list().await.unwrap();
        rows() == "0"
    })
    .await;
}

async fn names_are_hashed_and_never_confused(system: System) {
    let place = share(system, "nahanc").await;
    let prefix = "p".repeat(200);
    let more = format!("{}{prefix}&pool=30", place.url);
    let locks = Locks::connect(&more).await.unwrap();
    let long = "n".repeat(255);
    let longer = format!("{}o", &long[..254]);
    let names = ["a", "A", "ä", "a\u{308}", "é", "e", "ß", "ss", &long, &longer];
    let mut held = Vec::new();
    for name in names {
        held.push(locks.mutex(name).try_lock().await.unwrap().expect(name));
    }
    assert_eq!(locks.admin().list().await.unwrap().len(), names.len());
    for guard in held {
        guard.release().await.unwrap();
    }
    // Somebody else who has the same number: in the way, and not one of ours.
    let (take, held) = match system {
        System::Postgres => (
            "SELECT pg_advisory_lock(('x' || left(encode(sha256('lockkeeper:nahanc/x'), 'hex'), \
             16))::bit(64)::bigint), pg_sleep(60)",
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
             WHERE locktype = 'advisory' AND granted AND application_name = 'psql'",
        ),
        System::MariaDb => (
            "SELECT GET_LOCK(SHA2(CONCAT('here', x'00', 'lockkeeper:nahanc/x'), 256), 0), SLEEP(60)",
            "SELECT IS_USED_LOCK(SHA2(CONCAT('here', x'00', 'lockkeeper:nahanc/x'), 256)) > 0",
        ),
    };
    let locks = place.connect().await;
    let mut stranger = busy(system, &place.database, take);
    eventually("taken", async || place.database.operator("here", held) == "1").await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(holders(&locks).await, 0, "nobody whom we know");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

async fn few_rights_are_enough_for_sessions(system: System) {
    let place = start(system).await;
    let (one, two) = (place.connect().await, place.connect().await);
    let held = one.mutex("x").lock().await.unwrap();
    let mutex = two.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    in_line(&one, 1).await;
    let eviction = two.admin().evict(&name("x"), "enough").await.unwrap();
    assert_eq!(eviction.holders, [held.owner().clone()]);
    assert_eq!(held.lost().await, Cause::Evicted("enough".into()));
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_lends_connections_is_refused_and_another_is_not() {
    let server = start_with(System::Postgres, &[]).await;
    let direct = server.server.address().to_string();
    let url = format!("{}?mode=session", server.url("here"));
    let lending = database::pgbouncer(&server).await;
    for _ in 0..3 {
        let error = Locks::connect(&url.replace(&direct, &lending.address().to_string())).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("directly") && error.contains("mode=lease"), "{error}");
    }
    let keeping = database::pgbouncer_in("session", &server).await;
    let pooled = Locks::connect(&url.replace(&direct, &keeping.address().to_string())).await;
    let (pooled, direct) = (pooled.unwrap(), Locks::connect(&url).await.unwrap());
    let held = pooled.mutex("x").lock().await.unwrap();
    assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
    let mutex = direct.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    in_line(&direct, 1).await;
    // The pooler's connection is the one that counts.
    end_connections_of_postgres(&server);
    assert_eq!(soon("told", held.lost()).await, Cause::Gone);
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// Those that hold something.
fn end_connections_of_postgres(database: &Database) {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
               WHERE locktype = 'advisory' AND granted";
    database.operator("here", sql);
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
