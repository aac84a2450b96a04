//! What a server has to offer to locks that live with a connection, and what is refused.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Command, Stdio};

use lockkeeper::{Cause, Error, Locks, Name};
use testkit::database::{self, Database, Place, System};
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    more_locks_than_connections_is_an_error_that_says_so
    no_connection_left_is_an_error_that_says_so
    tokens_grow_from_one_mode_to_the_other
    rows_of_dead_sessions_are_deleted
    names_are_hashed_and_never_confused
    few_rights_are_enough_for_sessions
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

async fn more_locks_than_connections_is_an_error_that_says_so(system: System) {
    let place = Place::share(system, "mltciaetss").await;
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
    let place = Place::start(system, few).await;
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
    let place = Place::share(system, "tgfomtto").await;
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
    let place = Place::start(system, &[]).await;
    let mut dead = Taker::spawn(&place.url).await;
    dead.token("lock x").await;
    let rows = || place.database.operator("here", "SELECT count(*) FROM lockkeeper_names");
    assert_eq!(rows(), "1");
    dead.kill();
    // Of somebody who died while a token was drawn, which leaves a row for a moment.
    let name = if system == System::Postgres { r"'\x0001'" } else { "x'0001'" };
    let sql = format!(
        "INSERT INTO lockkeeper_names (name, version, clock, token, ends, state) \
         VALUES ({name}, 1, 1, 0, 1, '{{}}')"
    );
    place.database.operator("here", &sql);
    let locks = place.connect().await;
    eventually("deleted by those who come later", async || {
        locks.admin().list().await.unwrap();
        rows() == "0"
    })
    .await;
}

async fn names_are_hashed_and_never_confused(system: System) {
    let place = Place::share(system, "nahanc").await;
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
    let place = Place::start(system, &[]).await;
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
    let Place { database: server, .. } = Place::start(System::Postgres, &[]).await;
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

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
