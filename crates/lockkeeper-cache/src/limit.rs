//! A limit on loads: so many a second reach the database, whatever happens to the cache.
//!
//! # How it works
//!
//! A bucket of tokens (GCRA, by the crate `governor`): it holds [`burst`](Limit::burst) tokens, and
//! gets `per_second` new ones a second. A load takes one. Who finds none is told when to come back, or
//! waits in line for one, if the line is short enough for his deadline.
//!
//! # What it promises
//!
//! Within any time t at most `burst + t · per_second` loads are admitted, and each begins at once: a thread that is held up in
//! between may begin one load later than that. Nobody waits past the deadline that
//! he gave, those who wait are served in order, and who could not be served in time is told at once
//! instead of at his deadline.
//!
//! # When it breaks
//!
//! It counts the loads of one process, and n processes together may do n times as many: give each an n-th. It limits how many loads
//! begin, not how many are under way: loads that take 10 s at 100 a second are a thousand at a time.
//! Those who do not wait may overtake those who do.
//!
//! # Cost
//!
//! One read of the clock and one compare-and-swap; no lock unless somebody waits.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use lockkeeper::clock::Instant;
use tokio::sync::Semaphore;

const SECOND: u64 = 1_000_000_000;

/// Too many loads at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many loads; try again in {retry_after:?}")]
pub struct Limited {
    /// When there may be a token again. Many are told the same: come back a little later than that,
    /// each by chance.
    pub retry_after: Duration,
}

type Bucket = RateLimiter<NotKeyed, InMemoryState, Ticks, NoOpMiddleware<Nanos>>;

/// A limit on how many loads begin.
///
/// ```
/// use std::num::NonZeroU32;
/// use lockkeeper_cache::limit::Limit;
///
/// let ten = NonZeroU32::new(10).expect("not zero");
/// let limit = Limit::per_second(ten).burst(NonZeroU32::MIN);
/// assert!(limit.check().is_ok());
/// let limited = limit.check().expect_err("the only token is taken");
/// assert!(limited.retry_after.as_millis() <= 100);
/// ```
pub struct Limit {
    quota: Quota,
    bucket: Bucket,
    /// The one who may take the next token. The others stand behind him, in order.
    front: Semaphore,
    waiting: AtomicU32,
}

impl Limit {
    /// So many loads a second, and as many at once when nothing was loaded for a second.
    pub fn per_second(loads: NonZeroU32) -> Self {
        Self::on(loads, Arc::new(Instant::now))
    }

    /// The same on another clock, for tests.
    pub fn on(loads: NonZeroU32, now: Arc<dyn Fn() -> Instant + Send + Sync>) -> Self {
        // Rounded up: never more than was allowed.
        let period = Duration::from_nanos(SECOND.div_ceil(u64::from(loads.get())));
        let quota = Quota::with_period(period).unwrap_or(Quota::per_second(loads));
        Self::new(quota.allow_burst(loads), Ticks(now))
    }

    /// So many at once after a pause. Larger: a burst passes without a wait. Smaller: the load on the
    /// database is more even.
    #[must_use]
    pub fn burst(self, loads: NonZeroU32) -> Self {
        let ticks = self.bucket.clock().clone();
        Self::new(self.quota.allow_burst(loads), ticks)
    }

    fn new(quota: Quota, ticks: Ticks) -> Self {
        let bucket = RateLimiter::direct_with_clock(quota, ticks);
        Self { quota, bucket, front: Semaphore::new(1), waiting: AtomicU32::new(0) }
    }

    /// Takes a token, if there is one.
    ///
    /// # Errors
    ///
    /// [`Limited`] if there is none.
    pub fn check(&self) -> Result<(), Limited> {
        self.bucket.check().map_err(|not_until| {
            let retry_after = not_until.wait_time_from(self.bucket.clock().now());
            Limited { retry_after }
        })
    }

    /// Takes a token, and waits for it in line, but not longer than `longest`.
    ///
    /// # Errors
    ///
    /// [`Limited`] if there is none in time; at once where that is clear.
    ///
    /// # Cancel safety
    ///
    /// Who gives up leaves the line, and takes no token.
    pub async fn admit(&self, longest: Duration) -> Result<(), Limited> {
        let place = Place::behind(&self.waiting);
        if place.0 == 0 && self.check().is_ok() {
            return Ok(());
        }
        // All tokens until then go to those in front.
        let turn = self.quota.replenish_interval().saturating_mul(place.0);
        if turn > longest {
            return Err(Limited { retry_after: turn });
        }
        let taken = tokio::time::timeout(longest, self.take()).await;
        taken.map_err(|_| Limited { retry_after: self.quota.replenish_interval() })
    }

    /// Waits for as long as it takes.
    async fn take(&self) {
        // Never closed.
        let _front = self.front.acquire().await;
        while let Err(Limited { retry_after }) = self.check() {
            tokio::time::sleep(retry_after).await;
        }
    }

    /// How many wait for a token.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("Limit");
        shown.field("quota", &self.quota).field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// A place in line, with how many stood in front when it was taken.
struct Place<'a>(u32, &'a AtomicU32);

impl<'a> Place<'a> {
    fn behind(waiting: &'a AtomicU32) -> Self {
        Self(waiting.fetch_add(1, Ordering::Relaxed), waiting)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Our clock in the units of the crate. Its own stops while the machine is suspended.
#[derive(Clone)]
struct Ticks(Arc<dyn Fn() -> Instant + Send + Sync>);

impl Clock for Ticks {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from((self.0)().as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;

    fn loads(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    /// A limit, and the hand of its clock.
    fn by_hand(rate: u32, burst: u32) -> (Limit, Arc<AtomicU64>) {
        let hand = Arc::new(AtomicU64::new(77));
        let read = Arc::clone(&hand);
        let now = Arc::new(move || Instant::from_nanos(read.load(Ordering::SeqCst)));
        (Limit::on(loads(rate), now).burst(loads(burst)), hand)
    }

    /// On the clock of tokio, which a test can stop.
    fn in_tokio(rate: u32, burst: u32) -> Limit {
        let start = tokio::time::Instant::now();
        let now = move || Instant::from_nanos(1) + start.elapsed();
        Limit::on(loads(rate), Arc::new(now)).burst(loads(burst))
    }

    #[test]
    fn a_token_comes_back_when_it_was_said_and_not_before() {
        let (limit, hand) = by_hand(4, 2);
        assert!(limit.check().is_ok() && limit.check().is_ok());
        let Limited { retry_after } = limit.check().unwrap_err();
        assert_eq!(retry_after, Duration::from_millis(250));
        hand.fetch_add(SECOND / 4 - 1, Ordering::SeqCst);
        assert_eq!(limit.check().unwrap_err().retry_after, Duration::from_nanos(1));
        hand.fetch_add(1, Ordering::SeqCst);
        assert!(limit.check().is_ok());
        assert!(limit.check().is_err());
    }

    #[test]
    fn a_period_that_is_no_whole_number_is_rounded_up() {
        let (limit, hand) = by_hand(3, 1);
        assert!(limit.check().is_ok());
        hand.fetch_add(333_333_333, Ordering::SeqCst);
        assert!(limit.check().is_err(), "the third part of a second is not over");
        hand.fetch_add(1, Ordering::SeqCst);
        assert!(limit.check().is_ok());
    }

    proptest! {
        #[test]
        fn never_more_than_the_burst_and_the_rate_allow(
            rate in 1..1000_u32, burst in 1..20_u32,
            steps in prop::collection::vec(0..SECOND / 100, 1..60),
        ) {
            let (limit, hand) = by_hand(rate, burst);
            // All moments at which one was admitted.
            let mut taken = Vec::new();
            for step in steps {
                let now = hand.fetch_add(step, Ordering::SeqCst) + step;
                while limit.check().is_ok() {
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let allowed = u128::from(burst)
                        + u128::from(to - from) * u128::from(rate) / u128::from(SECOND);
                    prop_assert!((last - first + 1) as u128 <= allowed);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_are_served_in_order_and_at_the_rate() {
        let (limit, start) = (Arc::new(in_tokio(10, 1)), tokio::time::Instant::now());
        let served = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..20_u32 {
            let (waits, served) = (Arc::clone(&limit), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                waits.admit(Duration::from_secs(10)).await.unwrap();
                served.lock().push(number);
            }));
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*served.lock(), (0..20).collect::<Vec<_>>());
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(1900), "{took:?}");
        assert!(took < Duration::from_millis(2000), "{took:?}");
        assert_eq!(limit.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_served_in_time_is_told_at_once() {
        let limit = Arc::new(in_tokio(10, 1));
        assert!(limit.check().is_ok());
        for _ in 0..5 {
            let limit = Arc::clone(&limit);
            tokio::spawn(async move { limit.admit(Duration::from_secs(1)).await });
            tokio::task::yield_now().await;
        }
        let start = tokio::time::Instant::now();
        let told = limit.admit(Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(told.retry_after, Duration::from_millis(500));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_past_his_deadline() {
        let limit = in_tokio(1, 1);
        assert!(limit.check().is_ok());
        let start = tokio::time::Instant::now();
        assert!(limit.admit(Duration::from_millis(300)).await.is_err());
        assert!(start.elapsed() < Duration::from_millis(310), "{:?}", start.elapsed());
        assert!(limit.admit(Duration::ZERO).await.is_err());
        assert_eq!(limit.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_line_and_takes_no_token() {
        let limit = Arc::new(in_tokio(1, 1));
        assert!(limit.check().is_ok());
        let waits = Arc::clone(&limit);
        let task = tokio::spawn(async move { waits.admit(Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        assert_eq!(limit.waiting(), 1);
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(limit.waiting(), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(limit.check().is_ok());
    }

    #[test]
    fn extremes_do_not_overflow() {
        for (rate, burst) in [(1, u32::MAX), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
            let (limit, hand) = by_hand(rate, burst);
            assert!(limit.check().is_ok());
            hand.fetch_add(SECOND * 3600 * 24 * 365, Ordering::SeqCst);
            assert!(limit.check().is_ok());
        }
    }
}
