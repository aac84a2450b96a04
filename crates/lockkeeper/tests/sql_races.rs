//! What can come between two statements.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{Backend, Hold, Kind, Patience, Request, Term};
use lockkeeper::{Cause, Error, Locks, Name, RequestId};
use parking_lot::Mutex;
use testkit::database::{Database, System};
use testkit::proxy::{Proxy, Way};
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    those_granted_in_one_step_do_not_end_each_other
    a_slow_insert_gets_no_token_from_before_it_was_granted
    many_count_downs_in_one_step_count_once
    a_lost_reply_to_a_count_down_counts_once_even_if_the_latch_is_closed_again
    a_lost_reply_to_release_is_unknown_and_done_all_the_same
    a_lost_reply_to_an_eviction_is_unknown
    a_lost_reply_to_closing_a_latch_is_unknown
    a_request_that_arrives_after_the_release_leaves_nothing
    a_request_that_arrives_far_too_late_does_nothing
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
    behind_a_proxy(database, "").await
}

async fn behind_a_proxy(database: &Database, options: &str) -> (Locks, Proxy) {
    let proxy = Proxy::to(database.server.address()).await;
    let direct = database.server.address().to_string();
    let url = database.url("here").replace(&direct, &proxy.address().to_string());
    (Locks::connect(&format!("{url}{options}")).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A request of its own owner for `x`.
fn request(locks: &Locks, id: u8, kind: Kind, tokens: u32) -> Request {
    Request {
        name: name("x"),
        kind,
        owner: locks.new_owner(),
        id: RequestId::from_bytes([id; 16]),
        term: Term::Fixed(Duration::from_secs(60)),
        tokens,
        patience: Patience::Forever,
    }
}

async fn take(locks: &Locks, request: Request) -> Arc<dyn Hold> {
    let backend: Arc<dyn Backend> = Arc::clone(locks.backend());
    backend.acquire(request).await.unwrap().expect("patient")
}

/// Somebody's transaction that stays open until it is ended from outside.
struct Open(System, Child);

impl Open {
    async fn begin(system: System, database: &Database, sql: &str) -> Self {
        let port = database.server.address().port().to_string();
        let mut command = match system {
            System::Postgres => {
                let mut command = Command::new("psql");
                command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "here"]);
                command.arg("-c").arg(format!("BEGIN; {sql}; SELECT pg_sleep(61)"));
                command
            }
            System::MariaDb => {
                let mut command = Command::new("mariadb");
                command.args(["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-P", &port]);
                command.args(["-u", "root", "--database=here", "-e"]);
                command.arg(format!("BEGIN; {sql}; DO SLEEP(61)"));
                command
            }
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let sleeps = match system {
            System::Postgres => {
                "SELECT count(*) FROM pg_stat_activity \
                 WHERE query LIKE '%pg_sleep(61)' AND wait_event = 'PgSleep'"
            }
            System::MariaDb => {
                "SELECT count(*) FROM information_schema.processlist WHERE info = 'DO SLEEP(61)'"
            }
        };
        let begun = async || database.operator("here", sleeps) != "0";
        eventually("the transaction is open", begun).await;
        Self(system, child)
    }

    fn end(mut self, database: &Database) {
        match self.0 {
            System::Postgres => {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                           WHERE query LIKE '%pg_sleep(61)'";
                database.operator("here", sql);
            }
            System::MariaDb => {
                let sql = "SELECT id FROM information_schema.processlist \
                           WHERE info = 'DO SLEEP(61)'";
                for id in database.operator("here", sql).lines() {
                    database.operator("here", &format!("KILL {id}"));
                }
            }
        }
        self.1.wait().unwrap();
    }
}

/// How many statements of ours that begin like this are under way at the server.
fn under_way(system: System, database: &Database, sql: &str) -> usize {
    let sql = match system {
        System::Postgres => format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper' \
             AND state = 'active' AND query ~ '^[^(]*(AS \\()?{sql}'"
        ),
        System::MariaDb => {
            format!("SELECT count(*) FROM information_schema.processlist WHERE info LIKE '{sql}%'")
        }
    };
    database.operator("here", &sql).parse().unwrap()
}

/// All that a process asks of a name at a time is one step, and each of them may end at any time.
async fn those_granted_in_one_step_do_not_end_each_other(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    for kind in [Kind::Read, Kind::Permit { of: 2 }] {
        // A step is under way: those who come meanwhile are the next one.
        proxy.freeze();
        let x = name("x");
        let (_, first, second, ()) = tokio::join!(
            locks.admin().show(&x),
            take(&locks, request(&locks, 1, kind, 1)),
            take(&locks, request(&locks, 2, kind, 1)),
            async { proxy.pass() },
        );
        first.release().await.unwrap();
        let status = direct.admin().show(&x).await.unwrap();
        assert_eq!(status.holders.len(), 1, "{kind:?}");
        second.release().await.unwrap();
        assert!(direct.admin().show(&x).await.unwrap().kind.is_none());
    }
}

/// Somebody else locks and releases while an insert is held up between drawing its epoch and making
/// its row.
async fn a_slow_insert_gets_no_token_from_before_it_was_granted(system: System) {
    let database = start(system).await;
    let closed = match system {
        System::Postgres => {
            let sql = "CREATE TABLE gate (id BIGINT); CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       WHILE NEW.token = 1 AND NOT EXISTS (SELECT FROM gate) \
                       LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$; \
                       CREATE TRIGGER hold_up BEFORE INSERT ON lockkeeper_names \
                       FOR EACH ROW EXECUTE FUNCTION hold_up()";
            database.operator("here", sql);
            None
        }
        System::MariaDb => {
            // Who does not check what is in another table is not held up by it.
            let sql = "CREATE TABLE gate (name VARBINARY(510) PRIMARY KEY); \
                       INSERT INTO gate VALUES ('x'); \
                       ALTER TABLE lockkeeper_names ADD FOREIGN KEY (name) REFERENCES gate (name)";
            database.operator("here", sql);
            let closed = Open::begin(system, &database, "SELECT * FROM gate FOR UPDATE").await;
            Some(closed)
        }
    };
    // One connection, which checks: another one would be made later, and would not.
    let slow = Locks::connect(&format!("{}?pool=1", database.url("here"))).await.unwrap();
    if system == System::MariaDb {
        database.operator("here", "SET GLOBAL foreign_key_checks = 0");
    }
    let fast = connect(&database).await;
    let tokens: Arc<Mutex<Vec<u64>>> = Arc::default();
    let go = |locks: Locks, at: u8| {
        let tokens = Arc::clone(&tokens);
        tokio::spawn(async move {
            let hold = take(&locks, request(&locks, at, Kind::Mutex, at.into())).await;
            tokens.lock().push(hold.tokens().first().get());
            hold.release().await.unwrap();
        })
    };
    let inserts = || under_way(system, &database, "INSERT INTO lockkeeper_names");
    let slow = go(slow, 1);
    eventually("held up", async || inserts() == 1).await;
    let fast = go(fast, 2);
    eventually("done, or in line", async || fast.is_finished() || inserts() == 2).await;
    match closed {
        Some(closed) => closed.end(&database),
        None => {
            database.operator("here", "INSERT INTO gate VALUES (1)");
        }
    }
    soon("granted", slow).await.unwrap();
    soon("granted", fast).await.unwrap();
    let tokens = tokens.lock();
    assert!(tokens.len() == 2 && tokens.is_sorted(), "{tokens:?}");
}

/// A write that gives the row another epoch, and one that changes it at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_draws_another_epoch_loses_nobody() {
    let system = System::MariaDb;
    let database = system.start(&["--transaction-isolation=READ-COMMITTED"]).await;
    Locks::init(&database.url("here")).await.unwrap();
    // What is replaced is read before, and is held up then.
    let sql = "CREATE TABLE gate (id BIGINT PRIMARY KEY); INSERT INTO gate VALUES (1); \
               CREATE TRIGGER hold_up BEFORE INSERT ON lockkeeper_names FOR EACH ROW \
               IF NEW.version > 1 THEN \
               SET NEW.version = NEW.version + (SELECT 0 FROM gate WHERE id = 1 FOR UPDATE); END IF";
    database.operator("here", sql);
    let locks = [connect(&database).await, connect(&database).await];
    let _first = take(&locks[0], request(&locks[0], 1, Kind::Read, 8000)).await;
    let _first = take(&locks[0], request(&locks[0], 9, Kind::Read, 8000)).await;
    let closed = Open::begin(system, &database, "SELECT * FROM gate WHERE id = 1 FOR UPDATE").await;
    let go = |at: u8, tokens: u32| {
        let locks = locks[usize::from(at) - 2].clone();
        let request = request(&locks, at, Kind::Read, tokens);
        tokio::spawn(async move { take(&locks, request).await })
    };
    let second = go(2, 6000);
    let replaces = || under_way(system, &database, "REPLACE");
    eventually("held up", async || replaces() == 1).await;
    let third = go(3, 1);
    let updates = || under_way(system, &database, "UPDATE");
    eventually("done, or in line", async || third.is_finished() || updates() == 1).await;
    closed.end(&database);
    let _held = (soon("granted", second).await.unwrap(), soon("granted", third).await.unwrap());
    let status = locks[0].admin().show(&name("x")).await.unwrap();
    assert_eq!(status.holders.len(), 4);
}

/// Every statement must be committed by itself, whatever the server thinks is usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_commit_by_itself_is_told_to() {
    let database = System::MariaDb.start(&["--autocommit=0"]).await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let (locks, other) = (connect(&database).await, connect(&database).await);
    let held = locks.mutex("x").lock().await.unwrap();
    assert_eq!(database.operator("here", "SELECT count(*) FROM lockkeeper_names"), "1");
    assert!(soon("busy", other.mutex("x").try_lock()).await.unwrap().is_none());
    held.release().await.unwrap();
    let next = soon("free", other.mutex("x").lock()).await.unwrap();
    next.release().await.unwrap();
    assert_eq!(database.operator("here", "SELECT count(*) FROM lockkeeper_names"), "0");
}

/// The answer to all of them is lost.
async fn many_count_downs_in_one_step_count_once(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let latch = locks.latch("x");
    assert!(latch.close(100).await.unwrap());
    let lock = "SELECT * FROM lockkeeper_names FOR UPDATE";
    let open = Open::begin(system, &database, lock).await;
    proxy.freeze();
    let downs = futures_util::future::join_all((0..40).map(|_| latch.count_down()));
    let rest = async {
        proxy.pass();
        let updates = || under_way(system, &database, "UPDATE lockkeeper_names");
        eventually("held up", async || updates() == 1).await;
        proxy.cut_after(Way::Down, 0);
        open.end(&database);
        eventually("the answer is lost", async || proxy.is_cut()).await;
        proxy.pass();
    };
    let (_, counted, ()) = tokio::join!(latch.count(), downs, rest);
    counted.into_iter().for_each(|left| assert!(left.unwrap() >= 60));
    assert_eq!(latch.count().await.unwrap(), 60);
}

/// Holds a statement up at the server, lets it go, and loses its answer and everything after it.
async fn lose_the_answer(
    system: System,
    database: &Database,
    proxy: &Proxy,
    open: Open,
    statement: &str,
) {
    let held_up = || under_way(system, database, statement) == 1;
    eventually("held up", async || held_up()).await;
    proxy.cut_after(Way::Down, 0);
    open.end(database);
    eventually("the answer is lost", async || proxy.is_cut()).await;
}

fn rows(database: &Database) -> String {
    database.operator("here", "SELECT count(*) FROM lockkeeper_names")
}

const LOCK_ROW: &str = "SELECT * FROM lockkeeper_names FOR UPDATE";

async fn a_lost_reply_to_a_count_down_counts_once_even_if_the_latch_is_closed_again(
    system: System,
) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    let latch = locks.latch("x");
    assert!(latch.close(1).await.unwrap());
    let open = Open::begin(system, &database, LOCK_ROW).await;
    let rest = async {
        lose_the_answer(system, &database, &proxy, open, "DELETE FROM lockkeeper_names").await;
        eventually("open", async || direct.latch("x").count().await.unwrap() == 0).await;
        assert!(direct.latch("x").close(5).await.unwrap());
        proxy.pass();
    };
    let (left, ()) = tokio::join!(latch.count_down(), rest);
    assert_eq!(left.unwrap(), 0);
    assert_eq!(direct.latch("x").count().await.unwrap(), 5);
}

async fn a_lost_reply_to_release_is_unknown_and_done_all_the_same(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let open = Open::begin(system, &database, LOCK_ROW).await;
    let lose = lose_the_answer(system, &database, &proxy, open, "DELETE FROM lockkeeper_names");
    let (released, ()) = tokio::join!(guard.release(), lose);
    let error = released.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    eventually("released", async || rows(&database) == "0").await;
}

async fn a_lost_reply_to_an_eviction_is_unknown(system: System) {
    let database = start(system).await;
    let (locks, proxy) = through(&database).await;
    let guard = connect(&database).await.mutex("x").lock().await.unwrap();
    let open = Open::begin(system, &database, LOCK_ROW).await;
    let lose = lose_the_answer(system, &database, &proxy, open, "UPDATE lockkeeper_names");
    let x = name("x");
    let (evicted, ()) = tokio::join!(locks.admin().evict(&x, "stuck"), lose);
    let error = evicted.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
    // A server that was not reached at all has not done it.
    let error = locks.admin().evict(&x, "stuck").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

async fn a_lost_reply_to_closing_a_latch_is_unknown(system: System) {
    let database = start(system).await;
    let direct = connect(&database).await;
    let (locks, proxy) = through(&database).await;
    let insert = "INSERT INTO lockkeeper_names (name, version, token, ends, state) \
                  VALUES ('x', 1, 1, 1, '')";
    let latch = locks.latch("x");
    let open = Open::begin(system, &database, insert).await;
    let lose = lose_the_answer(system, &database, &proxy, open, "INSERT INTO lockkeeper_names");
    let (closed, ()) = tokio::join!(latch.close(3), lose);
    let error = closed.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert!(direct.latch("x").count().await.unwrap() == 3);
    let error = latch.close(3).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// Counts the rows that are made.
fn count_inserts(system: System, database: &Database) {
    let sql = match system {
        System::Postgres => {
            "CREATE TABLE made (id BIGINT); \
             CREATE FUNCTION count_made() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO made VALUES (1); RETURN NEW; END $$; \
             CREATE TRIGGER count AFTER INSERT ON lockkeeper_names \
             FOR EACH ROW EXECUTE FUNCTION count_made()"
        }
        System::MariaDb => {
            "CREATE TABLE made (id BIGINT); CREATE TRIGGER count AFTER INSERT \
             ON lockkeeper_names FOR EACH ROW INSERT INTO made VALUES (1)"
        }
    };
    database.operator("here", sql);
}

fn inserts(database: &Database) -> u64 {
    database.operator("here", "SELECT count(*) FROM made").parse().unwrap()
}

/// How many statements with this in it the server was sent.
fn sent(system: System, database: &Database, what: &str) -> usize {
    match system {
        System::Postgres => database.server.log().matches(what).count(),
        System::MariaDb => {
            let sql = format!(
                "SELECT count(*) FROM mysql.general_log WHERE user_host LIKE 'root%' \
                 AND argument LIKE '%{what}%' AND argument NOT LIKE '%general_log%'"
            );
            database.operator("here", &sql).parse().unwrap()
        }
    }
}

const INSERT: &str = "INSERT INTO lockkeeper_names (name";

/// A client whose first insert is on a connection that has gone silent, and that has released the lock
/// all the same.
async fn with_an_insert_under_way(system: System) -> (Database, Locks, Proxy) {
    let database = system
        .start(match system {
            System::Postgres => &["-clog_statement=all"],
            System::MariaDb => &["--general-log", "--log-output=TABLE"],
        })
        .await;
    Locks::init(&database.url("here")).await.unwrap();
    count_inserts(system, &database);
    let (locks, proxy) = behind_a_proxy(&database, "?pool=1").await;
    // The one connection knows the statement: else only the question for it would be held up, and never become an insert.
    // PostgreSQL is asked by name once it is known to be no pooler.
    eventually("it is prepared", async || {
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        let log = database.server.log();
        let named = |line: &str| line.contains("execute sqlx_s_") && line.contains(INSERT);
        let prepared = system == System::MariaDb
            || log.lines().any(named) && sent(system, &database, "echo-") > 0;
        // And nothing else is the first to be sent on it.
        prepared && sent(system, &database, "WHERE ends < ") > 0
    })
    .await;
    let before = inserts(&database);
    proxy.silence();
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!((inserts(&database), rows(&database)), (before + 1, "0".into()));
    (database, locks, proxy)
}

async fn a_request_that_arrives_after_the_release_leaves_nothing(system: System) {
    let (database, _locks, proxy) = with_an_insert_under_way(system).await;
    let before = inserts(&database);
    proxy.pass();
    eventually("arrives", async || inserts(&database) == before + 1).await;
    eventually("undone", async || rows(&database) == "0").await;
}

/// Later than anybody looks for it.
async fn a_request_that_arrives_far_too_late_does_nothing(system: System) {
    let (database, _locks, proxy) = with_an_insert_under_way(system).await;
    let (before, made) = (sent(system, &database, INSERT), inserts(&database));
    tokio::time::sleep(Duration::from_secs(12)).await;
    proxy.pass();
    eventually("arrives", async || sent(system, &database, INSERT) > before).await;
    // Whatever it does, it does at once.
    let next = connect(&database).await.mutex("x").lock().await.unwrap();
    next.release().await.unwrap();
    assert_eq!((inserts(&database), rows(&database)), (made + 1, "0".into()));
}
