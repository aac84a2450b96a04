//! How far followers have come.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::entry::Ticket;

/// How far followers have come in the logs that they read, kept where the entries are: what is known of the
/// entries is forgotten with them.
///
/// One record for each name: the position, and the ticket and the fencing token of who claimed it last. **Only who claimed
/// last can save, and only at the server where the claim was made.** The claim and the look at the position are one step.
/// So whoever saves has done everything since the position that was there when he claimed, and nobody else has saved since;
/// and what a server has that took over is older or missing, but never newer than what was done there.
///
/// # Tokens
///
/// A claim with a smaller token than the one before is refused: it comes late, of somebody who has lost his lock since.
/// That saves the right one a new beginning and is not what makes it safe, which is the ticket. So the rule has an end: locks
/// that have lost their counter give smaller tokens for ever, and who claimed with a larger one is dead. When he has given no
/// sign of life for the `patience` of the next one, any token does. Each save is a sign of life.
#[async_trait]
pub trait Positions: Send + Sync {
    /// Claims the record of a follower. Whoever claimed it before cannot save any more. May be sent again.
    async fn claim(
        &self,
        follower: &str,
        ticket: Ticket,
        token: u64,
        patience: Duration,
    ) -> Result<Claim>;

    /// Saves a position. `false`: nothing is saved, because somebody else has claimed the record since, or it is gone, or another
    /// server has taken over. On an error it may be saved later than a following one, and then things are done twice.
    async fn save(&self, follower: &str, ticket: Ticket, position: &str) -> Result<bool>;

    /// Forgets a follower. If it runs, it begins anew.
    async fn forget(&self, follower: &str) -> Result<()>;
}

/// What comes of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is ours.
    Granted {
        /// What was saved last; `None`: nothing, or it was forgotten.
        position: Option<String>,
        /// The one before had a larger token, and gave no sign of life: the locks have lost their counter.
        overruled: bool,
    },
    /// Somebody with a larger token has claimed it, and was alive a moment ago.
    Refused,
}
