//! How far followers have come, in a hash for each: `!cdc:` and its name, after the prefix of the URL. Lists of keys
//! have strings alone, so no namespace has it.

use std::time::Duration;

use async_trait::async_trait;
use redis::Value as Reply;

use super::{CLAIM, Redis, Result, SAVE, failed, millis, strange, text};
use crate::entry::Ticket;
use crate::store::positions::{Claim, Positions};

impl Redis {
    fn record(&self, follower: &str) -> String {
        self.key(&format!("!cdc:{follower}")).into_owned()
    }
}

#[async_trait]
impl Positions for Redis {
    async fn claim(
        &self,
        follower: &str,
        ticket: Ticket,
        token: u64,
        patience: Duration,
    ) -> Result<Claim> {
        let (ticket, token) = (ticket.to_bytes(), token.to_be_bytes());
        let arguments: [&[u8]; 3] = [&ticket, &token, &text(millis(patience))];
        let reply = self.run(&CLAIM, &[&self.record(follower)], &arguments).await?;
        let position = match &reply[..] {
            [_, Reply::Int(0)] => return Ok(Claim::Refused),
            [_, Reply::Int(_), Reply::BulkString(position)] => {
                Some(String::from_utf8(position.clone()).map_err(|_| strange(&reply))?)
            }
            [_, Reply::Int(_), Reply::Nil] => None,
            _ => return Err(strange(&reply)),
        };
        Ok(Claim::Granted { position, overruled: reply[1] == Reply::Int(2) })
    }

    async fn save(&self, follower: &str, ticket: Ticket, position: &str) -> Result<bool> {
        let arguments: [&[u8]; 2] = [&ticket.to_bytes(), position.as_bytes()];
        let reply = self.run(&SAVE, &[&self.record(follower)], &arguments).await?;
        Ok(matches!(reply[..], [_, Reply::Int(1)]))
    }

    async fn forget(&self, follower: &str) -> Result<()> {
        let (record, mut delete) = (self.record(follower), redis::cmd("DEL"));
        self.servers.keyspace.query(&record, delete.arg(&record)).await.map_err(failed)
    }
}
