//! Articles of a shop in PostgreSQL, cached in Redis: read, written, and changed several at a time.
//!
//! `cargo run -p lockkeeper-cache --example shop -- postgres://me:pw@localhost/shop redis://localhost`
#![allow(clippy::print_stdout, reason = "an example")]

use async_trait::async_trait;
use lockkeeper_cache::{
    BoxError, Cache, Database, Freshness, Loaded, Loader, Order, Redis, Strategy, Table,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// Versions are of a sequence: a row that is deleted and inserted again must not begin at a smaller one than it had.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS articles
    (id BIGINT PRIMARY KEY, name TEXT NOT NULL, price BIGINT NOT NULL, version BIGINT NOT NULL);
    CREATE SEQUENCE IF NOT EXISTS article_versions";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Article {
    name: String,
    price: i64,
}

/// How articles are read from the database, and written to it.
struct Articles(PgPool);

#[async_trait]
impl Loader<i64, Article> for Articles {
    async fn load(&self, id: &i64) -> Result<Loaded<Article>, BoxError> {
        let read = sqlx::query_as("SELECT name, price, version FROM articles WHERE id = $1");
        let row: Option<(String, i64, i64)> = read.bind(id).fetch_optional(&self.0).await?;
        // That there is none is cached, too.
        let Some((name, price, version)) = row else { return Ok(Loaded::nothing()) };
        Ok(Loaded::found(Article { name, price }).version(version.try_into()?))
    }
}

#[async_trait]
impl Database<i64, Article> for Articles {
    async fn store(
        &self,
        id: &i64,
        article: Option<&Article>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        // The operator's handbook has the table that keeps it.
        if order.is_some() {
            return Err("this table keeps no order, which write-behind needs".into());
        }
        let Some(Article { name, price }) = article else {
            sqlx::query("DELETE FROM articles WHERE id = $1").bind(id).execute(&self.0).await?;
            return Ok(0);
        };
        // Not EXCLUDED.version: that was taken before the row was locked, and who had it meanwhile may have taken a larger one.
        let write = sqlx::query_scalar(
            "INSERT INTO articles VALUES ($1, $2, $3, nextval('article_versions'))
             ON CONFLICT (id) DO UPDATE
             SET name = $2, price = $3, version = nextval('article_versions') RETURNING version",
        );
        let version: i64 = write.bind(id).bind(name).bind(price).fetch_one(&self.0).await?;
        Ok(version.try_into()?)
    }
}

/// Everything in the shop costs more: many rows in one transaction, and one step at the cache before it and after it.
async fn raise(articles: &Table<i64, Article>, pool: &PgPool, ids: &[i64]) -> Result<(), BoxError> {
    let update = async {
        let mut sql = pool.begin().await?;
        sqlx::query(
            "UPDATE articles SET price = price + 1, version = nextval('article_versions')
             WHERE id = ANY($1)",
        )
        .bind(ids)
        .execute(&mut *sql)
        .await?;
        sql.commit().await?;
        // Each has a version of its own.
        Ok::<_, sqlx::Error>(0)
    };
    let written = articles.cache().write(ids, update).await?;
    // The database has it in any case. An error here: until their intents end these rows are not cached.
    written.cache?;
    Ok(())
}

/// Reads and writes; returns the prices that were seen.
pub(crate) async fn shop(postgres: &str, redis: &str) -> Result<Vec<i64>, BoxError> {
    let pool = PgPool::connect(postgres).await?;
    sqlx::raw_sql(CREATE).execute(&pool).await?;
    let articles = Cache::builder(Redis::connect(redis).await?)
        .namespace("article")
        .table(Strategy::default(), Articles(pool.clone()))?;
    let mut prices = Vec::new();

    for id in [7, 8] {
        let pen = Article { name: format!("pen {id}"), price: 100 };
        articles.write(&id, Some(pen)).await?;
    }
    // The first read of each is a load, the others are hits.
    for _ in 0..3 {
        for id in [7, 8] {
            let read = articles.read(&id).await?;
            println!("{id}: {:?} from {:?}", read.value, read.source);
            prices.extend(read.value.map(|article| article.price));
        }
    }

    raise(&articles, &pool, &[7, 8]).await?;
    prices.extend(articles.read(&8).await?.value.map(|article| article.price));

    // Who is told a version sees at least that, in whatever process and however near its cache is.
    let written = articles.write(&7, Some(Article { name: "pen".into(), price: 1 })).await?;
    let read = articles.cache().read(&7, Freshness::AtLeast(written.version)).await?;
    prices.extend(read.value.map(|article| article.price));

    articles.write(&7, None).await?;
    assert_eq!(articles.read(&7).await?.value, None);
    println!("{:#?}", articles.cache().stats());
    // This program ends now: what it has loaded is to be at the cache.
    articles.cache().idle().await;
    Ok(prices)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let (Some(postgres), Some(redis)) = (arguments.next(), arguments.next()) else {
        return Err(
            "two arguments, please: the URLs of a PostgreSQL database and of a Redis".into()
        );
    };
    shop(&postgres, &redis).await?;
    Ok(())
}
