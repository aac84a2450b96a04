//! A read-write lock by hand, as Redisson has it: a hash with the mode, and how often each one has it.

use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::error::Result;

/// Takes it together with others who read.
pub const READ: &str = "local mode = redis.call('HGET', KEYS[1], 'mode')
if mode and mode ~= 'read' then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'read')
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";
/// Takes it alone.
pub const WRITE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";
/// Gives it back, in either mode.
pub const UNLOCK: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
return 1";

/// Runs one of the scripts for `who`; whether it did anything.
///
/// # Errors
///
/// When the server does not answer.
pub async fn ask(
    connection: &mut MultiplexedConnection,
    script: &str,
    key: &str,
    who: &str,
    ttl: Duration,
) -> Result<bool> {
    let script = Script::new(script);
    let mut call = script.key(key);
    call.arg(who).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    Ok(call.invoke_async::<u64>(connection).await? == 1)
}
