//! What can go wrong with locks that end with the caller's transaction.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks};
use sqlx::{Acquire, Row};
use testkit::database::{Database, System};
use testkit::proxy::Proxy;
use testkit::wait::{LONG, eventually, soon};

/// The cases on one system: sqlx has a type for each. How a session asks for its number, and how an
/// operator asks whether that one waits, and ends it.
macro_rules! on {
    ($module:ident, $system:expr, $connection:ty, $number:expr, $waits:expr, $end:expr) => {
        mod $module {
            use super::*;

            async fn begin(
                connection: &mut $connection,
            ) -> (sqlx::Transaction<'_, <$connection as sqlx::Connection>::Database>, String) {
                let mut mine = connection.begin().await.unwrap();
                let row = sqlx::raw_sql($number).fetch_one(&mut *mine).await.unwrap();
                (mine, row.get(0))
            }

            /// The caller's connection ends when the lock is held and the token is not drawn yet.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_transaction_that_is_lost_gets_no_token() {
                let (database, url) = start($system, concat!(stringify!($module), "/lost")).await;
                let direct = Locks::connect(&url).await.unwrap();
                let (locks, proxy) = through(&database, &url).await;
                let mut connections =
                    [connect(&url).await, connect(&url).await, connect(&url).await];
                let [zero, one, two] = &mut connections;
                let (mut zero, _) = begin(zero).await;
                direct.lock_in(&mut zero, "x", LONG).await.unwrap();
                let (mut one, number) = begin(one).await;
                let (mut two, _) = begin(two).await;
                let waits = async || database.operator("here", &$waits(&number)) == "1";
                let lost = async {
                    let drawn = locks.lock_in(&mut one, "x", LONG).await;
                    (drawn, one)
                };
                let rest = async {
                    eventually("waits", waits).await;
                    proxy.freeze();
                    zero.commit().await.unwrap();
                    eventually("has it", async || !waits().await).await;
                    database.operator("here", &$end(&number));
                    let token = soon("free", direct.lock_in(&mut two, "x", LONG)).await.unwrap();
                    proxy.pass();
                    token
                };
                let ((drawn, _one), token) = soon("both", async { tokio::join!(lost, rest) }).await;
                assert!(drawn.is_err(), "{drawn:?} after {token}");
            }

            async fn connect(url: &str) -> $connection {
                let url = &url[..url.find('?').unwrap()];
                <$connection as sqlx::Connection>::connect(url).await.unwrap()
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_deadline_is_kept_when_the_locks_do_not_answer() {
                let (database, url) = start($system, concat!(stringify!($module), "/late")).await;
                let (locks, proxy) = through(&database, &url).await;
                let mut connection = connect(&url).await;
                let (mut mine, _) = begin(&mut connection).await;
                proxy.freeze();
                let since = Instant::now();
                let error = locks.lock_in(&mut mine, "x", Duration::from_millis(100)).await;
                let took = Instant::now().since(since);
                assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
                assert!(took < Duration::from_secs(4), "{took:?}");
            }
        }
    };
}

on!(
    postgres,
    System::Postgres,
    sqlx::PgConnection,
    "SELECT pg_backend_pid()::text",
    |number: &str| format!("SELECT count(*) FROM pg_locks WHERE pid = {number} AND NOT granted"),
    |number: &str| format!("SELECT pg_terminate_backend({number})")
);
on!(
    mariadb,
    System::MariaDb,
    sqlx::MySqlConnection,
    "SELECT CAST(CONNECTION_ID() AS CHAR)",
    |number: &str| format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
         WHERE ID = {number} AND INFO LIKE 'SELECT%FOR UPDATE'"
    ),
    |number: &str| format!("KILL {number}")
);

/// The server that all have in common, and the URL of our locks there.
async fn start(system: System, prefix: &str) -> (Arc<Database>, String) {
    let database = system.shared().await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    (database, format!("{url}?mode=session&prefix={prefix}/"))
}

/// A client behind a proxy.
async fn through(database: &Database, url: &str) -> (Locks, Proxy) {
    let proxy = Proxy::to(database.server.address()).await;
    let direct = database.server.address().to_string();
    let url = url.replace(&direct, &proxy.address().to_string());
    (Locks::connect(&url).await.unwrap(), proxy)
}

/// How many statements like this are under way in MariaDB.
fn running(database: &Database, like: &str) -> String {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
         WHERE ID <> CONNECTION_ID() AND INFO LIKE '{like}'"
    );
    database.operator("here", &sql)
}

/// MariaDB: the row is deleted before whoever waits for it has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_deleted_under_a_waiter_is_made_again() {
    let (database, url) = start(System::MariaDb, "deleted").await;
    let locks = Locks::connect(&url).await.unwrap();
    let pool = sqlx::MySqlPool::connect(&database.url("here")).await.unwrap();
    let mut one = pool.begin().await.unwrap();
    let token = locks.lock_in(&mut one, "x", LONG).await.unwrap();
    let delete = "DELETE FROM lockkeeper_rows WHERE name = 'deleted/x'";
    let deleting = tokio::spawn({
        let pool = pool.clone();
        async move { sqlx::raw_sql(delete).execute(&pool).await.map(drop) }
    });
    let deletes = "DELETE%deleted/x%";
    eventually("deleted", async || running(&database, deletes) == "1").await;
    let mut two = pool.begin().await.unwrap();
    let locking = async {
        let next = locks.lock_in(&mut two, "x", LONG).await.unwrap();
        assert!(next > token);
        let mut three = pool.begin().await.unwrap();
        let busy = locks.lock_in(&mut three, "x", Duration::ZERO).await;
        assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
        two.commit().await.unwrap();
        locks.lock_in(&mut three, "x", LONG).await.unwrap();
    };
    let rest = async {
        // `deleted/x`
        let waits = "SELECT%64656C657465642F78%FOR UPDATE%";
        eventually("waits", async || running(&database, waits) == "1").await;
        one.commit().await.unwrap();
        deleting.await.unwrap().unwrap();
    };
    soon("its turn", async { tokio::join!(locking, rest) }).await;
}

/// MariaDB: an old row that is in use keeps nobody from deleting the others, nor from using them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_rows_are_deleted_around_those_in_use() {
    let (database, url) = start(System::MariaDb, "old").await;
    let locks = Locks::connect(&url).await.unwrap();
    let pool = sqlx::MySqlPool::connect(&database.url("here")).await.unwrap();
    let rows = "INSERT INTO lockkeeper_rows (name, made) VALUES \
                ('old/a', UTC_TIMESTAMP() - INTERVAL 9 DAY), \
                ('old/z', UTC_TIMESTAMP() - INTERVAL 8 DAY)";
    let mut mine = pool.begin().await.unwrap();
    database.operator("here", rows);
    locks.lock_in(&mut mine, "z", LONG).await.unwrap();
    // It looks for old rows when it comes.
    let _another = Locks::connect(&url).await.unwrap();
    let left = "SELECT name FROM lockkeeper_rows WHERE name LIKE 'old/%'";
    let gone = async || database.operator("here", left) == "old/z";
    eventually("deleted", gone).await;
    mine.commit().await.unwrap();
}
