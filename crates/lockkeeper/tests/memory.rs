//! `memory:` does what every backend must do.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper::backend::memory::Memory;
use testkit::conformance::Harness;

/// One table. Kept here, because it ends with its last user.
struct MemoryHarness(Arc<Memory>);

impl MemoryHarness {
    fn start() -> Self {
        Self(Memory::private())
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    async fn locks(&self) -> Locks {
        let memory: Arc<Memory> = Arc::clone(&self.0);
        Locks::new(memory)
    }

    async fn elsewhere(&self) -> Locks {
        Locks::new(Memory::shared("elsewhere"))
    }

    fn url(&self) -> Option<String> {
        None
    }
}

testkit::conformance!(in_process, MemoryHarness::start());
