//! A shop: a database with users, a cache of them in Redis, and files of followers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use serde_json::Value;
use tempfile::TempDir;
use testkit::database::{Database, System};
use testkit::server::{self, Server};
use testkit::wait;

use super::harness::{BINARY, Output, Running};

/// A database that can be followed, but for a publication.
pub(crate) async fn database(system: System) -> Database {
    let arguments: &[&str] = match system {
        System::Postgres => &["-cwal_level=logical", "-cmax_slot_wal_keep_size=1GB"],
        System::MariaDb => &[
            "--log-bin={dir}/binlog",
            "--server-id=1",
            "--binlog-format=ROW",
            "--binlog-row-metadata=FULL",
            "--sync-binlog=1",
            "--binlog-expire-logs-seconds=864000",
        ],
    };
    let database = system.start(arguments).await;
    database.operator("here", "CREATE TABLE users (id bigint PRIMARY KEY, name varchar(50))");
    database.operator("here", "INSERT INTO users VALUES (1, 'Anna'), (2, 'Bert')");
    database
}

/// What follows, and what is followed.
pub(crate) struct Shop {
    pub(crate) system: System,
    pub(crate) database: Database,
    pub(crate) redis: Server,
    pub(crate) folder: TempDir,
}

impl Shop {
    pub(crate) async fn open(system: System) -> Self {
        let database = database(system).await;
        if system == System::Postgres {
            database.operator("here", "CREATE PUBLICATION lockkeeper FOR TABLE users");
        }
        let redis = server::redis(&[]).await;
        Self { system, database, redis, folder: TempDir::new().expect("a folder") }
    }

    /// The table as a rule names it.
    pub(crate) fn table(&self) -> &'static str {
        match self.system {
            System::Postgres => "public.users",
            System::MariaDb => "here.users",
        }
    }

    /// A file with these lines besides.
    pub(crate) fn file(&self, more: &str) -> PathBuf {
        let (database, redis) = (self.database.url("here"), self.redis.address());
        self.write(&format!(
            "name = 'shop'\ndatabase = '{database}'\ncache = 'redis://{redis}'\n\
             locks = 'redis://{redis}?ttl=3s'\nlisten = '127.0.0.1:0'\n{more}\n{}",
            self.rule()
        ))
    }

    pub(crate) fn rule(&self) -> String {
        let table = self.table();
        format!("[[rule]]\ntable = '{table}'\nnamespace = 'user'\nkey = '{{id}}'\n")
    }

    pub(crate) fn write(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("shop.toml");
        std::fs::write(&path, text).expect("write");
        path
    }

    /// The cache as the application has it, whose loader asks the database as any client does.
    pub(crate) async fn users(self: &Arc<Self>) -> Cache<u64, String> {
        let store = Redis::connect(&format!("redis://{}", self.redis.address())).await;
        let builder = Cache::builder(store.expect("Redis")).namespace("user");
        let builder = builder.ttl(Duration::from_secs(3600));
        let shop = Arc::clone(self);
        let loader = move |id: u64| {
            let shop = Arc::clone(&shop);
            async move {
                let select = format!("SELECT name FROM users WHERE id = {id}");
                let ask = move || shop.database.operator("here", &select);
                let name = tokio::task::spawn_blocking(ask).await.expect("answered");
                let is_there = !name.is_empty();
                Ok::<_, Error>(if is_there { Loaded::found(name) } else { Loaded::nothing() })
            }
        };
        builder.build(loader).expect("a cache")
    }

    pub(crate) async fn sql(self: &Arc<Self>, statement: &str) {
        let (shop, statement) = (Arc::clone(self), statement.to_owned());
        let ran = tokio::task::spawn_blocking(move || shop.database.operator("here", &statement));
        ran.await.expect("ran");
    }
}

/// Waits until a read of the cache gives this.
pub(crate) async fn until_read(users: &Cache<u64, String>, id: u64, name: &str) {
    wait::eventually(&format!("{id} is {name}"), async || {
        let found = users.get(&id).await.expect("a read");
        found.as_deref().is_some_and(|found| found == name)
    })
    .await;
}

/// `lockkeeper cdc` with these words, without a terminal.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal", BINARY, "cdc"]).args(words);
    command.env_remove("LOCKKEEPER_URL").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn output(words: &[&str]) -> Output {
    Running::new(&mut command(words)).output()
}

/// A follower that runs, with what it said first.
pub(crate) struct Process {
    pub(crate) running: Running,
    pub(crate) pages: Pages,
}

/// What it says to those who ask.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    pub(crate) http: SocketAddr,
}

impl Process {
    /// With lines of JSON.
    pub(crate) fn start(file: &Path) -> Self {
        let file = file.to_str().expect("UTF-8");
        let running = Running::new(&mut command(&["run", "--json", "--config", file]));
        let started = event(&running);
        assert_eq!(started["event"], "started", "{started}");
        let http = started["listen"].as_str().expect("it listens").parse().expect("an address");
        Self { running, pages: Pages { http } }
    }

    /// Waits for an event of this kind.
    pub(crate) fn until(&self, kind: &str) -> Value {
        loop {
            let event = event(&self.running);
            if event["event"] == kind {
                return event;
            }
        }
    }
}

impl Pages {
    /// What a page says: its status, and its text.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        let answer = server::http_get(self.http, path).await.expect("an answer");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), text.to_owned())
    }

    pub(crate) async fn health(&self) -> (u16, Value) {
        let (status, text) = self.page("/health").await;
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    pub(crate) async fn until_healthy(&self, status: u16, state: &str) {
        wait::within(super::harness::SOON, &format!("{status} {state}"), async || {
            let (found, health) = self.health().await;
            found == status && health["state"] == state
        })
        .await;
    }

    /// A number of `/metrics`; `None`: it is not there.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let (status, text) = self.page("/metrics").await;
        assert_eq!(status, 200);
        let name = format!("lockkeeper_cdc_{name}");
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
    }
}

fn event(running: &Running) -> Value {
    let line = running.line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}
