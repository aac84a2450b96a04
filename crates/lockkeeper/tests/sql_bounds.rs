//! What one client, row or connection may cost the others: time, within bounds.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks, Name};
use testkit::database::{Database, System};
use testkit::proxy::Proxy;
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    the_wait_for_a_connection_is_bounded
    connections_that_have_all_gone_silent_cost_one_answer
    a_hold_is_renewed_while_everything_else_is_held_up
    a_row_that_somebody_has_locked_holds_up_no_other
    a_request_that_nobody_waits_for_is_over_at_the_server_as_well
    a_runtime_that_has_ended_is_an_error
    the_settings_of_a_server_do_not_matter
    nothing_stays_behind_when_all_is_dropped
}

async fn start(system: System) -> Database {
    let database = system.start(&[]).await;
    Locks::init(&database.url("here")).await.unwrap();
    database
}

async fn connect(database: &Database) -> Locks {
    Locks::connect(&database.url("here")).await.unwrap()
}

/// A client behind a proxy, with so many connections.
async fn through(database: &Database, pool: usize) -> (Locks, Proxy) {
    let proxy = Proxy::to(database.server.address()).await;
    let direct = database.server.address().to_string();
    let url = database.url("here").replace(&direct, &proxy.address().to_string());
    (Locks::connect(&format!("{url}?pool={pool}")).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Looks at so many names at the same time.
async fn look(locks: &Locks, names: usize) -> Vec<Result<(), Error>> {
    let looks =
        (0..names).map(async |at| locks.admin().show(&name(&format!("look/{at}"))).await.map(drop));
    futures_util::future::join_all(looks).await
}

async fn the_wait_for_a_connection_is_bounded(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database, 1).await;
    proxy.freeze();
    let since = Instant::now();
    let looks = look(&locks, 10).await;
    let took = Instant::now().since(since);
    assert!(looks.iter().all(Result::is_err));
    assert!(took < Duration::from_secs(12), "{took:?}");
}

/// A machine in between has forgotten them.
async fn connections_that_have_all_gone_silent_cost_one_answer(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database, 8).await;
    proxy.freeze();
    // As many as there may be.
    let (looks, ()) = tokio::join!(look(&locks, 8), async {
        tokio::task::yield_now().await;
        proxy.pass();
    });
    looks.into_iter().for_each(|look| look.unwrap());
    proxy.silence();
    let guard = soon("through another one", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// Somebody's transaction that stays open until the server ends.
async fn lock_rows(system: System, database: &Database, names: &[String]) -> Child {
    let port = database.server.address().port().to_string();
    // One by one: a look at several may lock what it only passes.
    let row = |name: &String| format!("SELECT 1 FROM lockkeeper_names WHERE name = '{name}'");
    let rows: Vec<String> = names.iter().map(|name| format!("{} FOR UPDATE", row(name))).collect();
    let lock = format!("BEGIN; {}", rows.join("; "));
    let mut command = match system {
        System::Postgres => {
            let mut command = Command::new("psql");
            command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "here"]);
            command.arg("-c").arg(format!("{lock}; SELECT pg_sleep(61)"));
            command
        }
        System::MariaDb => {
            let mut command = Command::new("mariadb");
            command.args(["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-P", &port]);
            command.args(["-u", "root", "--database=here", "-e"]);
            command.arg(format!("{lock}; DO SLEEP(61)"));
            command
        }
    };
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let free = format!("{} FOR UPDATE SKIP LOCKED", row(names.last().unwrap()));
    eventually("locked", async || database.operator("here", &free).is_empty()).await;
    child
}

/// By rows that somebody has locked.
async fn a_hold_is_renewed_while_everything_else_is_held_up(system: System) {
    let database = start(system).await;
    let other = connect(&database).await;
    let mut held = Vec::new();
    for at in 0..16 {
        held.push(other.mutex(format!("held/{at}")).lock().await.unwrap());
    }
    let url = format!("{}?pool=2", database.url("here"));
    let locks = Locks::connect(&url).await.unwrap();
    let mine = locks.ttl(Duration::from_secs(6)).mutex("mine").lock().await.unwrap();
    let others: Vec<String> = (0..16).map(|at| format!("held/{at}")).collect();
    let mut locked = lock_rows(system, &database, &others).await;
    for at in 0..16 {
        let mutex = locks.mutex(format!("held/{at}")).fair();
        tokio::spawn(async move { mutex.lock().await.map(drop) });
    }
    let lost = tokio::time::timeout(Duration::from_secs(12), mine.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    mine.release().await.unwrap();
    locked.kill().unwrap();
    locked.wait().unwrap();
}

/// Not even when somebody cleans up.
async fn a_row_that_somebody_has_locked_holds_up_no_other(system: System) {
    let database = start(system).await;
    let locks = connect(&database).await;
    let before = locks.lease(Duration::from_secs(60)).mutex("a").lock().await.unwrap();
    let between = locks.mutex("b").lock().await.unwrap();
    let after = locks.lease(Duration::from_secs(60)).mutex("c").lock().await.unwrap();
    let mut locked = lock_rows(system, &database, &["b".into()]).await;
    // Each deletes what has expired when it comes.
    let _others = (connect(&database).await, connect(&database).await);
    for _ in 0..20 {
        for guard in [&before, &after] {
            let since = Instant::now();
            guard.renew(Duration::from_secs(60)).await.unwrap();
            let took = Instant::now().since(since);
            assert!(took < Duration::from_secs(1), "{took:?}");
        }
    }
    locked.kill().unwrap();
    locked.wait().unwrap();
    drop(between);
}

/// One that waits for somebody's transaction.
async fn a_request_that_nobody_waits_for_is_over_at_the_server_as_well(system: System) {
    let database = start(system).await;
    let held = connect(&database).await.rw_lock("x").read().await.unwrap();
    let locks = connect(&database).await;
    let mut locked = lock_rows(system, &database, &["x".into()]).await;
    let updates = || {
        let sql = match system {
            System::Postgres => {
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' \
                 AND query LIKE 'UPDATE lockkeeper_names%'"
            }
            System::MariaDb => {
                "SELECT count(*) FROM information_schema.processlist \
                 WHERE info LIKE 'UPDATE lockkeeper_names%'"
            }
        };
        database.operator("here", sql)
    };
    let reading = locks.rw_lock("x");
    let reading = tokio::spawn(async move { reading.read().await });
    eventually("waits", async || updates() == "1").await;
    reading.abort();
    drop((locks, held));
    eventually("over", async || updates() == "0").await;
    assert!(locked.try_wait().unwrap().is_none(), "still locked");
    locked.kill().unwrap();
    locked.wait().unwrap();
}

/// The one that the locks were opened in.
async fn a_runtime_that_has_ended_is_an_error(system: System) {
    let database = start(system).await;
    let url = database.url("here");
    let open = move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let locks = runtime.block_on(async { Locks::connect(&url).await.unwrap() });
        runtime.shutdown_background();
        locks
    };
    let locks = std::thread::spawn(open).join().unwrap();
    for _ in 0..3 {
        let error = soon("an error", locks.mutex("x").try_lock()).await.unwrap_err();
        assert!(error.to_string().contains("runtime"), "{error}");
        soon("an error", locks.rw_lock("x").read()).await.unwrap_err();
    }
}

async fn the_settings_of_a_server_do_not_matter(system: System) {
    let database = start(system).await;
    let settings: &[&str] = match system {
        System::Postgres => &[
            "ALTER DATABASE here SET bytea_output = 'escape'",
            "ALTER DATABASE here SET standard_conforming_strings = off",
            "ALTER DATABASE here SET datestyle = 'German'",
            "ALTER DATABASE here SET timezone = 'Pacific/Apia'",
            "ALTER DATABASE here SET lock_timeout = '1ms'",
            "ALTER DATABASE here SET plan_cache_mode = 'force_generic_plan'",
            "ALTER DATABASE here SET default_transaction_deferrable = on",
        ],
        System::MariaDb => &[
            "SET GLOBAL sql_mode = 'ANSI,ORACLE,NO_BACKSLASH_ESCAPES,EMPTY_STRING_IS_NULL'",
            "SET GLOBAL time_zone = '+13:00'",
            "SET GLOBAL sql_safe_updates = 1",
            "SET GLOBAL completion_type = 1",
            "SET GLOBAL auto_increment_increment = 3",
            "SET GLOBAL collation_connection = 'utf8mb4_turkish_ci'",
        ],
    };
    for sql in settings {
        database.operator("here", sql);
    }
    let (locks, other) = (connect(&database).await, connect(&database).await);
    let held = locks.mutex("x").lock().await.unwrap();
    let mutex = other.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let in_line = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line", in_line).await;
    assert_eq!(other.admin().list().await.unwrap().len(), 1);
    let token = held.token();
    let evicted = other.admin().evict(&name("x"), "enough").await.unwrap();
    assert!(evicted.token > token);
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.token() > evicted.token);
    soon("told", held.lost()).await;
    next.release().await.unwrap();
    assert!(locks.latch("y").close(1).await.unwrap());
    assert_eq!(other.latch("y").count_down().await.unwrap(), 0);
}

/// Neither a connection nor a row, whoever waited and whatever was held.
async fn nothing_stays_behind_when_all_is_dropped(system: System) {
    let database = start(system).await;
    let sql = match system {
        System::Postgres => {
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'"
        }
        System::MariaDb => {
            "SELECT count(*) - 1 FROM information_schema.processlist WHERE user = 'root'"
        }
    };
    let connections = || database.operator("here", sql);
    let (locks, other) = (connect(&database).await, connect(&database).await);
    let held = locks.mutex("x").lock().await.unwrap();
    assert!(locks.latch("y").close(1).await.unwrap());
    let mut waiting = Vec::new();
    for fair in [false, true] {
        let mutex = other.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        waiting.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
        let latch = other.latch("y");
        waiting.push(tokio::spawn(async move { latch.wait().await }));
    }
    let in_line = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 2;
    eventually("in line", in_line).await;
    assert_ne!(connections(), "0");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop((locks, other, held));
    eventually("no connection", async || connections() == "0").await;
    let names = "SELECT count(*) FROM lockkeeper_names WHERE name <> 'y'";
    assert_eq!(database.operator("here", names), "0");
}

/// One that was the primary, to which a connection is still open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_server_that_became_read_only_is_not_kept() {
    let database = start(System::Postgres).await;
    database.operator("here", "CREATE USER app SUPERUSER");
    database.operator("here", "ALTER USER app SET default_transaction_read_only = on");
    let locks = Locks::connect(&database.url_of("app", "here")).await.unwrap();
    let error = soon("refused", locks.mutex("x").lock()).await.unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    database.operator("here", "ALTER USER app RESET default_transaction_read_only");
    soon("the new one", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}
