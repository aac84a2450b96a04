//! What is compared: every strategy, and the default with a first level in each process.

use std::fmt;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::{Cache, FirstLevel, Redis, Strategy};

use crate::faults::Fault;
use crate::rows::Rows;

pub(crate) type Table = lockkeeper_cache::Table<String, i64>;

/// So many keys each case has: few, so that everybody meets.
const KEYS: u64 = 2;

/// How old a value may be that those give which have a bound.
pub(crate) const BOUND: Duration = Duration::from_millis(200);

/// A bound so long that whoever holds it to the one above must find it broken.
const LOOSE: Duration = Duration::from_secs(10);

/// How long a load may take and still fill.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// How long a writer is believed where writers die: longer by far than any write takes there, and short enough for what
/// is cached afterwards to be seen.
const INTENT: Duration = Duration::from_secs(2);

/// A strategy, and the bound of the first level before it, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) strategy: Strategy,
    pub(crate) first: Option<Duration>,
}

impl Case {
    pub(crate) const FIRST: Self = Self { strategy: Strategy::Strong, first: Some(BOUND) };

    /// The same with a bound that it is not judged by: a control.
    pub(crate) const LOOSE: Self = Self { strategy: Strategy::Strong, first: Some(LOOSE) };

    /// In the order in which they are told.
    pub(crate) const ALL: [Self; 13] = [
        Self::plain(Strategy::Strong),
        Self::FIRST,
        Self::LOOSE,
        Self::plain(Strategy::FillLease),
        Self::plain(Strategy::BoundedStale),
        Self::plain(Strategy::UpdateThenDelete),
        Self::plain(Strategy::DeleteThenUpdate),
        Self::plain(Strategy::DoubleDelete),
        Self::plain(Strategy::WriteThrough),
        Self::plain(Strategy::ReadWriteLock),
        Self::plain(Strategy::WriteBehind),
        Self::plain(Strategy::TtlOnly),
        Self::plain(Strategy::Bypass),
    ];

    const fn plain(strategy: Strategy) -> Self {
        Self { strategy, first: None }
    }

    /// Those that work under this fault. Who is cut off matters for those that promise something whatever happens to
    /// Redis; the others would only take time.
    pub(crate) fn under(fault: Fault) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |case| match fault {
            Fault::CutOff => matches!(
                case.strategy,
                Strategy::Strong | Strategy::FillLease | Strategy::BoundedStale
            ),
            _ => *case != Self::LOOSE,
        })
    }

    pub(crate) fn key(self, number: u64) -> String {
        format!("{self}/{number}")
    }

    pub(crate) fn keys(self) -> impl Iterator<Item = String> {
        (0..KEYS).map(move |number| self.key(number))
    }

    /// A table for it, with connections of its own.
    pub(crate) async fn table(self, fault: Fault, redis: &str, rows: &Rows) -> Table {
        let Self { strategy, first } = self;
        // What waits for the database must count after a fail-over.
        let store = match strategy {
            Strategy::WriteBehind => Redis::connect_warm(redis).await.unwrap(),
            _ => Redis::connect(redis).await.unwrap(),
        };
        let ttl = if strategy == Strategy::TtlOnly { BOUND } else { Duration::from_secs(60) };
        let mut builder = Cache::builder(store)
            .namespace(self.to_string())
            .ttl(ttl)
            .null_ttl(ttl)
            .keep_last(BOUND)
            .lease(LEASE)
            .second_delete(BOUND)
            .timeout(Duration::from_secs(3));
        if fault == Fault::WorkerKilled {
            builder = builder.intent(INTENT);
        }
        if matches!(strategy, Strategy::WriteThrough | Strategy::ReadWriteLock) {
            // A fail-over brings locks back that were released.
            builder = builder.locks(Locks::connect(&format!("{redis}?ttl=1s")).await.unwrap());
        }
        let table = builder.table(strategy, rows.clone()).unwrap();
        if let Some(bound) = first {
            let level = FirstLevel::new(100).bound(bound);
            table.cache().clone().with_first_level(level).unwrap();
        }
        table
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strategy, first } = self;
        match first {
            None => write!(f, "{strategy}"),
            Some(BOUND) => write!(f, "{strategy}, first level"),
            Some(bound) => write!(f, "{strategy}, first level of {} s", bound.as_secs()),
        }
    }
}
