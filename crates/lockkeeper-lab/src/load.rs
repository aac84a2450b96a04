//! What a program costs when nobody is in its way. An order that is forced says nothing about speed, so that is measured
//! apart.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper::clock::Instant;
use tokio::sync::Barrier;

use crate::error::Result;
use crate::outcome::Tally;

/// So many clients at the same time, each with keys of its own. One alone is as fast as the system wakes it and the server up, which
/// differs by a factor of two from one run to the next; these keep both awake.
const CLIENTS: usize = 8;

/// What each does for nothing first: connections and scripts are there then.
const FIRST: usize = 5;

/// One of the clients, which does something again and again.
pub(crate) struct Client {
    /// Which.
    pub(crate) number: usize,
    start: Arc<Barrier>,
    laps: usize,
    since: Instant,
    took: Vec<Duration>,
}

impl Client {
    /// One more, if there are less than so many. The first ones are for nothing; those that count begin when all clients are
    /// ready.
    pub(crate) async fn again(&mut self, times: usize) -> bool {
        if self.laps > FIRST {
            self.took.push(Instant::now().since(self.since));
        }
        if self.laps == FIRST {
            self.start.wait().await;
        }
        self.laps += 1;
        self.since = Instant::now();
        self.laps <= in_all(times)
    }

    /// How long each took.
    pub(crate) fn took(self) -> Vec<Duration> {
        self.took
    }
}

/// How often something is done that counts so often.
pub(crate) const fn in_all(times: usize) -> usize {
    FIRST + times
}

/// Lets all clients do it, and counts how fast they were.
pub(crate) async fn measure<F>(tally: &mut Tally, work: impl Fn(Client) -> F) -> Result<()>
where
    F: Future<Output = Result<Vec<Duration>>>,
{
    let start = Arc::new(Barrier::new(CLIENTS));
    let clients = (0..CLIENTS).map(|number| {
        let (start, since) = (Arc::clone(&start), Instant::now());
        work(Client { number, start, laps: 0, since, took: Vec::new() })
    });
    let took = try_join_all(clients).await?;
    let busy = took.iter().map(|took| took.iter().sum::<Duration>()).max();
    tally.within(busy.unwrap_or_default());
    tally.operations(took.into_iter().flatten());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_first_does_not_count() {
        let mut tally = Tally::new();
        let work = |mut client: Client| async move {
            let mut done = 0;
            while client.again(7).await {
                done += 1;
            }
            assert_eq!(done, in_all(7));
            Ok(client.took())
        };
        measure(&mut tally, work).await.unwrap();
        let outcome = tally.end(crate::timeline::Timeline::tell);
        assert_eq!(outcome.operations, u64::try_from(7 * CLIENTS).unwrap());
        assert!(outcome.throughput.is_some());
    }
}
