//! `file:` does what every backend must do.
#![allow(clippy::unwrap_used, reason = "tests")]

use async_trait::async_trait;
use lockkeeper::Locks;
use tempfile::TempDir;
use testkit::conformance::Harness;

/// One directory, and another one elsewhere.
struct FileHarness(TempDir, TempDir);

impl FileHarness {
    fn start() -> Self {
        let dir = || TempDir::with_prefix("lockkeeper-").unwrap();
        Self(dir(), dir())
    }
}

async fn open(dir: &TempDir) -> Locks {
    Locks::connect(&format!("file:{}", dir.path().display())).await.unwrap()
}

#[async_trait]
impl Harness for FileHarness {
    async fn locks(&self) -> Locks {
        open(&self.0).await
    }

    async fn elsewhere(&self) -> Locks {
        open(&self.1).await
    }

    fn url(&self) -> Option<String> {
        Some(format!("file:{}", self.0.path().display()))
    }
}

testkit::conformance!(across_processes, FileHarness::start());
