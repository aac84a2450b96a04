//! A connection as the library has it.

use std::str::FromStr;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions};

/// What an operator or a lock by hand uses. What fails ends the process.
pub(crate) enum Client {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Self {
        if is_postgres(url) {
            let options = PgConnectOptions::from_str(url).unwrap().ssl_mode(PgSslMode::Disable);
            let options = options.extra_float_digits(None);
            Self::Postgres(options.disable_statement_logging().connect().await.unwrap())
        } else {
            let options = MySqlConnectOptions::from_str(url).unwrap();
            let options = options
                .ssl_mode(MySqlSslMode::Disabled)
                // The library's sessions are as the server makes them; so are these.
                .pipes_as_concat(false)
                .no_engine_substitution(false)
                .timezone(None)
                .set_names(false);
            Self::MySql(options.disable_statement_logging().connect().await.unwrap())
        }
    }

    /// One round trip, as text.
    pub(crate) async fn run(&mut self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Postgres(client) => drop(sql.execute(client).await.unwrap()),
            Self::MySql(client) => drop(sql.execute(client).await.unwrap()),
        }
    }

    /// One round trip, prepared once, with one value. `$1` stands for it.
    pub(crate) async fn run_prepared(&mut self, sql: &str, value: &str) {
        match self {
            Self::Postgres(client) => {
                let query = sqlx::query(AssertSqlSafe(sql.to_owned())).bind(value);
                query.execute(client).await.unwrap();
            }
            Self::MySql(client) => {
                let query = sqlx::query(AssertSqlSafe(sql.replace("$1", "?"))).bind(value);
                query.execute(client).await.unwrap();
            }
        }
    }

    /// The first column of the only row.
    pub(crate) async fn text(&mut self, sql: &str) -> String {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(client) => sqlx::query_scalar(sql).fetch_one(client).await.unwrap(),
            Self::MySql(client) => sqlx::query_scalar(sql).fetch_one(client).await.unwrap(),
        }
    }
}

pub(crate) fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres")
}
