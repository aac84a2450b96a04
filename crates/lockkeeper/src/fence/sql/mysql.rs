//! MySQL and MariaDB.

use sqlx::{AssertSqlSafe, MySql, MySqlConnection, QueryBuilder, Row};

use super::sealed::Dialect;
use super::{Error, Result, System, Table, identifier, quote, store};

impl System for MySql {}

/// Each event needs a trigger of its own.
const EVENTS: [(&str, &str); 3] = [
    ("UPDATE", include_str!("trigger_mysql_update.sql")),
    ("INSERT", include_str!("trigger_mysql_insert.sql")),
    ("DELETE", include_str!("trigger_mysql_delete.sql")),
];

/// The schema of the table, in SQL with one placeholder for it.
const SCHEMA: &str = "COALESCE(?, DATABASE())";

fn trigger(table: &Table<MySql>, event: &str) -> Result<String> {
    let name = identifier(&format!("lockkeeper_{}_{}", event.to_ascii_lowercase(), table.name));
    name.map_err(|_| {
        let why = "its name is too long for the name of a trigger";
        Error::Invalid(format!("{table} cannot have a trigger: {why}"))
    })
}

fn failed(table: &Table<MySql>, doing: &str, error: sqlx::Error) -> Error {
    use sqlx::mysql::MySqlDatabaseError;
    let said = error.as_database_error();
    let number = said.and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    let hint = match number.map(MySqlDatabaseError::number) {
        Some(1142 | 1143 | 1227 | 1044) => {
            "; the user needs the rights ALTER, TRIGGER, SELECT and UPDATE on the table \
             (docs/OPERATIONS.md)"
        }
        Some(1419) => {
            "; where there is a binary log, the server lets others than administrators make triggers \
             with log_bin_trust_function_creators = 1 only"
        }
        Some(1290 | 1836 | 1792) => "; the server is read-only: a replica?",
        Some(1205) => "; somebody keeps the table locked",
        _ => "",
    };
    store(format!("{doing} of {table} failed{hint}"), error)
}

async fn run(connection: &mut MySqlConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// Refuses what cannot be fenced.
async fn check(table: &Table<MySql>, connection: &mut MySqlConnection) -> Result<()> {
    let looking = |error| failed(table, "looking for the table", error);
    let ask = format!(
        "SELECT CAST(table_type AS CHAR), CAST(COALESCE(e.transactions, '') AS CHAR) \
         FROM information_schema.tables t LEFT JOIN information_schema.engines e \
         ON e.engine = t.engine WHERE t.table_schema = {SCHEMA} AND t.table_name = ?"
    );
    let asked = sqlx::query(AssertSqlSafe(ask)).bind(&table.schema).bind(&table.name);
    let Some(row) = asked.fetch_optional(connection).await.map_err(looking)? else {
        return Err(Error::Invalid(format!("there is no table {table}, or not for this user")));
    };
    let (kind, transactions): (String, String) =
        (row.try_get(0).map_err(looking)?, row.try_get(1).map_err(looking)?);
    let what = match &*kind {
        "BASE TABLE" if transactions == "YES" => return Ok(()),
        "BASE TABLE" => "of an engine without transactions",
        "VIEW" => "a view",
        _ => "not a table",
    };
    Err(Error::Invalid(format!("{table} cannot have a fence's trigger: it is {what}")))
}

/// Adds a column where it is missing; what is there must be able to hold a token.
async fn add_column(
    table: &Table<MySql>,
    column: &str,
    connection: &mut MySqlConnection,
) -> Result<()> {
    let adding = |error| failed(table, "adding a column", error);
    let ask = format!(
        "SELECT CAST(data_type AS CHAR), CAST(is_nullable AS CHAR), CAST(extra AS CHAR) \
         FROM information_schema.columns \
         WHERE table_schema = {SCHEMA} AND table_name = ? AND column_name = ?"
    );
    let asked = sqlx::query(AssertSqlSafe(ask)).bind(&table.schema).bind(&table.name).bind(column);
    let Some(row) = asked.fetch_optional(&mut *connection).await.map_err(adding)? else {
        let sql = format!(
            "ALTER TABLE {} ADD COLUMN {} BIGINT NULL",
            table.quoted(),
            quote::<MySql>(column)
        );
        return match run(connection, sql).await {
            // Somebody else was faster.
            Err(error) if is(&error, "42S21") => Ok(()),
            other => other.map_err(adding),
        };
    };
    let mut said = [const { String::new() }; 3];
    for (at, text) in said.iter_mut().enumerate() {
        *text = row.try_get(at).map_err(adding)?;
    }
    if said[0].eq_ignore_ascii_case("bigint") && said[1] == "YES" && !said[2].contains("GENERATED")
    {
        return Ok(());
    }
    Err(Error::Invalid(format!("the column {column} of {table} must be a BIGINT NULL")))
}

fn is(error: &sqlx::Error, state: &str) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some(state)
}

/// The text of a trigger that is there.
async fn body(
    table: &Table<MySql>,
    trigger: &str,
    connection: &mut MySqlConnection,
) -> Result<Option<String>, sqlx::Error> {
    let ask = format!(
        "SELECT CAST(action_statement AS CHAR) FROM information_schema.triggers \
         WHERE trigger_schema = {SCHEMA} AND trigger_name = ?"
    );
    let asked = sqlx::query_scalar(AssertSqlSafe(ask)).bind(&table.schema).bind(trigger);
    asked.fetch_optional(connection).await
}

/// A name of the trigger, in the schema of the table.
fn qualified(table: &Table<MySql>, trigger: &str) -> String {
    let trigger = quote::<MySql>(trigger);
    match &table.schema {
        Some(schema) => format!("{}.{trigger}", quote::<MySql>(schema)),
        None => trigger,
    }
}

impl Dialect for MySql {
    const QUOTE: char = '`';
    const NUMBER: &'static str = "SIGNED";
    const AS_IT_IS: &'static str = " LOCK IN SHARE MODE";

    const LOCK_NAME: &'static str = "VARBINARY(255)";
    const OR_LARGER: &'static str =
        "ON DUPLICATE KEY UPDATE {fence} = GREATEST({fence}, VALUES({fence}))";

    fn bind(sql: &mut QueryBuilder<Self>, number: i64) {
        sql.push_bind(number);
    }

    fn bind_text(sql: &mut QueryBuilder<Self>, text: &str) {
        sql.push_bind(text.to_owned());
    }

    /// The driver asks for the rows that were found (`CLIENT_FOUND_ROWS`), not for those that were
    /// changed: writing the same again counts.
    async fn execute(
        sql: &mut QueryBuilder<Self>,
        prepared: bool,
        connection: &mut MySqlConnection,
    ) -> Result<u64, sqlx::Error> {
        Ok(sql.build().persistent(prepared).execute(connection).await?.rows_affected())
    }

    async fn numbers(
        sql: &mut QueryBuilder<Self>,
        prepared: bool,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Option<i64>>, sqlx::Error> {
        sql.build_query_scalar().persistent(prepared).fetch_all(connection).await
    }

    async fn install(table: &Table<Self>, connection: &mut MySqlConnection) -> Result<()> {
        let installing = |error| failed(table, "installing the trigger", error);
        check(table, connection).await?;
        for column in [table.column.clone(), table.by()] {
            add_column(table, &column, connection).await?;
        }
        // There are no transactions for this. The first to come is that on updates, which is right
        // without the others too.
        for (event, text) in EVENTS {
            let name = trigger(table, event)?;
            let text = text
                .replace("{name}", &table.to_string())
                .replace("{fence}", &quote::<Self>(&table.column))
                .replace("{by}", &quote::<Self>(&table.by()))
                .replace("{hint}", &table.hint());
            let text = text.trim_end();
            let there = body(table, &name, connection).await.map_err(installing)?;
            if there.as_deref() == Some(text) {
                continue;
            }
            let (on, named) = (table.quoted(), qualified(table, &name));
            if there.is_some() {
                let sql = format!("DROP TRIGGER IF EXISTS {named}");
                run(connection, sql).await.map_err(installing)?;
            } else if event == "UPDATE" {
                // Of times when there was no trigger to empty it.
                let by = quote::<Self>(&table.by());
                let sql = format!("UPDATE {on} SET {by} = NULL WHERE {by} IS NOT NULL");
                run(connection, sql).await.map_err(installing)?;
            }
            let sql = format!("CREATE TRIGGER {named} BEFORE {event} ON {on} FOR EACH ROW {text}");
            match run(connection, sql).await {
                // Somebody else was faster.
                Err(error) if is(&error, "HY000") && there_is(&error) => {}
                other => other.map_err(installing)?,
            }
        }
        Ok(())
    }

    async fn remove(table: &Table<Self>, connection: &mut MySqlConnection) -> Result<()> {
        check(table, connection).await?;
        for (event, _) in EVENTS {
            let named = qualified(table, &trigger(table, event)?);
            let removed = run(connection, format!("DROP TRIGGER IF EXISTS {named}")).await;
            removed.map_err(|error| failed(table, "removing the trigger", error))?;
        }
        Ok(())
    }
}

/// Whether it says that there is such a trigger already.
fn there_is(error: &sqlx::Error) -> bool {
    use sqlx::mysql::MySqlDatabaseError;
    let said = error.as_database_error();
    let number = said.and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    number.is_some_and(|error| error.number() == 1359)
}
