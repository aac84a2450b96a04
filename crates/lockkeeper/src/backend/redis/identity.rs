//! Which server it is that answers: neither its address nor its name, but the process and the history of its data.
//!
//! A server that was started again with old data, and a replica that has taken over, are others. So is one that was a
//! master, a replica and a master again: it may have missed what happened meanwhile, and its process is the same.

use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult};

use crate::clock::Instant;

/// For so long an answer is believed on a connection that stays. In a cluster nobody closes it when a master becomes a
/// replica; and a server begins a new history by itself when its last replica has been gone for long.
const BELIEVED: Duration = Duration::from_secs(5);

/// The server at the other end of one connection, once it was asked.
#[derive(Default)]
pub(super) struct Identity {
    known: Mutex<Option<(u64, Instant)>>,
    asking: tokio::sync::Mutex<()>,
}

impl Identity {
    fn known(&self) -> Option<u64> {
        let known = *self.known.lock();
        known.filter(|(_, asked)| Instant::now().since(*asked) < BELIEVED).map(|(who, _)| who)
    }

    /// Who it was when it was last asked, however long ago.
    pub(super) fn last(&self) -> Option<u64> {
        self.known.lock().map(|(who, _)| who)
    }

    /// Who it is. Asked by one task for all, on the connection that it is about.
    pub(super) async fn of(&self, connection: &mut MultiplexedConnection) -> RedisResult<u64> {
        if let Some(who) = self.known() {
            return Ok(who);
        }
        // Apart, because it is rare, and large.
        Box::pin(self.ask(connection)).await
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> RedisResult<u64> {
        let _alone = self.asking.lock().await;
        if let Some(who) = self.known() {
            return Ok(who);
        }
        let sent = Instant::now();
        let mut ask = redis::pipe();
        ask.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let (server, replication): (String, String) = ask.query_async(connection).await?;
        let who = read(&server, &replication).ok_or_else(|| {
            RedisError::from((ErrorKind::Parse, "INFO names no run_id and no master_replid"))
        })?;
        *self.known.lock() = Some((who, sent));
        Ok(who)
    }
}

fn read(server: &str, replication: &str) -> Option<u64> {
    let process = field(server, "run_id:")?;
    let history = field(replication, "master_replid:")?;
    // Zero stands for nobody.
    Some(hash(process.bytes().chain(*b"/").chain(history.bytes())).max(1))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_end().strip_prefix(name)).filter(|it| !it.is_empty())
}

/// FNV-1a. Part of what others store: do not change it.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_and_another_history_are_others() {
        let said = |run: &str, history: &str| {
            let server = format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\n");
            read(&server, &format!("role:master\r\nmaster_replid:{history}\r\n"))
        };
        let one = said("a1", "b1");
        assert!(one.is_some());
        assert_eq!(one, said("a1", "b1"));
        assert_ne!(one, said("a2", "b1"));
        assert_ne!(one, said("a1", "b2"));
        assert_eq!(said("", "b1"), None);
        assert_eq!(read("", ""), None);
    }

    /// Programs of two versions must agree. The first two are from the paper.
    #[test]
    fn pinned() {
        assert_eq!(hash("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar".bytes()), 0x8594_4171_f739_67e8);
    }
}
