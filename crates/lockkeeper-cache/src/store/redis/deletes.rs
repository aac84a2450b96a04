//! Deletes that are to come later, in a sorted set: the score is when.

use std::str::from_utf8;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value as Reply;

use super::{DONE, DUE, Redis, Result, SCHEDULE, millis, strange, text};
use crate::entry::{Millis, Ticket};
use crate::store::deletes::{Delete, Deletes, Due};

fn member(ticket: Ticket, key: &str) -> Vec<u8> {
    [&ticket.to_bytes(), key.as_bytes()].concat()
}

fn delete(member: &Reply, at: &Reply) -> Option<Delete> {
    let (Reply::BulkString(member), Reply::BulkString(at)) = (member, at) else { return None };
    let (ticket, key) = member.split_first_chunk()?;
    let (ticket, key) = (Ticket::from_bytes(*ticket), from_utf8(key).ok()?.to_owned());
    Some(Delete { ticket, key, at: from_utf8(at).ok()?.parse::<Millis>().ok()? })
}

#[async_trait]
impl Deletes for Redis {
    async fn schedule(
        &self,
        queue: &str,
        ticket: Ticket,
        key: &str,
        after: Duration,
        keep: Duration,
    ) -> Result<()> {
        let (after, keep) = (text(millis(after)), text(millis(keep)));
        let arguments: [&[u8]; 3] = [&member(ticket, key), &after, &keep];
        self.run(&SCHEDULE, &[&self.key(queue)], &arguments).await.map(|_| ())
    }

    async fn due(&self, queue: &str, most: usize) -> Result<Due> {
        let most = most.to_string();
        let reply = self.run(&DUE, &[&self.key(queue)], &[most.as_bytes()]).await?;
        let [_, Reply::Array(due), Reply::Int(next)] = &reply[..] else {
            return Err(strange(&reply));
        };
        let (mut deletes, mut foreign) = (Vec::new(), Vec::new());
        for pair in due.chunks_exact(2) {
            match (delete(&pair[0], &pair[1]), pair) {
                (Some(delete), _) => deletes.push(delete),
                (None, [Reply::BulkString(member), Reply::BulkString(at)]) => {
                    foreign.extend([&member[..], &at[..]]);
                }
                (None, _) => return Err(strange(&reply)),
            }
        }
        if !foreign.is_empty() {
            // Else it would be due for ever, and hide what is due after it.
            tracing::warn!(queue, "something in a queue of deletes is no delete, and is dropped");
            self.run(&DONE, &[&self.key(queue)], &foreign).await?;
        }
        Ok(Due { deletes, next: u64::try_from(*next).ok().map(Duration::from_millis) })
    }

    async fn done(&self, queue: &str, deletes: &[Delete]) -> Result<()> {
        let pairs = deletes.iter().flat_map(|one| [member(one.ticket, &one.key), text(one.at)]);
        let pairs: Vec<Vec<u8>> = pairs.collect();
        let arguments: Vec<&[u8]> = pairs.iter().map(Vec::as_slice).collect();
        self.run(&DONE, &[&self.key(queue)], &arguments).await.map(|_| ())
    }
}
