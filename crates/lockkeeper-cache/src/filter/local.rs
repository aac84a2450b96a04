//! A filter in this process.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fastbloom::AtomicBloomFilter;
use parking_lot::RwLock;

use super::{Build, Filter, FilterError, Shape, Verdict};
use crate::hash::hash;

/// A filter in this process; see the [module](super) for what that means when others write. Clones are
/// the same filter.
#[derive(Clone, Default)]
pub struct LocalFilter(Arc<RwLock<State>>);

#[derive(Default)]
struct State {
    used: Option<Arc<AtomicBloomFilter>>,
    /// With the number of the build it belongs to.
    built: Option<(u64, Arc<AtomicBloomFilter>)>,
    builds: u64,
}

impl LocalFilter {
    /// It knows nothing until it was [rebuilt](super::rebuild).
    pub fn new() -> Self {
        Self::default()
    }

    /// What it says of a key.
    pub fn look_at(&self, key: &[u8]) -> Verdict {
        match &self.0.read().used {
            Some(filter) if !filter.contains_hash(hash(key)) => Verdict::Absent,
            Some(_) => Verdict::Maybe,
            None => Verdict::Unknown,
        }
    }

    /// Sets the bits of a key, also in the filter that is being built.
    pub fn put(&self, key: &[u8]) {
        let hash = hash(key);
        // Held throughout: no filter can come into use between the two.
        let state = self.0.read();
        if let Some(filter) = &state.used {
            filter.insert_hash(hash);
        }
        if let Some((_, filter)) = &state.built {
            filter.insert_hash(hash);
        }
    }

    /// Nothing is known any more, until it was rebuilt. To be called when it may have missed keys.
    pub fn forget(&self) {
        let mut state = self.0.write();
        (state.used, state.built) = (None, None);
    }

    /// The bits, as Redis would have them in a bitmap. `None` while nothing is known.
    #[cfg(all(test, feature = "redis"))]
    pub(super) fn bitmap(&self) -> Option<Vec<u8>> {
        self.0.read().used.as_deref().map(|filter| bitmap(filter).collect())
    }
}

/// In Redis the first bit is the highest of the first byte.
#[cfg_attr(not(feature = "redis"), cfg(test))]
pub(super) fn bitmap(filter: &AtomicBloomFilter) -> impl Iterator<Item = u8> {
    filter.iter().flat_map(|word| word.reverse_bits().to_be_bytes())
}

impl fmt::Debug for LocalFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.read();
        let shown = &mut f.debug_struct("LocalFilter");
        shown.field("loaded", &state.used.is_some()).field("built", &state.built.is_some()).finish()
    }
}

#[async_trait]
impl Filter for LocalFilter {
    async fn look(&self, keys: &[&[u8]]) -> Vec<Verdict> {
        keys.iter().map(|key| self.look_at(key)).collect()
    }

    async fn insert(&self, keys: &[&[u8]]) -> Result<(), FilterError> {
        keys.iter().for_each(|key| self.put(key));
        Ok(())
    }

    /// Who begins last is the one: whoever began before has been given up, or should be.
    async fn begin(&self, shape: Shape) -> Result<Box<dyn Build>, FilterError> {
        let filter = Arc::new(shape.empty());
        let mut state = self.0.write();
        state.builds += 1;
        let number = state.builds;
        state.built = Some((number, Arc::clone(&filter)));
        drop(state);
        Ok(Box::new(LocalBuild { of: self.clone(), number, filter }))
    }
}

struct LocalBuild {
    of: LocalFilter,
    number: u64,
    filter: Arc<AtomicBloomFilter>,
}

impl LocalBuild {
    fn is_current(&self, state: &State) -> bool {
        state.built.as_ref().is_some_and(|(number, _)| *number == self.number)
    }
}

impl fmt::Debug for LocalBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBuild").field("number", &self.number).finish_non_exhaustive()
    }
}

#[async_trait]
impl Build for LocalBuild {
    fn add(&mut self, key: &[u8]) {
        self.filter.insert_hash(hash(key));
    }

    async fn keep(&mut self) -> Result<(), FilterError> {
        let current = self.is_current(&self.of.0.read());
        if current { Ok(()) } else { Err(FilterError::Gone) }
    }

    async fn finish(self: Box<Self>) -> Result<(), FilterError> {
        let mut state = self.of.0.write();
        if !self.is_current(&state) {
            return Err(FilterError::Gone);
        }
        state.built = None;
        state.used = Some(Arc::clone(&self.filter));
        Ok(())
    }
}

impl Drop for LocalBuild {
    fn drop(&mut self) {
        let mut state = self.of.0.write();
        if self.is_current(&state) {
            state.built = None;
        }
    }
}

#[cfg(test)]
mod tests;
