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

include!("cases.rs");
