//! A writer that is killed in the middle.

use std::future::pending;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::{
    BoxError, Cache, Database, Loaded, Loader, Order, Redis, Source, Strategy, Table,
};
use sqlx::PgPool;
use testkit::server;
use testkit::wait::{CASE, within};

use crate::processes::{self, Process, say, told};

const TABLE: [&str; 2] = [
    "CREATE TABLE written (id INT PRIMARY KEY, val TEXT)",
    "INSERT INTO written VALUES (1, 'old')",
];

/// When others do what a writer has left to do.
const INTENT: Duration = Duration::from_secs(15);

#[derive(Clone)]
struct Rows(PgPool);

#[async_trait]
impl Loader<i32, String> for Rows {
    async fn load(&self, id: &i32) -> Result<Loaded<String>, BoxError> {
        let select = sqlx::query_scalar("SELECT val FROM written WHERE id = $1").bind(id);
        Ok(Loaded::from(select.fetch_optional(&self.0).await?))
    }
}

#[async_trait]
impl Database<i32, String> for Rows {
    async fn store(
        &self,
        id: &i32,
        value: Option<&String>,
        _: Option<Order>,
    ) -> Result<u64, BoxError> {
        let update = sqlx::query("UPDATE written SET val = $2 WHERE id = $1").bind(id).bind(value);
        update.execute(&self.0).await?;
        Ok(0)
    }
}

async fn table(server: &str, rows: Rows) -> Table<i32, String> {
    let builder = Cache::builder(Redis::connect(server).await.unwrap()).namespace("cache");
    builder.intent(INTENT).table(Strategy::DoubleDelete, rows).unwrap()
}

/// Deletes, commits when it is told to, and does nothing more.
pub(crate) async fn child(server: &str, database: &str) {
    let rows = Rows(processes::connect(database).await);
    let table = table(server, rows.clone()).await;
    let commit = async {
        say("deleted");
        told().await;
        rows.store(&1, Some(&"new".to_owned()), None).await?;
        say("committed");
        pending().await
    };
    table.write_with(&1, commit).await.unwrap();
}

#[tokio::test]
async fn a_writer_that_is_killed_is_followed_by_its_delete() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let (database, pool) = processes::database(&TABLE).await;
    let reader = table(&url, Rows(pool)).await;
    let mut writer = Process::start(&format!("writer {url} {}", database.url("here")));
    assert_eq!(writer.says().await, "deleted");
    // From before the commit.
    reader.read(&1).await.unwrap();
    reader.cache().idle().await;
    writer.tell("commit");
    assert_eq!(writer.says().await, "committed");
    // By SIGKILL.
    drop(writer);
    let left = reader.read(&1).await.unwrap();
    let left = (left.source, left.value.as_deref().map(String::as_str));
    assert_eq!(left, (Source::Hit, Some("old")), "nobody has deleted it yet");
    within(CASE, "another process deletes it", async || {
        reader.read(&1).await.unwrap().value.as_deref().map(String::as_str) == Some("new")
    })
    .await;
}
