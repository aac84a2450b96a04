//! For now: the interface of tables.
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::entry::{Entry, Invalidation, Lease, Ticket, Value};
use lockkeeper_cache::{Builder, Cache, Error, Freshness, Read, Redis, Seen, Source, Store};

use crate::rows::Rows;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    FillLease,
    Strong,
    BoundedStale,
    UpdateThenDelete,
    DeleteThenUpdate,
    Bypass,
}

impl Strategy {
    pub(crate) const ALL: [Self; 6] = [
        Self::FillLease,
        Self::Strong,
        Self::BoundedStale,
        Self::UpdateThenDelete,
        Self::DeleteThenUpdate,
        Self::Bypass,
    ];
}
impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FillLease => "fill-lease",
            Self::Strong => "strong",
            Self::BoundedStale => "bounded-stale",
            Self::UpdateThenDelete => "update-then-delete",
            Self::DeleteThenUpdate => "delete-then-update",
            Self::Bypass => "bypass",
        })
    }
}

#[derive(Clone)]
pub(crate) struct Table {
    strategy: Strategy,
    cache: Cache<String, i64>,
    store: Arc<Redis>,
    rows: Rows,
}

pub(crate) struct Written {
    pub(crate) version: u64,
}

const HOW: Invalidation = Invalidation { floor: 0, floor_ms: 0, keep_ms: 0 };

impl Table {
    pub(crate) async fn new(builder: Builder, strategy: Strategy, rows: Rows, url: &str) -> Self {
        let store = Arc::new(Redis::connect(url).await.unwrap());
        Self { strategy, cache: builder.build(rows.clone()).unwrap(), store, rows }
    }
    fn name(&self, key: &str) -> String {
        format!("naive:{key}")
    }
    pub(crate) async fn read(&self, key: &String) -> Result<Read<i64>, Error> {
        match self.strategy {
            Strategy::FillLease | Strategy::Strong => self.cache.read(key, Freshness::Any).await,
            Strategy::BoundedStale => {
                self.cache.read(key, Freshness::Stale(Duration::from_millis(200))).await
            }
            Strategy::Bypass => self.cache.read(key, Freshness::Latest).await,
            _ => {
                let name = self.name(key);
                if let Ok(seen) = self.store.get(&[&name]).await
                    && let [Seen::Entry(Entry::Value(value))] = &seen[..]
                {
                    let found = value
                        .payload
                        .as_deref()
                        .map(|bytes| Arc::new(String::from_utf8_lossy(bytes).parse().unwrap()));
                    return Ok(Read {
                        value: found,
                        version: value.version,
                        made: 0,
                        source: Source::Hit,
                    });
                }
                let (version, found) =
                    self.rows.look(key).await.map_err(|error| Error::Load(error.into()))?;
                let ticket = Ticket::new();
                let payload = found.map(|value| value.to_string().into_bytes().into());
                let value = Value {
                    lease: Lease::NONE,
                    fill: ticket,
                    version,
                    made: 0,
                    soft: u64::MAX,
                    cost: 0,
                    schema: 0,
                    payload,
                };
                let long = Duration::from_secs(60);
                let _ = self.store.invalidate(&[&name], HOW).await;
                let _ = self.store.begin(&name, ticket, long, None).await;
                let _ = self.store.fill(&name, &value, long).await;
                Ok(Read { value: found.map(Arc::new), version, made: 0, source: Source::Loaded })
            }
        }
    }
    async fn delete(&self, key: &str) -> Result<(), Error> {
        let name = self.name(key);
        self.store
            .invalidate(&[&name], HOW)
            .await
            .map_err(|source| Error::Store { what: "delete", source })
    }
    async fn store(&self, key: &str, value: Option<i64>) -> Result<u64, Error> {
        self.rows.store(key, value).await.map_err(|error| Error::Load(error.into()))
    }
    pub(crate) async fn write(&self, key: &String, value: Option<i64>) -> Result<Written, Error> {
        let version = match self.strategy {
            Strategy::FillLease | Strategy::BoundedStale => {
                let version = self.store(key, value).await?;
                self.cache.invalidate_to(std::slice::from_ref(key), version).await?;
                version
            }
            Strategy::Strong => {
                let write = self.cache.intend(std::slice::from_ref(key)).await?;
                let version = self.store(key, value).await?;
                write.settle(Some(version)).await?;
                version
            }
            Strategy::Bypass => self.store(key, value).await?,
            Strategy::UpdateThenDelete => {
                let version = self.store(key, value).await?;
                self.delete(key).await?;
                version
            }
            Strategy::DeleteThenUpdate => {
                self.delete(key).await?;
                self.store(key, value).await?
            }
        };
        Ok(Written { version })
    }
}
