//! How far followers have come, inside this process.

use std::time::Duration;

use async_trait::async_trait;

use super::{Memory, Result, millis};
use crate::entry::{Millis, Ticket};
use crate::store::positions::{Claim, Positions};

/// The record of one follower.
pub(super) struct Record {
    ticket: Ticket,
    token: u64,
    seen: Millis,
    position: Option<String>,
}

#[async_trait]
impl Positions for Memory {
    async fn claim(
        &self,
        follower: &str,
        ticket: Ticket,
        token: u64,
        patience: Duration,
    ) -> Result<Claim> {
        let mut records = self.shared.positions.lock();
        let seen = (self.shared.clock)();
        let (mut overruled, mut position) = (false, None);
        if let Some(last) = records.get(follower) {
            overruled = token < last.token;
            if overruled && seen.saturating_sub(last.seen) < millis(patience) {
                return Ok(Claim::Refused);
            }
            position.clone_from(&last.position);
        }
        let record = Record { ticket, token, seen, position: position.clone() };
        records.insert(follower.to_owned(), record);
        Ok(Claim::Granted { position, overruled })
    }

    async fn save(&self, follower: &str, ticket: Ticket, position: &str) -> Result<bool> {
        let mut records = self.shared.positions.lock();
        let Some(record) = records.get_mut(follower).filter(|record| record.ticket == ticket)
        else {
            return Ok(false);
        };
        (record.position, record.seen) = (Some(position.to_owned()), (self.shared.clock)());
        Ok(true)
    }

    async fn forget(&self, follower: &str) -> Result<()> {
        self.shared.positions.lock().remove(follower);
        Ok(())
    }
}
