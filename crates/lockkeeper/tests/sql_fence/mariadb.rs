//! The cases on MariaDB.

pub(crate) type Db = sqlx::MySql;
pub(crate) const SYSTEM: testkit::database::System = testkit::database::System::MariaDb;
/// A row's number of its own.
const SERIAL: &str = "BIGINT AUTO_INCREMENT PRIMARY KEY";
/// What has no fence, and why.
const UNFIT: &[(&str, &str, &str)] = &[
    ("CREATE VIEW seen AS SELECT 1 AS id", "seen", "a view"),
    ("CREATE TABLE old (id BIGINT) ENGINE = MyISAM", "old", "without transactions"),
    ("CREATE TABLE texts (fence TEXT)", "texts", "BIGINT"),
    ("CREATE TABLE strict (fence BIGINT NOT NULL)", "strict", "BIGINT NULL"),
];
/// A user who may write, and no more.
const WRITER: &str =
    "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON here.accounts TO app";
/// What a user needs to install the trigger.
const OWNER: &str = "GRANT ALTER, TRIGGER ON here.accounts TO app";
/// A column for marks.
const MARK_COLUMN: &str =
    "ALTER TABLE accounts ADD mark VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin";

include!("cases.rs");
