//! Filling a filter from a source, while it is used.

use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lockkeeper::clock::Instant;

use super::{BoxError, Build, Filter, FilterError, Shape};

/// After so many keys it is told how far it is, and others have their turn.
const STEP: u64 = 1024;

/// So often a store hears that the filter is still being built.
const KEEP: Duration = Duration::from_secs(3);

/// How a filter is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How large it becomes; the old one may have had another size.
    pub shape: Shape,
    /// How long to wait before the source is read: the longest that a write takes from its insert into
    /// the filter to its commit. 10 s; zero where nobody writes yet.
    pub settle: Duration,
}

impl Plan {
    /// With the usual time to settle.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, settle: Duration::from_secs(10) }
    }

    /// Waits so long before the source is read. Shorter than a write takes: its key may be missing.
    #[must_use]
    pub const fn settle(self, settle: Duration) -> Self {
        Self { settle, ..self }
    }
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// So many keys were loaded.
    pub keys: u64,
    /// Since so long.
    pub took: Duration,
}

/// A rebuild that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loaded {
    /// So many keys were loaded, the same one perhaps more than once.
    pub keys: u64,
    /// How long it took, with the time to settle.
    pub took: Duration,
    /// The error rate to be expected with that many keys. If it is more than was asked for, there are
    /// more keys than the filter was sized for.
    pub error_rate: f64,
}

/// Builds a filter anew from all keys that exist, and puts it in the place of the one that is used.
///
/// 1. Begins the new filter: inserts of all processes go to both from now on.
/// 2. Waits for [`Plan::settle`], so that what was inserted before is committed.
/// 3. Calls `source`, and adds the keys it streams; tells the progress after every thousand or so.
/// 4. Swaps the two in one moment.
///
/// Until then the old filter answers, or nothing is known where there is none. When anything fails, or the future
/// is dropped, the old one stays.
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use futures_util::stream;
/// use lockkeeper_cache::filter::{LocalFilter, Plan, Shape, Verdict, rebuild};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let filter = LocalFilter::new();
/// assert_eq!(filter.look_at(b"user:7"), Verdict::Unknown);
/// let plan = Plan::new(Shape::for_keys(10_000, 0.01)?).settle(Duration::ZERO);
/// let users = || stream::iter((0..5).map(|id| Ok::<_, Infallible>(format!("user:{id}"))));
/// let loaded = rebuild(&filter, plan, users, |_progress| {}).await?;
/// assert_eq!(loaded.keys, 5);
/// assert_eq!(filter.look_at(b"user:4"), Verdict::Maybe);
/// assert_eq!(filter.look_at(b"user:7"), Verdict::Absent);
/// # Ok::<(), lockkeeper_cache::filter::FilterError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// When the source or the store fails, or somebody else rebuilds it.
///
/// # Cancel safety
///
/// Dropped, it is given up. In Redis it may take half a minute until another can begin.
pub async fn rebuild<S, K, E>(
    filter: &dyn Filter,
    plan: Plan,
    source: impl FnOnce() -> S + Send,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Loaded, FilterError>
where
    S: Stream<Item = Result<K, E>> + Send,
    K: AsRef<[u8]> + Send,
    E: Into<BoxError> + Send,
{
    let since = Instant::now();
    let mut build = filter.begin(plan.shape).await?;
    settle(&mut *build, plan.settle).await?;
    let mut stream = pin!(source());
    let (mut keys, mut kept) = (0_u64, Instant::now());
    loop {
        // A slow source must not look like a dead builder.
        match tokio::time::timeout(KEEP, stream.next()).await {
            Ok(None) => break,
            Ok(Some(key)) => {
                let key = key.map_err(|error| FilterError::Source(error.into()))?;
                build.add(key.as_ref());
                keys += 1;
            }
            Err(_) => {}
        }
        let now = Instant::now();
        let late = now.since(kept) >= KEEP;
        if late {
            build.keep().await?;
            kept = now;
        }
        if late || keys.is_multiple_of(STEP) {
            progress(Progress { keys, took: now.since(since) });
            tokio::task::yield_now().await;
        }
    }
    progress(Progress { keys, took: Instant::now().since(since) });
    build.finish().await?;
    let took = Instant::now().since(since);
    Ok(Loaded { keys, took, error_rate: plan.shape.error_rate(keys) })
}

async fn settle(build: &mut dyn Build, time: Duration) -> Result<(), FilterError> {
    let mut left = time;
    while !left.is_zero() {
        let part = left.min(KEEP);
        tokio::time::sleep(part).await;
        build.keep().await?;
        left -= part;
    }
    Ok(())
}
