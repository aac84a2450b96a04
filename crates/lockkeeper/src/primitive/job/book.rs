//! Where the ledger of a job is kept: the first cell of its name.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Cells, Write};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::locks::Inner;
use crate::name::Name;
use crate::primitive::ledger::Ledger;

/// How long to try to write something down while the store does not answer.
const INSISTING: Duration = Duration::from_secs(10);
/// The first and the longest pause between two such tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How often to begin again because somebody else has written.
const TRIES: u32 = 100;

/// The ledger of one name at one store.
pub(super) struct Book<'a> {
    inner: &'a Arc<Inner>,
    name: &'a Name,
    cells: &'a dyn Cells,
}

/// The ledger as it was seen, and the version of its cell.
type Seen = (u64, Option<Ledger>);

impl<'a> Book<'a> {
    pub(super) fn open(inner: &'a Arc<Inner>, name: &'a Name) -> Result<Self> {
        let backend = &inner.backend;
        let cells = backend.cells().ok_or_else(|| Error::Unsupported {
            backend: backend.name(),
            what: "scheduled jobs: it has nothing that all nodes see and only one can change"
                .into(),
        })?;
        Ok(Self { inner, name, cells })
    }

    /// What is in it. `None`: nothing yet.
    pub(super) async fn read(&self) -> Result<Option<Ledger>> {
        Ok(self.look().await?.1)
    }

    async fn look(&self) -> Result<Seen> {
        let cell = self.cells.read(self.name, 1).await?.pop().unwrap_or_default();
        Ok((cell.version, Ledger::read(self.name, &cell.value)?))
    }

    /// Replaces what is in it by what `next` makes of it, in one step; again if somebody was faster or
    /// the store did not answer. `None`: `next` had nothing to write.
    ///
    /// An error: it was not written, or may yet be.
    pub(super) async fn change(
        &self,
        mut next: impl FnMut(Option<&Ledger>) -> Option<Ledger>,
    ) -> Result<Option<Ledger>> {
        let (until, mut pause, mut conflicts) = (Instant::now() + INSISTING, PAUSE.0, 0);
        // What was sent last, and for which version. Of its copies one at most is carried out.
        let mut sent: Option<(u64, Ledger)> = None;
        loop {
            let error = match self.look().await {
                Ok((version, known)) => {
                    let ledger = match sent.take() {
                        Some((_, sent)) if known.as_ref().is_some_and(|known| known.has(&sent)) => {
                            return Ok(Some(sent));
                        }
                        // It may still be under way.
                        Some((expected, sent)) if expected == version => sent,
                        // It is refused from now on.
                        _ => match next(known.as_ref()) {
                            Some(ledger) => ledger,
                            None => return Ok(None),
                        },
                    };
                    let write = Write { cell: 0, version, value: ledger.to_value() };
                    match self.cells.swap(self.name, &[write]).await {
                        Ok(true) => return Ok(Some(ledger)),
                        Ok(false) if conflicts < TRIES => {
                            conflicts += 1;
                            sent = Some((version, ledger));
                            continue;
                        }
                        Ok(false) => return Err(self.crowded()),
                        Err(error) => {
                            sent = Some((version, ledger));
                            error
                        }
                    }
                }
                Err(error) => error,
            };
            if !self.cells.may_pass(&error) || Instant::now() >= until {
                return Err(error);
            }
            tracing::debug!(name = %self.name, %error, "writing down again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn crowded(&self) -> Error {
        let context = format!("others changed what is remembered of {} all the time", self.name);
        Error::Unavailable { backend: self.inner.backend.name(), context, source: None }
    }
}
