//! A filter that is being built in Redis.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use fastbloom::AtomicBloomFilter;

use super::super::local::bitmap;
use super::super::{Build, FilterError, Shape};
use super::place::Place;
use super::{BEGIN, FINISH, GIVE_UP, KEEP, head, unique};
use crate::hash::hash;

/// A builder that says nothing for so long is taken for dead.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// So many bytes are uploaded at once: as much as also a slow line takes within the time of one command.
const PIECE: usize = 256 << 10;

/// Its builder has collected the keys here so far.
pub(super) struct RedisBuild {
    pub(super) place: Place,
    pub(super) builder: String,
    filter: AtomicBloomFilter,
    pub(super) done: bool,
}

impl RedisBuild {
    pub(super) async fn begin(place: Place, shape: Shape) -> Result<Self, FilterError> {
        let (builder, stamp) = (unique(), unique());
        let (lease, shape_words) = (millis(LEASE), head::written(shape));
        let words = [&builder, &lease, &stamp, &shape_words].map(|word| word.as_bytes());
        let left: u64 = place.insist(&BEGIN, &words).await?;
        if left > 0 {
            return Err(FilterError::Busy { left: Duration::from_millis(left) });
        }
        Ok(Self { place, builder, filter: shape.empty(), done: false })
    }

    /// Uploads a piece, or merely says that it goes on.
    pub(super) async fn upload(&self, before: usize, piece: &[u8]) -> Result<(), FilterError> {
        let (lease, before) = (millis(LEASE), before.to_string());
        let words = [self.builder.as_bytes(), lease.as_bytes(), before.as_bytes(), piece];
        self.place.insist(&KEEP, &words).await.and_then(still_there)
    }

    /// Puts what was uploaded in the place of the filter that is used.
    pub(super) async fn swap(&self) -> Result<(), FilterError> {
        let words = [self.builder.as_bytes(), &*unique().into_bytes()];
        self.place.insist(&FINISH, &words).await.and_then(still_there)
    }
}

fn still_there(there: bool) -> Result<(), FilterError> {
    if there { Ok(()) } else { Err(FilterError::Gone) }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

impl fmt::Debug for RedisBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuild").field("builder", &self.builder).finish_non_exhaustive()
    }
}

#[async_trait]
impl Build for RedisBuild {
    fn add(&mut self, key: &[u8]) {
        self.filter.insert_hash(hash(key));
    }

    async fn keep(&mut self) -> Result<(), FilterError> {
        self.upload(0, &[]).await
    }

    async fn finish(mut self: Box<Self>) -> Result<(), FilterError> {
        let bytes: Vec<u8> = bitmap(&self.filter).collect();
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            self.upload(number * PIECE, piece).await?;
        }
        self.swap().await?;
        self.done = true;
        Ok(())
    }
}

/// Makes room for another builder at once, if there is somebody to do it.
impl Drop for RedisBuild {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.done {
            return;
        }
        let (place, builder) = (self.place.clone(), std::mem::take(&mut self.builder));
        runtime.spawn(async move {
            let words = [builder.as_bytes(), &*unique().into_bytes()];
            // If it fails, the lease ends by itself.
            let _: Result<i64, _> = place.call(&GIVE_UP, &words).await;
        });
    }
}
