//! What a lock costs when nobody else wants it.

use std::time::Duration;

use lockkeeper::Locks;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::bench::set_nx;
use crate::error::Result;
use crate::load::{self, Client};
use crate::outcome::Tally;

/// So often does each client take it and give it back.
const TIMES: usize = 500;
/// Long enough not to matter.
const TTL: Duration = Duration::from_secs(10);

/// Deletes a lock if it is one's own, in one step.
pub(super) const DELETE_OWN: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How a lock is taken and given back.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// `SETNX`, `DEL`.
    SetNx,
    /// `SETNX`, `EXPIRE`, `DEL`.
    SetNxExpire,
    /// `SET NX PX`, `DEL`.
    SetNxPx,
    /// `SET NX PX`, `GET`, `DEL`.
    GetDel,
    /// `SET NX PX`, and the script.
    Script,
}

/// Takes it and gives it back, by hand.
pub(super) async fn home_made(
    tally: &mut Tally,
    connection: &mut MultiplexedConnection,
    key: &str,
    how: How,
) -> Result<()> {
    let ttl = (!matches!(how, How::SetNx | How::SetNxExpire)).then_some(TTL);
    let (connection, script) = (&*connection, &redis::Script::new(DELETE_OWN));
    let work = |mut client: Client| async move {
        let (mut connection, key) = (connection.clone(), format!("{key}-{}", client.number));
        while client.again(TIMES).await {
            set_nx(&mut connection, &key, "1", ttl).await?;
            if matches!(how, How::SetNxExpire) {
                connection.expire::<_, ()>(&key, 10).await?;
            }
            if matches!(how, How::GetDel) {
                let _: Option<String> = connection.get(&key).await?;
            }
            match how {
                How::Script => {
                    script.key(&key).arg("1").invoke_async::<()>(&mut connection).await?;
                }
                _ => connection.del::<_, ()>(&key).await?,
            }
        }
        Ok(client.took())
    };
    load::measure(tally, work).await
}

/// The same with Lockkeeper.
pub(super) async fn kept(tally: &mut Tally, locks: &Locks, name: &str) -> Result<()> {
    let work = |mut client: Client| async move {
        let mutex = locks.mutex(format!("{name}-{}", client.number));
        while client.again(TIMES).await {
            mutex.lock().await?.release().await?;
        }
        Ok(client.took())
    };
    load::measure(tally, work).await
}
