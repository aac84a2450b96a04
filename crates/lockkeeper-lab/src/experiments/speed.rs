//! What a lock costs when nobody else wants it. An order that is forced says nothing about speed, so
//! experiments of that kind measure it apart.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::bench::set_nx;
use crate::error::Result;
use crate::outcome::Tally;

/// So often is it taken and given back, after so often for nothing: connections and scripts are there then.
const TIMES: usize = 500;
const FIRST: usize = 50;
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
    let script = redis::Script::new(DELETE_OWN);
    let mut took = Vec::with_capacity(FIRST + TIMES);
    for _ in 0..FIRST + TIMES {
        let since = Instant::now();
        set_nx(connection, key, "1", ttl).await?;
        if matches!(how, How::SetNxExpire) {
            connection.expire::<_, ()>(key, 10).await?;
        }
        if matches!(how, How::GetDel) {
            let _: Option<String> = connection.get(key).await?;
        }
        match how {
            How::Script => script.key(key).arg("1").invoke_async::<()>(connection).await?,
            _ => connection.del(key).await?,
        }
        took.push(Instant::now().since(since));
    }
    tally.alone(took.split_off(FIRST));
    Ok(())
}

/// The same with Lockkeeper.
pub(super) async fn kept(tally: &mut Tally, locks: &Locks, name: &str) -> Result<()> {
    let mutex = locks.mutex(name);
    let mut took = Vec::with_capacity(FIRST + TIMES);
    for _ in 0..FIRST + TIMES {
        let since = Instant::now();
        mutex.lock().await?.release().await?;
        took.push(Instant::now().since(since));
    }
    tally.alone(took.split_off(FIRST));
    Ok(())
}
