//! The server that is measured at, as its own counters show it.

use std::time::Duration;

use async_trait::async_trait;

use super::figure::Figure;

/// Counters of a server; what each of them is, it knows itself.
pub(crate) type Counts = [u64; 3];

/// The server at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time on a processor, in s.
    pub(crate) cpu: f64,
    pub(crate) counts: Counts,
}

impl Sample {
    /// What was counted since.
    pub(crate) fn since(&self, before: &Self) -> Counts {
        let both = std::iter::zip(self.counts, before.counts);
        let mut since = Counts::default();
        since.iter_mut().zip(both).for_each(|(n, (now, then))| *n = now.saturating_sub(then));
        since
    }
}

/// What many clients on one name have made a server do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) counts: Counts,
    /// How often the lock was granted, and how often to another client than before.
    pub(crate) grants: f64,
    pub(crate) passes: f64,
    /// What [`Server::look_closely`] saw.
    pub(crate) closely: Option<f64>,
}

/// Takes note of a figure.
pub(crate) type Note<'a> = &'a mut (dyn FnMut(Figure, f64) + Send);

#[async_trait]
pub(crate) trait Server: Send + Sync {
    async fn version(&self) -> String;

    async fn sample(&self) -> Sample;

    /// Forgets everything, so that no measurement finds what another left behind.
    async fn clear(&self);

    /// What row 2 shows of the counters.
    fn pairs(&self, counts: Counts, pairs: f64, note: Note<'_>);

    /// Looks for so long at what the counters do not tell, while a crowd goes on.
    async fn look_closely(&self, _during: Duration) -> Option<f64> {
        None
    }

    /// What row 5 shows of the counters. An error: what could not be seen.
    fn crowd(&self, crowd: Crowd, note: Note<'_>) -> Result<(), String>;
}
