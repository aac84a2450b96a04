//! What the audit says of copies in the first level.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, FirstLevel, Redis, Watch};
use parking_lot::Mutex;
use testkit::server::{self, Server};
use testkit::wait::eventually;

use crate::audit::{OFTEN, Rows};
use crate::unheard::Unheard;

/// Of some of them a hit at the store is picked.
const KEYS: usize = 200;

/// On a busy machine, too, a writer has invalidated by then.
const DELAY: Duration = Duration::from_millis(500);

struct Scene {
    rows: Rows,
    /// In another process, so to speak: nobody here is told of what it does.
    writer: Cache<usize, u64>,
    /// With a first level that is told nothing.
    reader: Cache<usize, u64>,
    followers: Arc<Mutex<Vec<Arc<Watch>>>>,
    _server: Server,
}

impl Scene {
    async fn start(bound: Duration, versions: bool) -> Self {
        let server = server::redis(&[]).await;
        let url = format!("redis://{}", server.address());
        let connect = async || Redis::connect(&url).await.unwrap();
        let rows = Rows::many(KEYS);
        let writer = rows.cache(Cache::builder(connect().await).namespace("cache"), versions);
        let followers = Arc::default();
        let unheard = Unheard { redis: connect().await, followers: Arc::clone(&followers) };
        let level = FirstLevel::new(10 * KEYS).bound(bound);
        let reader = rows
            .cache(Cache::builder(unheard).namespace("cache"), versions)
            .with_first_level(level)
            .unwrap();
        Self { rows, writer, reader, followers, _server: server }
    }

    /// Reads all, and how many are of the first version.
    async fn old(&self) -> usize {
        let mut old = 0;
        for key in 0..KEYS {
            old += usize::from(self.reader.get(&key).await.unwrap().as_deref() == Some(&0));
        }
        old
    }

    /// All are in the first level, and some of them are compared again and again.
    async fn is_warm(&self) {
        // The writer's connection as well, and the script: what it does later is to take no longer than it must.
        self.writer.invalidate(&[KEYS]).await.unwrap();
        eventually("all are in the first level", async || {
            let before = self.reader.stats().first_hits;
            self.old().await;
            self.reader.stats().first_hits == before + KEYS as u64
        })
        .await;
        let more = async || self.reader.stats().audited > 20;
        eventually("they have a turn again and again", more).await;
    }

    /// Somebody else changes them all, and says so.
    async fn change(&self) {
        (0..KEYS).for_each(|key| self.rows.row(key).store(7, Ordering::SeqCst));
        self.writer.invalidate(&(0..KEYS).collect::<Vec<_>>()).await.unwrap();
    }
}

#[tokio::test]
async fn a_message_that_was_lost_is_counted_and_made_up_for() {
    for versions in [false, true] {
        let scene = Scene::start(Duration::from_secs(5), versions).await;
        let audit = scene.reader.audit(OFTEN, DELAY);
        scene.is_warm().await;
        let stats = scene.reader.stats();
        assert_eq!((stats.audit_stale, stats.audit_first_stale), (0, 0));
        scene.change().await;
        assert_eq!(scene.old().await, KEYS, "it has not heard of it");
        let found = async || scene.reader.stats().audit_first_stale > 0;
        eventually("the audit finds it", found).await;
        assert!(scene.old().await < KEYS, "and what it has found is read anew");
        assert_eq!(scene.reader.stats().audit_stale, 0, "at the store all was right");
        drop(audit);
    }
}

#[tokio::test]
async fn the_first_level_may_be_behind_by_its_bound() {
    let bound = Duration::from_secs(10);
    let scene = Scene::start(bound, true).await;
    let audit = scene.reader.audit(OFTEN, DELAY);
    scene.is_warm().await;
    scene.change().await;
    let changed = Instant::now();
    // The audit knows that they are old.
    let before = scene.reader.stats().audited;
    eventually("it has seen one", async || scene.reader.stats().audited > before).await;
    let later = Instant::now() + 2 * DELAY;
    eventually("and that after the delay", async || Instant::now() > later).await;
    let followers = scene.followers.lock().clone();
    for key in 0..KEYS {
        followers.iter().for_each(|told| told.changed(format!("cache:{key}").as_bytes()));
    }
    assert!(Instant::now().since(changed) < bound, "the machine is too slow for this");
    let later = Instant::now() + bound + 2 * DELAY;
    eventually("its bound is over", async || Instant::now() > later).await;
    assert_eq!(scene.old().await, 0, "it has heard of all");
    let stats = scene.reader.stats();
    assert_eq!((stats.audit_stale, stats.audit_first_stale), (0, 0), "{stats:?}");
    drop(audit);
}
