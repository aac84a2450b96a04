//! What a follower reads, beside the tools that come with the database: `./dev bench cdc`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it prints what it measures")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper_cache::cdc::{Follower, Rule, Source, State, mariadb, postgres};
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use testkit::database::{BINLOG, Database, System, postgres_program};
use testkit::server::{Server, redis};
use testkit::wait::within;
use tokio::runtime::Builder;
use tokio::time::sleep;

/// Rows that are changed, so many in each transaction.
const ROWS: (u64, u64) = (400_000, 100);

/// Rows of one large transaction.
const LARGE: u64 = 1_000_000;

const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    println!("| what | rows/s | against | rows/s | ratio | target |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for system in [System::Postgres, System::MariaDb] {
            Box::pin(measure(system)).await;
        }
    });
}

async fn start(system: System) -> Database {
    match system {
        System::Postgres => {
            system.start(&["-cwal_level=logical", "-cmax_slot_wal_keep_size=8GB"]).await
        }
        System::MariaDb => {
            let buffer: &[&str] = &["--innodb-buffer-pool-size=256M"];
            system.start(&[&BINLOG, buffer].concat()).await
        }
    }
}

/// Changes so many rows, in transactions of `each`, in the server itself.
fn change(database: &Database, system: System, rows: u64, each: u64) {
    let rounds = rows / each;
    match system {
        System::Postgres => {
            let body = format!(
                "FOR i IN 1..{rounds} LOOP UPDATE articles SET v = v + 1 \
                 WHERE id > (i * {each}) % {LARGE} AND id <= (i * {each}) % {LARGE} + {each}; COMMIT; END LOOP;"
            );
            database.operator("here", &format!("DO $$ DECLARE i BIGINT; BEGIN {body} END $$"));
        }
        System::MariaDb => {
            let body = format!(
                "BEGIN NOT ATOMIC DECLARE i BIGINT DEFAULT 1; WHILE i <= {rounds} DO \
                 UPDATE articles SET v = v + 1 WHERE id > (i * {each}) % {LARGE} AND id <= (i * {each}) % {LARGE} + {each}; \
                 COMMIT; SET i = i + 1; END WHILE; END"
            );
            database.operator("here", &body);
        }
    }
}

fn fill(database: &Database, system: System) {
    let table = "CREATE TABLE articles (id BIGINT PRIMARY KEY, name VARCHAR(80) NOT NULL, v BIGINT NOT NULL)";
    database.operator("here", table);
    match system {
        System::Postgres => {
            database.operator("here", "CREATE PUBLICATION lockkeeper FOR TABLE articles");
            database.operator("here", &format!(
                "INSERT INTO articles SELECT i, 'an article of some length, number ' || i, 0 FROM generate_series(1, {LARGE}) i"
            ));
        }
        System::MariaDb => {
            database.operator("here", &format!(
                "INSERT INTO articles SELECT seq, CONCAT('an article of some length, number ', seq), 0 FROM seq_1_to_{LARGE}"
            ));
        }
    }
}

async fn follow(system: System, database: &Database, store: &Server) -> Follower {
    let (url, redis) = (database.url("here"), format!("redis://{}", store.address()));
    let locks = Locks::connect(&redis).await.unwrap();
    let cache = Cache::builder(Redis::connect(&redis).await.unwrap())
        .namespace("article")
        .build(async |_: String| Ok::<_, Error>(Loaded::found(0_u64)))
        .unwrap();
    let schema = if system == System::Postgres { "public" } else { "here" };
    let rule = Rule::new(&format!("{schema}.articles"), "{id}").unwrap();
    match system {
        System::Postgres => begin(postgres::Postgres::new(&url).unwrap(), rule, &cache, locks),
        System::MariaDb => begin(mariadb::MariaDb::new(&url).unwrap(), rule, &cache, locks),
    }
}

fn begin(
    source: impl Source + 'static,
    rule: Rule,
    cache: &Cache<String, u64>,
    locks: Locks,
) -> Follower {
    Follower::builder(source).name("bench").rule(rule, cache).locks(locks).start().unwrap()
}

async fn has_read(follower: &Follower, rows: u64) {
    within(PATIENCE, "all is read", || async { follower.status().changes >= rows }).await;
}

/// Until it has this to do; then how long it takes to be done, from the first to the last.
async fn measure(system: System) {
    let (store, database) = (redis(&[]).await, start(system).await);
    fill(&database, system);
    let follower = follow(system, &database, &store).await;
    within(PATIENCE, "it follows", || async { follower.status().state == State::Following }).await;
    follower.stop().await;
    let peer = Peer::prepare(system, &database);
    change(&database, system, ROWS.0, ROWS.1);
    let theirs = peer.read(&database);
    let follower = follow(system, &database, &store).await;
    has_read(&follower, 1).await;
    let (begun, before) = (Instant::now(), follower.status().changes);
    has_read(&follower, ROWS.0).await;
    let ours = Instant::now().since(begun);
    let rate = |rows: u64, time: Duration| rows as f64 / time.as_secs_f64();
    let (ours, theirs) = (rate(ROWS.0 - before, ours), rate(ROWS.0, theirs));
    let name = peer.name();
    println!(
        "| {system:?}: rows of transactions of {} | {ours:.0} | {name} | {theirs:.0} | {:.2} | ≥ 20,000/s or ≥ 0.5 |",
        ROWS.1,
        ours / theirs
    );
    large(system, &database, &follower).await;
    follower.stop().await;
}

/// One transaction that changes everything, and how much memory it takes.
async fn large(system: System, database: &Database, follower: &Follower) {
    let before = resident();
    let (over, most) =
        (Arc::new(AtomicBool::new(false)), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let sampler = tokio::spawn({
        let (over, most) = (Arc::clone(&over), Arc::clone(&most));
        async move {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(resident(), Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let seen = follower.status().changes;
    database.operator("here", "UPDATE articles SET v = v + 1");
    let begun = Instant::now();
    has_read(follower, seen + LARGE).await;
    let time = Instant::now().since(begun);
    over.store(true, Ordering::Relaxed);
    sampler.await.unwrap();
    let grown = most.load(Ordering::Relaxed).saturating_sub(before) / 1024;
    println!(
        "| {system:?}: one transaction of {LARGE} rows | {:.0} | memory before it: {} KiB | grown by at most {grown} KiB | | flat |",
        LARGE as f64 / time.as_secs_f64(),
        before / 1024
    );
}

/// What this process has in memory, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// What comes with the database.
enum Peer {
    /// A slot of its own, from which `pg_recvlogical` reads.
    Slot,
    /// The first file that `mariadb-binlog` reads.
    File(String),
}

impl Peer {
    fn prepare(system: System, database: &Database) -> Self {
        match system {
            System::Postgres => {
                database.operator(
                    "here",
                    "SELECT pg_create_logical_replication_slot('peer', 'pgoutput')",
                );
                Self::Slot
            }
            System::MariaDb => {
                database.operator("", "FLUSH BINARY LOGS");
                let status = database.operator("", "SHOW MASTER STATUS");
                Self::File(status.split('|').next().unwrap().to_owned())
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Slot => "pg_recvlogical",
            Self::File(_) => "mariadb-binlog",
        }
    }

    /// How long it takes to read all.
    fn read(&self, database: &Database) -> Duration {
        let port = database.server.address().port().to_string();
        let mut command = match self {
            Self::Slot => {
                let end = database.operator("here", "SELECT pg_current_wal_lsn()");
                // So that there is something after the end.
                database.operator("here", "UPDATE articles SET v = v WHERE id = 1");
                let mut command = Command::new(postgres_program("pg_recvlogical"));
                command.args([
                    "-h",
                    "127.0.0.1",
                    "-p",
                    &port,
                    "-U",
                    "postgres",
                    "-d",
                    "here",
                    "-S",
                    "peer",
                    "--start",
                ]);
                command.args([
                    "-o",
                    "proto_version=1",
                    "-o",
                    "publication_names=lockkeeper",
                    "-f",
                    "/dev/null",
                ]);
                command.args(["--endpos", &end]);
                command
            }
            Self::File(first) => {
                let mut command = Command::new("mariadb-binlog");
                command.args([
                    "--no-defaults",
                    "--read-from-remote-server",
                    "--protocol=tcp",
                    "-h",
                    "127.0.0.1",
                ]);
                command.args(["-P", &port, "-u", "root", "--to-last-log", first]);
                command
            }
        };
        let begun = Instant::now();
        let status = command.stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{command:?}");
        Instant::now().since(begun)
    }
}
