//! Random changes, and followers that are killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper_cache::{Freshness, Source};
use testkit::database::{Database, System};
use testkit::random::Random;
use testkit::server::{Server, redis};
use testkit::wait::{CASE, within};
use tokio::task::JoinHandle;

use crate::process::Process;
use crate::shop::{Names, ROWS, Shop, TABLES};
use crate::{ALONE, database};

/// How many rows are changed, and how many followers killed.
fn size() -> (u64, u64) {
    match std::env::var_os("LOCKKEEPER_CAPTURE") {
        Some(_) => (100_000, 20),
        None => (12_000, 4),
    }
}

/// Everything but followers.
pub(crate) struct World {
    redis: Server,
    pub(crate) url: String,
    pub(crate) shop: Shop,
    pub(crate) caches: Vec<Names>,
    pub(crate) database: Database,
}

impl World {
    pub(crate) async fn start(system: System) -> Self {
        let (redis, database) = (redis(&[]).await, database(system).await);
        let url = database.url("here");
        let shop = Shop::connect(&url).await;
        shop.make().await;
        let caches = TABLES.map(|table| {
            let (shop, address) = (shop.clone(), format!("redis://{}", redis.address()));
            async move { shop.cache(table, &address).await }
        });
        let caches = join_all(caches).await;
        Self { redis, url, shop, caches, database }
    }

    pub(crate) fn redis(&self) -> String {
        format!("redis://{}", self.redis.address())
    }

    pub(crate) fn follower(&self) -> Process {
        Process::start(&self.redis(), &self.url)
    }

    /// Reads all the time, so that there is always something that could be old.
    fn readers(&self, over: &Arc<AtomicBool>, random: &mut Random) -> Vec<JoinHandle<()>> {
        let reader = |_| {
            let (caches, over, mut random) = (self.caches.clone(), Arc::clone(over), random.fork());
            tokio::spawn(async move {
                let keys = TABLES.map(|table| table.keys().collect::<Vec<_>>());
                while !over.load(Ordering::SeqCst) {
                    let at = usize::try_from(random.below(5)).unwrap();
                    let key = random.below(keys[at].len() as u64);
                    // A server that is asked too much may refuse.
                    let _ = caches[at].get(&keys[at][usize::try_from(key).unwrap()]).await;
                }
            })
        };
        (0..3).map(reader).collect()
    }

    /// Changes rows until that many are changed, and no more than `let_in` before.
    fn writers(
        &self,
        changed: &Arc<AtomicU64>,
        let_in: &Arc<AtomicU64>,
        most: u64,
        random: &mut Random,
    ) -> Vec<JoinHandle<()>> {
        let writer = |who| {
            let (changed, let_in) = (Arc::clone(changed), Arc::clone(let_in));
            let (shop, mut random) = (self.shop.clone(), random.fork());
            tokio::spawn(async move {
                for number in 0.. {
                    while changed.load(Ordering::SeqCst) >= let_in.load(Ordering::SeqCst).min(most)
                    {
                        if changed.load(Ordering::SeqCst) >= most {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    let rows = shop.disturb(&mut random, &format!("{who}-{number}")).await;
                    changed.fetch_add(rows, Ordering::SeqCst);
                }
            })
        };
        (0..4).map(writer).collect()
    }

    /// How many entries are in the cache, and which of them are not what the database has.
    pub(crate) async fn compare(&self) -> (usize, Vec<String>) {
        let (mut cached, mut wrong) = (0, Vec::new());
        for (table, cache) in TABLES.iter().zip(&self.caches) {
            let rows = self.shop.all(table).await;
            for key in table.keys() {
                // Without loads: only what is there counts.
                let Some(read) = cache.peek(&key).await.unwrap() else { continue };
                cached += 1;
                if read.value.as_deref() != rows.get(&key) {
                    wrong.push(format!(
                        "{} {key}: {:?}, not {:?}",
                        table.name,
                        read.value,
                        rows.get(&key)
                    ));
                }
            }
        }
        (cached, wrong)
    }

    /// Waits until a change that is made now has come to the cache, in every table; after that all before it has.
    pub(crate) async fn drained(&self) {
        static LAST: AtomicU64 = AtomicU64::new(2 * ROWS);
        // Rows that nobody has ever changed: only this change takes what is cached of them away.
        let number = LAST.fetch_add(1, Ordering::SeqCst);
        for (table, cache) in TABLES.iter().zip(&self.caches) {
            let key = table.key(number, 0);
            within(CASE, "that there is nothing is cached", || async {
                let read = cache.read(&key, Freshness::Any).await;
                read.is_ok_and(|read| read.source == Source::Hit && read.value.is_none())
            })
            .await;
            self.shop.upsert(table, number, 0, "the last one").await;
            within(CASE, "the last change comes to the cache", || async {
                cache.get(&key).await.is_ok_and(|value| value.is_some())
            })
            .await;
        }
    }
}

/// Which of them follows.
async fn active(followers: &mut [Process]) -> usize {
    let since = Instant::now();
    loop {
        let active = followers.iter_mut().position(|follower| follower.state() == "Following");
        if let Some(active) = active {
            return active;
        }
        assert!(Instant::now().since(since) < CASE, "nobody follows");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn storm(system: System) {
    let _alone = ALONE.lock().await;
    let (most, kills) = size();
    let mut random = Random::seeded();
    let world = World::start(system).await;
    let mut followers = [world.follower(), world.follower()];
    let (over, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers = world.readers(&over, &mut random);
    let let_in = Arc::new(AtomicU64::new(0));
    let writers = world.writers(&changed, &let_in, most, &mut random);
    let mut killed = BTreeMap::<String, u32>::new();
    for kill in 1..=kills {
        // Some changes come while it lives, and some while another one takes over.
        let due = most * kill / kills;
        let_in.store(due, Ordering::SeqCst);
        let active = active(&mut followers).await;
        tokio::time::sleep(random.duration(Duration::from_millis(100))).await;
        let any = usize::try_from(random.below(2)).unwrap();
        let at = if random.below(4) > 0 { active } else { any };
        *killed.entry(followers[at].state().to_owned()).or_default() += 1;
        followers[at] = world.follower();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let since = Instant::now();
    world.drained().await;
    let drained = Instant::now().since(since);
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    let (cached, wrong) = world.compare().await;
    eprintln!(
        "{system:?}: {} rows changed, {kills} followers killed (they were {killed:?}), the last change seen \
         {drained:?} later, {cached} entries cached",
        changed.load(Ordering::SeqCst),
    );
    assert!(cached > 300, "{cached} entries say little");
    assert!(
        wrong.is_empty(),
        "{} of {cached} are old: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
}

/// Nobody follows: then the same eyes see old values.
async fn control(system: System) {
    let _alone = ALONE.lock().await;
    let mut random = Random::seeded();
    let world = World::start(system).await;
    let (over, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers = world.readers(&over, &mut random);
    let all = Arc::new(AtomicU64::new(u64::MAX));
    for writer in world.writers(&changed, &all, 2000, &mut random) {
        writer.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    let (cached, wrong) = world.compare().await;
    assert!(!wrong.is_empty(), "{cached} entries and none is old");
}

/// How long after a commit by somebody else the cache has it, while much is changed.
async fn latency(system: System) {
    let _alone = ALONE.lock().await;
    let mut random = Random::seeded();
    let world = World::start(system).await;
    let mut follower = world.follower();
    follower.follows().await;
    let (over, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers = world.readers(&over, &mut random);
    let most = size().0;
    let all = Arc::new(AtomicU64::new(u64::MAX));
    let writers = world.writers(&changed, &all, most, &mut random);
    let (users, mut times) = (&TABLES[0], Vec::new());
    let mut number = 0;
    while changed.load(Ordering::SeqCst) < most || times.len() < 100 {
        number += 1;
        // One that nobody else changes.
        let (id, value) = (ROWS + number % 50, format!("probe {number}"));
        let _ = world.caches[0].get(&users.key(id, 0)).await;
        world.shop.upsert(users, id, 0, &value).await;
        let since = Instant::now();
        within(CASE, "the change comes to the cache", || async {
            let read = world.caches[0].get(&users.key(id, 0)).await;
            read.is_ok_and(|read| read.as_deref() == Some(&value))
        })
        .await;
        times.push(Instant::now().since(since));
    }
    over.store(true, Ordering::SeqCst);
    for task in readers.into_iter().chain(writers) {
        task.await.unwrap();
    }
    times.sort();
    let [half, p99] = [times.len() / 2, times.len() * 99 / 100].map(|at| times[at]);
    let last = times[times.len() - 1];
    eprintln!(
        "{system:?}: {} writes seen after {half:?} (p50), {p99:?} (p99), {last:?} (last)",
        times.len()
    );
    assert!(p99 < Duration::from_secs(1), "{p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_old_is_left_when_followers_of_postgres_are_killed() {
    storm(System::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_old_is_left_when_followers_of_mariadb_are_killed() {
    storm(System::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_follower_old_values_are_found() {
    control(System::Postgres).await;
    control(System::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_to_postgres_is_seen_within_a_second() {
    latency(System::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_to_mariadb_is_seen_within_a_second() {
    latency(System::MariaDb).await;
}
