//! A stock in segments: so many of something, taken by many at a time.

mod plan;
mod segment;
mod shelf;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;

use self::shelf::{Change, SETTLED, Shelf};
use super::target::Target;
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::name::Name;

/// How long a caller waits before it is told that the outcome is not known.
const PATIENCE: Duration = Duration::from_secs(15);

/// So many of something, kept at a store in segments, so that many processes can take at a time
/// without standing in each other's way: 200 tickets in 10 segments of 20.
///
/// Made by [`Locks::stock`]. Make it once and clone it: clones share what they have seen of the stock,
/// which saves a round trip each time.
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let tickets = locks.stock("tickets/42", 10);
/// tickets.restock(200).await?;
/// assert!(tickets.take(5).await?);
/// assert!(tickets.take(21).await?, "more than a segment has: from several at once");
/// assert_eq!(tickets.remaining().await?, 174);
/// assert!(!tickets.take(175).await?, "nothing is taken");
/// # Ok(())
/// # }
/// ```
///
/// # What it promises
///
/// - Every change is one atomic step at the store, over however many segments. So there is never less
///   than nothing, never a part of a request taken, and a process that is killed or stopped in the
///   middle has taken all that it asked for, or nothing.
/// - [`take`](Self::take) says no only if there was not enough in *all* segments together, at one moment
///   during the call.
/// - A request whose answer is lost is not carried out twice: it finds out what came of it.
/// - A step that reaches the store late finds the segment changed and does nothing.
///
/// # When it breaks
///
/// A process that dies between taking and telling anybody has taken: write down what you are about to
/// take where that matters. So has one that ends while it puts back what a dropped call has taken. A
/// store that loses what it has acknowledged (a fail-over of Redis, a server without persistence) gives
/// the same units out again. What is at the store stays there until it is deleted by hand; deleting it
/// while it is in use can give units out twice. A request that is unlucky for ten seconds, because others
/// were faster every time, gives up: [`Error::Unavailable`].
///
/// # Cost
///
/// One round trip to take from a segment that nobody else has changed since; two more after somebody
/// has. Who finds others in its segment moves to another one: with as many segments as processes that
/// take at a time, all of them soon have one to themselves. A request that needs several, and is not lucky,
/// gathers them one by one in a spare segment.
#[derive(Clone, Debug)]
pub struct StripedStock {
    target: Target,
    shelf: Arc<Shelf>,
}

impl StripedStock {
    pub(crate) fn new(locks: &Locks, name: &str, segments: usize) -> Self {
        let target = Target::new(locks, name);
        let shelf = Arc::new(Shelf::new(Arc::clone(&target.inner), segments));
        Self { target, shelf }
    }

    /// Takes `amount`, all or nothing; whether there was enough. Does not wait for more.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] when the store did not answer and it is not known whether it was taken: what
    /// turns out to be taken is put back within a minute, unless the store is away for longer, or more
    /// than 64 clients have written into the segment since. [`Error::Unavailable`]: nothing was taken.
    /// [`Error::Config`] when the stock was made with another number of segments.
    ///
    /// # Cancel safety
    ///
    /// What was taken by a call whose future was dropped is put back, in the background. One that is kept
    /// and not polled keeps its segment from the other tasks of this process: drop it.
    pub async fn take(&self, amount: u64) -> Result<bool> {
        if amount == 0 {
            return Ok(true);
        }
        self.change("taking from the stock", Change::Take(amount)).await
    }

    /// Adds `amount`, to the emptiest segments first. Also to put back what was taken.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when there would be more than 2^64 - 1; otherwise as for
    /// [`take`](Self::take), except that what turns out to be added stays.
    ///
    /// # Cancel safety
    ///
    /// Goes on in the background if its future is dropped.
    pub async fn restock(&self, amount: u64) -> Result<()> {
        if amount == 0 {
            return Ok(());
        }
        self.change("the restocking", Change::Restock(amount)).await.map(drop)
    }

    /// Adds `amount` if nothing was ever added; whether it did. For many processes that start alike.
    ///
    /// # Errors
    ///
    /// As for [`restock`](Self::restock).
    ///
    /// # Cancel safety
    ///
    /// As for [`restock`](Self::restock).
    pub async fn restock_first(&self, amount: u64) -> Result<bool> {
        self.change("the first restocking", Change::First(amount)).await
    }

    /// How much there is in all segments together, at one moment during the call.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn remaining(&self) -> Result<u64> {
        // More than there are numbers for, if several have restocked at once.
        let amounts = self.shelf.amounts(self.target.name()?).await?;
        Ok(plan::total(&amounts).unwrap_or(u64::MAX))
    }

    /// How much there is in each segment, at one moment during the call; one more, the last, if a large
    /// request has gathered something apart, where others can still have it.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn segments(&self) -> Result<Vec<u64>> {
        let mut amounts = self.shelf.amounts(self.target.name()?).await?;
        amounts.pop_if(|spare| *spare == 0);
        Ok(amounts)
    }

    /// To its end, whoever waits for it: what was sent must be seen to.
    async fn change(&self, operation: &'static str, change: Change) -> Result<bool> {
        let inner = &self.target.inner;
        if !inner.is_open() {
            return Err(Error::ShutDown);
        }
        let name = self.target.name()?.clone();
        let (shelf, of) = (Arc::clone(&self.shelf), name.clone());
        let work = async move {
            let done = shelf.change(&of, change, Instant::now()).await?;
            let undo = (done && matches!(change, Change::Take(_))).then_some((shelf, of));
            Ok(Done { done, change, undo })
        };
        let runtime = inner.keeper.runtime().clone();
        let underway = Underway { work: Some(Box::pin(work)), runtime };
        match tokio::time::timeout(PATIENCE, underway).await {
            Ok(done) => Ok(done?.accepted()),
            Err(late) => {
                Err(Error::Unknown { name, operation, within: SETTLED, source: late.into() })
            }
        }
    }
}

/// A change in the hands of its caller, which costs no task of its own. If it is let go of in the middle,
/// it goes on in the background.
struct Underway {
    work: Option<Pin<Box<dyn Future<Output = Result<Done>> + Send>>>,
    runtime: Handle,
}

impl Future for Underway {
    type Output = Result<Done>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Ready(Err(Error::ShutDown)) };
        let done = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(done)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // What was taken for nobody comes back, is dropped, and so undone.
            self.runtime.spawn(async { work.await.map(drop) });
        }
    }
}

/// What came of a change. What was taken is put back unless somebody has it.
struct Done {
    done: bool,
    change: Change,
    undo: Option<(Arc<Shelf>, Name)>,
}

impl Done {
    fn accepted(mut self) -> bool {
        self.undo = None;
        self.done
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        let (Some((shelf, name)), Change::Take(amount)) = (self.undo.take(), self.change) else {
            return;
        };
        let runtime = shelf.inner.keeper.runtime().clone();
        runtime.spawn(async move {
            let back = Change::Restock(amount);
            if let Err(error) = shelf.change(&name, back, Instant::now()).await {
                tracing::error!(%name, amount, %error, "taken for nobody, and not put back");
            }
        });
    }
}
