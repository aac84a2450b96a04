//! A clock that goes on while the machine is suspended.
//!
//! A lease at a server runs out whether or not our laptop lid is closed, so every deadline in this
//! crate is counted on `CLOCK_BOOTTIME`. [`std::time::Instant`] stops during suspend and would
//! report a lock as held hours after somebody else got it.

use std::io;
use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe::Receiver;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A moment on the boot-time clock of this machine: nanoseconds since it was started, suspend
/// included.
///
/// All processes of one machine share it. It means nothing on another machine or after a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instant(u64);

impl Instant {
    /// A moment that is never reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// The present moment. Costs one vDSO call, about 25 ns.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self(secs * NANOS_PER_SEC + nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment that lies this many nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time from `earlier` until this moment; zero if that lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment less `duration`, not before boot.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// In so many parts is time given to others, so that ours does not count as theirs.
const PARTS: u32 = 4;

/// Waits for an answer of somebody else, for so long. Time in which this process did not get to run, or the machine
/// slept, says nothing about them: whatever comes at one stretch counts for no more than a quarter of the
/// time, and an answer that came meanwhile is still heard. `None`: there was none. Cancel safe if the future is.
///
/// ```
/// # #[tokio::main]
/// # async fn main() {
/// use std::time::Duration;
/// use lockkeeper::clock::answer_within;
///
/// assert_eq!(answer_within(Duration::from_secs(1), async { 7 }).await, Some(7));
/// assert_eq!(answer_within(Duration::from_millis(1), std::future::pending::<u8>()).await, None);
/// # }
/// ```
pub async fn answer_within<T>(time: Duration, answer: impl Future<Output = T>) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    for _ in 0..PARTS {
        if let Ok(answer) = tokio::time::timeout(time / PARTS, &mut answer).await {
            return Some(answer);
        }
    }
    None
}

/// Rings at a set [`Instant`], at once if the machine wakes up from suspend after it.
///
/// The kernel's timer is waited for and read like a pipe, so it is wrapped as one.
#[derive(Debug)]
pub(crate) struct Alarm(Receiver);

impl Alarm {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        Receiver::from_owned_fd_unchecked(fd).map(Self)
    }

    /// Waits until `at`. Cancel safe: the next call sets the alarm anew.
    pub(crate) async fn rings_at(&self, at: Instant) -> io::Result<()> {
        if at == Instant::NEVER {
            return std::future::pending().await;
        }
        // Zero would switch the timer off.
        let nanos = at.as_nanos().max(1);
        let value = Timespec {
            tv_sec: i64::try_from(nanos / NANOS_PER_SEC).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % NANOS_PER_SEC).unwrap_or(0),
        };
        let once = rustix::time::Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: value,
        };
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        while Instant::now() < at {
            self.0.readable().await?;
            // Setting the timer clears its count, so a ring of an earlier setting would block.
            let _ = self.0.try_read(&mut [0_u8; 8]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn alarm_rings_not_before_its_time_and_can_be_set_again() {
        let alarm = Alarm::new().expect("timerfd");
        for millis in [20, 0, 5] {
            let at = Instant::now() + Duration::from_millis(millis);
            alarm.rings_at(at).await.expect("rings");
            assert!(Instant::now() >= at);
        }
    }

    /// Whoever was to answer has had no chance to before, as when the machine gives the process no time.
    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "to stand still is what it is about")]
    async fn time_in_which_nothing_runs_here_is_not_held_against_others() {
        let time = Duration::from_millis(200);
        let (tell, told) = tokio::sync::oneshot::channel();
        let asking = tokio::spawn(answer_within(time, told));
        tokio::spawn(async move { std::thread::sleep(2 * time) });
        // It has to go through the runtime a few times, as an answer from a socket does.
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(7).expect("it still listens");
        });
        assert_eq!(asking.await.expect("no panic"), Some(Ok(7)));
        let since = tokio::time::Instant::now();
        assert_eq!(answer_within(time, std::future::pending::<()>()).await, None);
        assert!(since.elapsed() >= time);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert_eq!(Instant(5).before(Duration::from_secs(1)), Instant(0));
    }
}
