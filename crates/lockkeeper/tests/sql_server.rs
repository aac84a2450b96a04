//! What a database refuses, and what it is busy with.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{Backend, Hold, Kind, Patience, Request, Term};
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks, Name, RequestId};
use testkit::database::{Database, System};
use testkit::wait::{eventually, soon};

testkit::on_both_databases! {
    tables_that_are_missing_or_newer_are_refused
    tables_are_made_once_by_however_many
    a_user_with_few_rights_is_enough
    refusals_say_what_to_do_and_no_password
    a_server_that_is_read_only_says_so
    a_server_without_a_free_connection_says_so
    victims_of_conflicts_try_again
    every_isolation_level_will_do
    a_statement_that_the_server_gives_up_is_tried_again
    tokens_grow_when_a_row_has_used_its_epoch_up
    rows_of_the_dead_are_purged
    a_row_that_cannot_be_read_hides_no_other
    names_that_differ_in_case_or_in_spaces_are_different_locks
    who_waits_asks_seldom
    a_free_lock_takes_one_statement_and_its_release_another
}

async fn start(system: System) -> Database {
    let database = system.start(&[]).await;
    Locks::init(&database.url("here")).await.unwrap();
    database
}

async fn connect(database: &Database) -> Locks {
    Locks::connect(&database.url("here")).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
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

async fn refused(url: &str) -> String {
    text(&soon("refused", Locks::connect(url)).await.unwrap_err())
}

async fn tables_that_are_missing_or_newer_are_refused(system: System) {
    let database = system.start(&[]).await;
    let url = database.url("here");
    let error = refused(&url).await;
    assert!(error.contains("lockkeeper init --url"), "{error}");
    Locks::init(&url).await.unwrap();
    drop(connect(&database).await);
    database.operator("here", "UPDATE lockkeeper_meta SET version = 2");
    let error = refused(&url).await;
    assert!(error.contains("version 2") && error.contains("upgrade"), "{error}");
    let error = text(&Locks::init(&url).await.unwrap_err());
    assert!(error.contains("version 2") && error.contains("upgrade"), "{error}");
}

async fn tables_are_made_once_by_however_many(system: System) {
    let database = system.start(&[]).await;
    let url = database.url("here");
    let all = futures_util::future::join_all((0..8).map(|_| Locks::init(&url))).await;
    all.into_iter().for_each(|made| made.unwrap());
    let held = connect(&database).await.mutex("x").lock().await.unwrap();
    Locks::init(&url).await.unwrap();
    assert_eq!(connect(&database).await.admin().list().await.unwrap().len(), 1, "nothing is lost");
    held.release().await.unwrap();
}

/// A user who may do what docs/OPERATIONS.md says.
fn make_user(system: System, database: &Database) {
    let sql = match system {
        System::Postgres => {
            "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON lockkeeper_names TO app; \
             GRANT SELECT, UPDATE ON lockkeeper_meta TO app"
        }
        System::MariaDb => {
            "CREATE USER app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON here.lockkeeper_names TO app; \
             GRANT SELECT, UPDATE ON here.lockkeeper_meta TO app; \
             GRANT SELECT, UPDATE ON here.lockkeeper_turns TO app"
        }
    };
    database.operator("here", sql);
}

async fn a_user_with_few_rights_is_enough(system: System) {
    let database = start(system).await;
    make_user(system, &database);
    let url = database.url_of("app", "here");
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    for fair in [false, true] {
        let held = locks.mutex("x").lock().await.unwrap();
        let mutex = other.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        held.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    drop(locks.mutex("y").lock().await.unwrap());
    locks.admin().evict(&name("y"), "why not").await.unwrap();
    use_an_epoch_up(&locks).await;
    let take = match system {
        System::Postgres => "REVOKE INSERT ON lockkeeper_names FROM app",
        System::MariaDb => "REVOKE INSERT ON here.lockkeeper_names FROM app",
    };
    database.operator("here", take);
    let error = text(&soon("refused", locks.mutex("z").lock()).await.unwrap_err());
    assert!(error.contains("may not do that") && error.contains("OPERATIONS"), "{error}");
}

async fn refusals_say_what_to_do_and_no_password(system: System) {
    let database = start(system).await;
    match system {
        System::Postgres => {
            let rules =
                "host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
            std::fs::write(database.server.dir().join("data/pg_hba.conf"), rules).unwrap();
            database.operator("here", "SELECT pg_reload_conf()");
            database.operator("here", "CREATE USER app SUPERUSER PASSWORD 's3cret'");
        }
        System::MariaDb => {
            let sql = "CREATE USER app IDENTIFIED BY 's3cret'; GRANT ALL ON here.* TO app";
            database.operator("here", sql);
        }
    }
    let wrong = database.url_of("app:wr0ng", "here");
    let wrong_password = async || {
        let error = refused(&wrong).await;
        assert!(!error.contains("wr0ng"), "{error}");
        error.contains("wrong user or password")
    };
    eventually("a wrong password", wrong_password).await;
    let locks = Locks::connect(&database.url_of("app:s3cret", "here")).await.unwrap();
    assert!(!format!("{locks:?} {:?}", locks.backend()).contains("s3cret"));
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    // A busy machine may take longer for a password than a connection may take.
    let nowhere = async || {
        let error = refused(&database.url_of("app:s3cret", "nowhere")).await;
        assert!(!error.contains("s3cret"), "{error}");
        error.contains("no such database")
    };
    eventually("no such database", nowhere).await;
}

async fn a_server_that_is_read_only_says_so(system: System) {
    let database = start(system).await;
    make_user(system, &database);
    database.operator(
        "here",
        match system {
            System::Postgres => "ALTER USER app SET default_transaction_read_only = on",
            System::MariaDb => "SET GLOBAL read_only = 1",
        },
    );
    let locks = Locks::connect(&database.url_of("app", "here")).await.unwrap();
    let error = text(&soon("refused", locks.mutex("x").lock()).await.unwrap_err());
    assert!(error.contains("read-only") && error.contains("primary"), "{error}");
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

async fn a_server_without_a_free_connection_says_so(system: System) {
    let few: &[&str] = match system {
        System::Postgres => {
            &[
                "-cmax_connections=10",
                "-csuperuser_reserved_connections=1",
                "-cmax_wal_senders=0",
                // Sees at once that a client was killed.
                "-cclient_connection_check_interval=100ms",
            ]
        }
        // The least that it can be told; one more is for the superuser.
        System::MariaDb => &["--max-connections=10"],
    };
    let database = system.start(few).await;
    Locks::init(&database.url("here")).await.unwrap();
    make_user(system, &database);
    let url = database.url_of("app", "here");
    let locks = Locks::connect(&format!("{url}?pool=1")).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    let sleep = match system {
        System::Postgres => "SELECT pg_sleep(60)",
        System::MariaDb => "DO SLEEP(60)",
    };
    let mut sleepers: Vec<Child> = (0..10).map(|_| busy(system, &database, sleep)).collect();
    let full = async || match Locks::connect(&url).await {
        Err(error) => text(&error).contains("max_connections"),
        Ok(_) => false,
    };
    eventually("no connection left", full).await;
    // Those who have one go on.
    let held = soon("granted", locks.mutex("x").lock()).await.unwrap();
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    eventually("a connection is free again", async || Locks::connect(&url).await.is_ok()).await;
    held.release().await.unwrap();
}

/// Six tasks of two clients, one name.
async fn contend(database: &Database) {
    let locks = [connect(database).await, connect(database).await];
    let inside = Arc::new(tokio::sync::Mutex::new(0));
    let workers = (0..6).map(|at| {
        let (mutex, inside) = (locks[at % 2].mutex("x"), Arc::clone(&inside));
        let mutex = if at < 3 { mutex.fair() } else { mutex };
        tokio::spawn(async move {
            for _ in 0..10 {
                let guard = mutex.lock().await.unwrap();
                let mut last = inside.try_lock().expect("alone");
                assert!(guard.token().get() > *last);
                *last = guard.token().get();
                drop(last);
                guard.release().await.unwrap();
            }
        })
    });
    for worker in futures_util::future::join_all(workers).await {
        worker.unwrap();
    }
    assert!(locks[0].admin().list().await.unwrap().is_empty());
}

/// Half of all writes are given up by the server, as in a deadlock, a serialization failure, or a
/// certification that failed in a cluster.
async fn victims_of_conflicts_try_again(system: System) {
    let database = start(system).await;
    match system {
        System::Postgres => {
            let sql = "CREATE FUNCTION unlucky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       IF random() < 0.25 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF; \
                       IF random() < 0.25 THEN RAISE EXCEPTION USING ERRCODE = '40P01'; END IF; \
                       IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$; \
                       CREATE TRIGGER unlucky BEFORE INSERT OR UPDATE OR DELETE \
                       ON lockkeeper_names FOR EACH ROW EXECUTE FUNCTION unlucky()";
            database.operator("here", sql);
        }
        System::MariaDb => {
            for what in ["INSERT", "UPDATE", "DELETE"] {
                let sql = format!(
                    "CREATE TRIGGER unlucky_{what} BEFORE {what} ON lockkeeper_names FOR EACH ROW \
                     IF RAND() < 0.5 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF"
                );
                database.operator("here", &sql);
            }
        }
    }
    contend(&database).await;
}

async fn every_isolation_level_will_do(system: System) {
    let database = start(system).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"] {
        database.operator(
            "here",
            &match system {
                System::Postgres => {
                    format!("ALTER DATABASE here SET default_transaction_isolation = '{level}'")
                }
                System::MariaDb => format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"),
            },
        );
        contend(&database).await;
    }
}

/// Somebody keeps the row locked, and the server ends statements that wait for that.
async fn a_statement_that_the_server_gives_up_is_tried_again(system: System) {
    let database = start(system).await;
    let holder = connect(&database).await;
    let held = holder.rw_lock("x").read().await.unwrap();
    let limit = match system {
        System::Postgres => "ALTER DATABASE here SET statement_timeout = '100ms'",
        System::MariaDb => "SET GLOBAL max_statement_time = 0.1",
    };
    let lock = match system {
        System::Postgres => {
            "BEGIN; SELECT 1 FROM lockkeeper_names FOR UPDATE; SET statement_timeout = 0; \
             SELECT pg_sleep(1.5)"
        }
        System::MariaDb => {
            "SET max_statement_time = 0; BEGIN; SELECT 1 FROM lockkeeper_names FOR UPDATE; \
             DO SLEEP(1.5)"
        }
    };
    let mut locked = busy(system, &database, lock);
    let free = "SELECT name FROM lockkeeper_names FOR UPDATE SKIP LOCKED";
    eventually("locked", async || database.operator("here", free).is_empty()).await;
    database.operator("here", limit);
    let locks = connect(&database).await;
    let since = Instant::now();
    let second = soon("granted in the end", locks.rw_lock("x").read()).await.unwrap();
    let took = Instant::now().since(since);
    assert!(took > Duration::from_millis(500), "was it in the way at all? {took:?}");
    second.release().await.unwrap();
    held.release().await.unwrap();
    locked.wait().unwrap();
}

/// Takes so many tokens under one row that they do not fit into its epoch; they grow.
async fn use_an_epoch_up(locks: &Locks) {
    let read = locks.rw_lock("used up").read().await.unwrap();
    let mut last = read.token().get();
    for at in 1..=8 {
        let request = Request {
            name: name("used up"),
            kind: Kind::Read,
            owner: locks.new_owner(),
            id: RequestId::from_bytes([at; 16]),
            term: Term::Fixed(Duration::from_secs(60)),
            tokens: 6000,
            patience: Patience::TryOnce,
        };
        let backend: Arc<dyn Backend> = Arc::clone(locks.backend());
        let hold: Arc<dyn Hold> = backend.acquire(request).await.unwrap().expect("shared");
        let first = hold.tokens().first().get();
        assert!(first > last, "{first} after {last}");
        last = hold.tokens().nth(5999).unwrap().get();
        hold.release().await.unwrap();
    }
    read.release().await.unwrap();
    let next = locks.mutex("used up").lock().await.unwrap();
    assert!(next.token().get() > last, "{} after {last}", next.token());
    next.release().await.unwrap();
}

async fn tokens_grow_when_a_row_has_used_its_epoch_up(system: System) {
    let database = start(system).await;
    use_an_epoch_up(&connect(&database).await).await;
}

async fn rows_of_the_dead_are_purged(system: System) {
    let database = start(system).await;
    let mut dead = testkit::taker::Taker::spawn(&database.url("here")).await;
    dead.token("lock x ttl=1000").await;
    dead.kill();
    let rows = || database.operator("here", "SELECT count(*) FROM lockkeeper_names");
    assert_eq!(rows(), "1");
    // A minute ago.
    database.operator("here", "UPDATE lockkeeper_names SET ends = ends - 60000000");
    let purged = async || {
        let _locks = connect(&database).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        rows() == "0"
    };
    eventually("purged by those who come later", purged).await;
}

async fn a_row_that_cannot_be_read_hides_no_other(system: System) {
    let database = start(system).await;
    let locks = connect(&database).await;
    let (one, two) =
        (locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap());
    database.operator("here", "UPDATE lockkeeper_names SET state = '{}' WHERE name = 'a'");
    let seen = locks.admin().list().await.unwrap();
    let kinds: Vec<_> = seen.iter().map(|status| status.kind.as_deref().unwrap()).collect();
    assert_eq!(kinds, ["unreadable", "mutex"]);
    let other = connect(&database).await;
    let error = text(&soon("refused", other.mutex("a").lock()).await.unwrap_err());
    assert!(error.contains("cannot be read"), "{error}");
    two.release().await.unwrap();
    drop(one);
}

async fn names_that_differ_in_case_or_in_spaces_are_different_locks(system: System) {
    let database = start(system).await;
    let prefix = "p".repeat(255);
    let locks = Locks::connect(&format!("{}?prefix={prefix}", database.url("here"))).await.unwrap();
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
}

/// A server that counts statements.
async fn start_counting(system: System) -> Database {
    let log: &[&str] = match system {
        System::Postgres => &["-clog_statement=all"],
        System::MariaDb => &[],
    };
    let database = system.start(log).await;
    Locks::init(&database.url("here")).await.unwrap();
    database
}

/// How many there were. On MariaDB the operator's own question counts.
fn statements(system: System, database: &Database) -> usize {
    match system {
        System::Postgres => {
            let log = database.server.log();
            ["LOG:  statement: ", "LOG:  execute "]
                .map(|line| log.matches(line).count())
                .iter()
                .sum()
        }
        System::MariaDb => {
            let sql = "SELECT variable_value FROM information_schema.global_status \
                       WHERE variable_name = 'Questions'";
            database.operator("here", sql).parse().unwrap()
        }
    }
}

/// However many wait for one name in one process.
async fn who_waits_asks_seldom(system: System) {
    let database = start_counting(system).await;
    let (holder, locks) = (connect(&database).await, connect(&database).await);
    let held = holder.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    for _ in 0..20 {
        let mutex = locks.mutex("x").fair();
        tokio::spawn(async move { mutex.lock().await });
    }
    let queued = async || holder.admin().show(&name("x")).await.unwrap().waiters.len() == 20;
    eventually("in line", queued).await;
    // Until the pauses are as long as they get.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let before = statements(system, &database);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = statements(system, &database) - before;
    let most = match system {
        // A word of each client to itself.
        System::Postgres => 2,
        // Those of the line, one every two seconds of the holder, which looks for evictions, and the
        // operator's.
        System::MariaDb => 10 + 5 + 3,
    };
    assert!(asked <= most, "{asked} statements in 10 s");
    held.release().await.unwrap();
}

async fn a_free_lock_takes_one_statement_and_its_release_another(system: System) {
    let database = start_counting(system).await;
    let locks = connect(&database).await;
    locks.mutex("x").fair().lock().await.unwrap().release().await.unwrap();
    if system == System::Postgres {
        // What it does to find out whether it hears is over.
        let heard = async || database.server.log().contains("'echo-");
        eventually("heard", heard).await;
    }
    let before = statements(system, &database);
    for _ in 0..100 {
        let mutex = locks.mutex("x").fair();
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    let asked = statements(system, &database) - before;
    assert!((200..210).contains(&asked), "{asked} statements for 100 locks");
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
