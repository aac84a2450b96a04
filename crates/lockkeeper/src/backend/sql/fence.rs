//! Fences of tables, with the connection of a URL.

use std::sync::Arc;

use super::dialect::Dialect;
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::fence;
use crate::fence::sql::{System, Table};

/// Installs the trigger of a table, or removes it.
pub(super) async fn set<D, DB>(dialect: D, table: &str, on: bool) -> Result<()>
where
    D: Dialect<Connection = DB::Connection>,
    DB: System,
{
    let refused = |error| match error {
        fence::Error::Store { context, source } | fence::Error::Unknown { context, source } => {
            Error::Unavailable { backend: D::NAME, context, source }
        }
        other => Error::Config(other.to_string()),
    };
    let table = Table::<DB>::new(table).map_err(refused)?;
    let pool = Pool::new(dialect, 1);
    let lent = pool.lend().await;
    let mut lent = lent.map_err(|fault| Arc::new(fault).error(D::NAME, "connecting"))?;
    let done = match on {
        true => table.install_trigger(lent.connection()).await,
        false => table.remove_trigger(lent.connection()).await,
    };
    done.map_err(refused)
}
