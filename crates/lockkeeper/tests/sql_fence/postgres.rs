//! The cases on PostgreSQL.

pub(crate) type Db = sqlx::Postgres;
pub(crate) const SYSTEM: testkit::database::System = testkit::database::System::Postgres;
/// A row's number of its own.
const SERIAL: &str = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY";
/// What has no fence, and why.
const UNFIT: &[(&str, &str, &str)] = &[
    ("CREATE VIEW seen AS SELECT 1 AS id", "seen", "a view"),
    ("CREATE TABLE parts (id bigint) PARTITION BY LIST (id)", "parts", "partitioned"),
    ("CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)", "part", "partition"),
    ("CREATE TABLE texts (fence text)", "texts", "BIGINT"),
    ("CREATE TABLE strict (fence bigint NOT NULL)", "strict", "BIGINT NULL"),
];
/// A user who may write, and no more.
const WRITER: &str = "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON accounts TO app";
/// What a user needs to install the trigger.
const OWNER: &str = "GRANT CREATE ON SCHEMA public TO app; ALTER TABLE accounts OWNER TO app";
/// A column for marks.
const MARK_COLUMN: &str = "ALTER TABLE accounts ADD mark VARCHAR(255)";

include!("cases.rs");

/// PgBouncer lends a connection for one transaction: nothing prepared is there in the next, and nothing
/// that a session remembers may matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_transactions_are_fenced() {
    use sqlx::ConnectOptions;
    use std::str::FromStr;

    let (database, _) = start_with_trigger().await;
    let pooler = testkit::database::pgbouncer(&database).await;
    let direct = database.server.address().to_string();
    let url = database.url("here").replace(&direct, &pooler.address().to_string());
    let options = sqlx::postgres::PgConnectOptions::from_str(&url).unwrap();
    let options = options.extra_float_digits(None);
    let mut client = options.connect().await.unwrap();
    accounts().remove_trigger(&mut client).await.unwrap();
    accounts().install_trigger(&mut client).await.unwrap();
    let mut writers = Vec::new();
    for under in 1..=6_u64 {
        let mut client = options.connect().await.unwrap();
        writers.push(tokio::spawn(async move {
            let table = accounts().with_trigger().unprepared();
            for _ in 0..10 {
                let mut transaction = client.begin().await.unwrap();
                match write(&table, under, 0).execute(&mut transaction).await {
                    Ok(()) => transaction.commit().await.unwrap(),
                    Err(error) => {
                        assert!(error.stale().is_some(), "{error:?}");
                        transaction.rollback().await.unwrap();
                    }
                }
                let forgetful = run(&mut client, "UPDATE accounts SET balance = 1 WHERE id = 1");
                let error = forgetful.await.unwrap_err();
                assert!(matches!(error, Error::NoToken { .. }), "{error:?}");
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(row(&database), "0|6");
}
