//! PostgreSQL.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, QueryBuilder, Row};

use super::sealed::Dialect;
use super::{Error, Result, System, Table, identifier, quote, store};

impl System for Postgres {}

/// What can be fenced, by `pg_class.relkind` and whether it is a partition; or what it is instead.
fn kind(kind: &str, partition: bool) -> Result<(), &'static str> {
    match (kind, partition) {
        ("r", false) => Ok(()),
        // A row that moves to another partition is deleted and inserted, which the trigger refuses.
        ("p", _) | ("r", true) => Err("partitioned, or a partition"),
        ("v" | "m", _) => Err("a view"),
        ("f", _) => Err("a foreign table"),
        _ => Err("not a table"),
    }
}

/// The function of the trigger, in the schema of the table.
fn function(table: &Table<Postgres>, schema: &str) -> Result<String> {
    let name = identifier(&format!("lockkeeper_fence_{}", table.name));
    let name = name.map_err(|_| {
        let why = "its name is too long for the name of a function of its own";
        Error::Invalid(format!("{table} cannot have a trigger: {why}"))
    })?;
    // Comes from the catalog, where it may have any characters.
    let schema = schema.replace('"', "\"\"");
    Ok(format!("\"{schema}\".{}", quote::<Postgres>(&name)))
}

fn failed(table: &Table<Postgres>, doing: &str, error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(|error| error.code());
    let hint = match code.as_deref() {
        Some("42501") => {
            "; only the owner of a table may, with the right to create functions in its schema \
             (docs/OPERATIONS.md)"
        }
        Some("55P03" | "57014") => "; somebody keeps the table locked",
        Some("25006") => "; the server is read-only: a replica?",
        _ => "",
    };
    store(format!("{doing} of {table} failed{hint}"), error)
}

/// The schema that the table is in, if it can be fenced.
async fn find(table: &Table<Postgres>, connection: &mut PgConnection) -> Result<String> {
    let ask = "SELECT c.relkind::text, c.relispartition, n.nspname::text FROM pg_class c \
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";
    // Asked once: nothing of it is to stay in a session that may be lent to others.
    let asked = sqlx::query(ask).persistent(false).bind(table.quoted());
    let asked = asked.fetch_optional(connection);
    let looking = |error| failed(table, "looking for the table", error);
    let Some(row) = asked.await.map_err(looking)? else {
        return Err(Error::Invalid(format!("there is no table {table}, or not for this user")));
    };
    let is: String = row.try_get(0).map_err(looking)?;
    let partition: bool = row.try_get(1).map_err(looking)?;
    if let Err(what) = kind(&is, partition) {
        return Err(Error::Invalid(format!("{table} cannot have a fence's trigger: it is {what}")));
    }
    row.try_get(2).map_err(looking)
}

/// The columns that are there already must be able to hold a token.
async fn check_columns(table: &Table<Postgres>, connection: &mut PgConnection) -> Result<()> {
    let ask = "SELECT attname::text, atttypid::regtype::text FROM pg_attribute \
               WHERE attrelid = to_regclass($1) AND attname IN ($2, $3) AND NOT attisdropped \
               AND (atttypid <> 'bigint'::regtype OR attnotnull OR attgenerated <> '')";
    let asked = sqlx::query(ask).persistent(false);
    let asked = asked.bind(table.quoted()).bind(&table.column).bind(table.by());
    let looking = |error| failed(table, "looking at the columns", error);
    match asked.fetch_optional(connection).await.map_err(looking)? {
        None => Ok(()),
        Some(row) => {
            let column: String = row.try_get(0).map_err(looking)?;
            Err(Error::Invalid(format!("the column {column} of {table} must be a BIGINT NULL")))
        }
    }
}

impl Dialect for Postgres {
    const QUOTE: char = '"';
    const NUMBER: &'static str = "bigint";
    const AS_IT_IS: &'static str = "";

    const LOCK_NAME: &'static str = "text";
    const OR_LARGER: &'static str =
        "ON CONFLICT (name) DO UPDATE SET {fence} = GREATEST({table}.{fence}, excluded.{fence})";

    fn bind(sql: &mut QueryBuilder<Self>, number: i64) {
        sql.push_bind(number);
    }

    fn bind_text(sql: &mut QueryBuilder<Self>, text: &str) {
        sql.push_bind(text.to_owned());
    }

    async fn execute(
        sql: &mut QueryBuilder<Self>,
        prepared: bool,
        connection: &mut PgConnection,
    ) -> Result<u64, sqlx::Error> {
        Ok(sql.build().persistent(prepared).execute(connection).await?.rows_affected())
    }

    async fn numbers(
        sql: &mut QueryBuilder<Self>,
        prepared: bool,
        connection: &mut PgConnection,
    ) -> Result<Vec<Option<i64>>, sqlx::Error> {
        sql.build_query_scalar().persistent(prepared).fetch_all(connection).await
    }

    async fn install(table: &Table<Self>, connection: &mut PgConnection) -> Result<()> {
        let installing = |error| failed(table, "installing the trigger", error);
        let mut transaction = connection.begin().await.map_err(installing)?;
        let schema = find(table, &mut transaction).await?;
        check_columns(table, &mut transaction).await?;
        let sql = include_str!("trigger_postgres.sql")
            .replace("{function}", &function(table, &schema)?)
            .replace("{table}", &table.quoted())
            .replace("{name}", &table.to_string())
            .replace("{fence}", &quote::<Self>(&table.column))
            .replace("{by}", &quote::<Self>(&table.by()))
            .replace("{hint}", &table.hint());
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.map_err(installing)?;
        transaction.commit().await.map_err(installing)
    }

    async fn remove(table: &Table<Self>, connection: &mut PgConnection) -> Result<()> {
        let removing = |error| failed(table, "removing the trigger", error);
        let mut transaction = connection.begin().await.map_err(removing)?;
        let schema = find(table, &mut transaction).await?;
        let sql = format!(
            "DROP TRIGGER IF EXISTS lockkeeper_fence ON {}; DROP FUNCTION IF EXISTS {}()",
            table.quoted(),
            function(table, &schema)?
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await.map_err(removing)?;
        transaction.commit().await.map_err(removing)
    }
}
