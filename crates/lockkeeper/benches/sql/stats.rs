//! What the server has done, as it tells by itself.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use testkit::database::Database;
use tokio::sync::Mutex;

use crate::client::{Client, is_postgres};
use crate::harness::figure::Figure;
use crate::harness::process::TICKS;
use crate::harness::server::{Counts, Crowd, Note, Sample, Server};

const OWN_STATEMENTS: Figure = Figure::new(2, 3, "statements per pair", "");
const STATEMENTS: Figure = Figure::new(5, 0, "statements per hand-over, {n} clients", "");
const PER_GRANT: Figure = Figure::new(5, 1, "statements per grant, {n} clients", "");

/// The same for a raw turn as for ours: a short key.
const TABLES: [&str; 2] = [
    "CREATE TABLE bench_rows (name varchar(100) PRIMARY KEY)",
    "CREATE TABLE bench_locks (name varchar(100) PRIMARY KEY)",
];

/// A connection to look at the server with.
pub(crate) struct Stats {
    pid: u32,
    postgres: bool,
    client: Mutex<Client>,
    /// How many of the statements were our own.
    asked: AtomicU64,
}

impl Stats {
    pub(crate) async fn connect(url: &str, database: &Database) -> Self {
        let (pid, postgres) = (database.server.pid(), is_postgres(url));
        let mut client = Client::connect(url).await;
        if postgres {
            client.run("CREATE EXTENSION pg_stat_statements").await;
        }
        for table in TABLES {
            client.run(table).await;
        }
        Self { pid, postgres, client: Mutex::new(client), asked: AtomicU64::new(0) }
    }

    /// Statements of everybody else.
    async fn statements(&self) -> u64 {
        let sql = match self.postgres {
            true => "SELECT sum(calls)::text FROM pg_stat_statements",
            false => {
                "SELECT CAST(variable_value AS CHAR) FROM information_schema.global_status \
                 WHERE variable_name = 'Questions'"
            }
        };
        let said = self.client.lock().await.text(sql).await;
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        said.parse::<u64>().unwrap().saturating_sub(asked)
    }
}

#[async_trait]
impl Server for Stats {
    async fn version(&self) -> String {
        let sql = match self.postgres {
            true => "SELECT 'PostgreSQL ' || current_setting('server_version')",
            false => "SELECT CONCAT('MariaDB ', VERSION())",
        };
        let said = self.client.lock().await.text(sql).await;
        said.split(['-', '(']).next().unwrap_or_default().trim().to_owned()
    }

    async fn sample(&self) -> Sample {
        Sample { cpu: cpu(self.pid), counts: [self.statements().await, 0, 0] }
    }

    async fn clear(&self) {
        let mut client = self.client.lock().await;
        client.run("DELETE FROM lockkeeper_names").await;
        client.run("DELETE FROM bench_rows").await;
        if self.postgres {
            // Rows that are dead cost time in every look for a name.
            for table in ["lockkeeper_names", "bench_rows", "bench_locks"] {
                client.run(&format!("VACUUM {table}")).await;
            }
            client.run("SELECT pg_stat_statements_reset()").await;
            self.asked.store(0, Ordering::Relaxed);
        }
    }

    fn pairs(&self, counts: Counts, pairs: f64, note: Note<'_>) {
        note(OWN_STATEMENTS, counts[0] as f64 / pairs);
    }

    fn crowd(&self, crowd: Crowd, note: Note<'_>) -> Result<(), String> {
        note(STATEMENTS, crowd.counts[0] as f64 / crowd.passes);
        note(PER_GRANT, crowd.counts[0] as f64 / crowd.grants);
        Ok(())
    }
}

/// The time that a server and its children have had a processor, in s: PostgreSQL has a process for each
/// connection.
fn cpu(server: u32) -> f64 {
    let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // What follows the name, which is in parentheses: state, parent, …
    let numbers = |stat: &str| -> Vec<f64> {
        let rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        rest.map(|word| word.parse().unwrap_or(0.0)).collect()
    };
    // Its own time, and that of children that are gone.
    let mut ticks: f64 = numbers(&stat(&server.to_string())).iter().skip(11).take(4).sum();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in all {
        let Ok(pid) = process.file_name().into_string() else { continue };
        if !pid.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let numbers = numbers(&stat(&pid));
        if numbers.get(1) == Some(&f64::from(server)) {
            ticks += numbers.iter().skip(11).take(2).sum::<f64>();
        }
    }
    ticks / TICKS
}
