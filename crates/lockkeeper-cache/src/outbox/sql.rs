//! What the two databases have in common.

use std::fmt::Write;
use std::time::Duration;

use crate::error::BoxError;

/// A statement, and waiting for a connection, takes no longer than this.
pub(super) const STATEMENT_TIME: Duration = Duration::from_secs(5);

pub(super) async fn in_time<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>> + Send,
) -> Result<T, BoxError> {
    match tokio::time::timeout(STATEMENT_TIME, statement).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(format!("the database did not answer within {STATEMENT_TIME:?}").into()),
    }
}

/// Text as the digits that both databases read: what is in it does not matter then.
pub(super) fn hex(text: &str) -> String {
    text.bytes().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

pub(super) fn age(millis: Option<i64>) -> Option<Duration> {
    // Below zero: the clock of the database was set back.
    millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}
