//! Circles of owners across two stores, and the lack of them.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod cost;
mod none;

use std::any::Any;
use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::deadlock::Wait;
use lockkeeper::{Error, Guard, Locks, Owner, Result};
use tempfile::TempDir;
use testkit::server;
use testkit::wait::{LONG, eventually, soon};
use tokio::task::JoinSet;

/// From the moment when the circle is closed, on a machine that has the time: three seconds, and one more for a look
/// that came to nothing because somebody's wait was not in a list yet.
const REPORTED: Duration = Duration::from_secs(4);

/// What a loaded machine costs, and not us: by how much timers ring too late, all in all, and how long it
/// takes a store to say what it has, for each of the looks.
struct Slowness {
    millis: Arc<AtomicU64>,
    _watching: JoinSet<()>,
}

impl Slowness {
    fn of(stores: &Pair) -> Self {
        const TICK: Duration = Duration::from_millis(20);
        let (late, list) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut watching = JoinSet::new();
        let counting = Arc::clone(&late);
        watching.spawn(async move {
            loop {
                let since = Instant::now();
                tokio::time::sleep(TICK).await;
                let over = Instant::now().since(since).saturating_sub(2 * TICK);
                counting.fetch_add(millis(over), Ordering::SeqCst);
            }
        });
        for store in stores.clone() {
            let (late, longest) = (Arc::clone(&late), Arc::clone(&list));
            watching.spawn(async move {
                loop {
                    let since = Instant::now();
                    // Also when it is over and the server is gone.
                    let _ = store.admin().list().await;
                    let took = 5 * millis(Instant::now().since(since));
                    let before = longest.fetch_max(took, Ordering::SeqCst);
                    late.fetch_add(took.saturating_sub(before), Ordering::SeqCst);
                    tokio::time::sleep(10 * TICK).await;
                }
            });
        }
        Self { millis: late, _watching: watching }
    }

    /// Whether something took no longer than it may.
    fn allows(&self, took: Duration) -> bool {
        let slowness = Duration::from_millis(self.millis.load(Ordering::SeqCst));
        eprintln!("{took:?}, of which the machine may have had {slowness:?}");
        took < REPORTED + slowness
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// A store, and what has to live for as long as it is used.
type Store = (String, Box<dyn Any + Send + Sync>);

async fn redis() -> Store {
    let server = server::redis(&[]).await;
    (format!("redis://{}", server.address()), Box::new(server))
}

fn file() -> Store {
    let dir = TempDir::new().unwrap();
    (format!("file:{}", dir.path().display()), Box::new(dir))
}

#[cfg(feature = "etcd")]
async fn etcd() -> Store {
    let server = server::etcd(&[]).await;
    (format!("etcd://{}", server.address()), Box::new(server))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper() -> Store {
    let server = testkit::zookeeper::alone().await;
    (format!("zookeeper://{}/here", server.address()), Box::new(server))
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn database(system: testkit::database::System, options: &str) -> Store {
    let database = system.start(&[]).await;
    let url = format!("{}{options}", database.url("here"));
    Locks::init(&url).await.unwrap();
    (url, Box::new(database))
}

/// Two stores that know nothing of each other.
struct Stores([Store; 2]);

/// Both of them, open.
type Pair = [Locks; 2];

impl Stores {
    async fn start() -> Self {
        Self([redis().await, file()])
    }

    fn urls(&self) -> [&str; 2] {
        [&self.0[0].0, &self.0[1].0]
    }

    async fn connect(&self) -> Pair {
        connect(self.urls()).await
    }
}

async fn connect([one, two]: [&str; 2]) -> Pair {
    [Locks::connect(one).await.unwrap(), Locks::connect(two).await.unwrap()]
}

/// One member of a circle of `size`: holds its own lock and then wants that of the next. Stores take turns.
struct Member {
    owner: Owner,
    locks: Pair,
    called: String,
    at: usize,
    size: usize,
    held: Guard,
}

impl Member {
    async fn new(stores: Pair, called: &str, at: usize, size: usize) -> Self {
        let owner = stores[0].new_owner();
        let locks = stores.map(|store| store.owned_by(&owner));
        let held = locks[at % 2].mutex(format!("{called}/{at}")).lock().await.unwrap();
        Self { owner, locks, called: called.to_owned(), at, size, held }
    }

    fn wanted(&self) -> String {
        format!("{}/{}", self.called, (self.at + 1) % self.size)
    }

    /// Waits for the next one's lock, gives everything back however that ends, and says how it did.
    async fn go_round(self) -> (Owner, Result<()>) {
        let next = (self.at + 1) % self.size;
        let granted = self.locks[next % 2].mutex(self.wanted()).lock().await;
        self.held.release().await.unwrap();
        (self.owner, granted.map(drop))
    }
}

/// The owners and locks of a circle, whoever is named first.
fn members(cycle: &[Wait]) -> HashSet<(Owner, String)> {
    cycle.iter().map(|wait| (wait.owner.clone(), wait.name.to_string())).collect()
}

async fn a_circle_of(size: usize, stores: &Stores) {
    let mut pairs = Vec::new();
    for _ in 0..size {
        pairs.push(stores.connect().await);
    }
    a_circle(pairs, &format!("of {size}")).await;
}

/// A circle of owners that each have these two stores open; their locks have names that begin so.
async fn a_circle(pairs: Vec<Pair>, called: &str) {
    let size = pairs.len();
    let mut circle = Vec::new();
    for (at, stores) in pairs.into_iter().enumerate() {
        circle.push(Member::new(stores, called, at, size).await);
    }
    // Not the one that closes the circle in the end.
    circle.swap(0, size - 1);
    let wanted = circle.iter().map(|member| (member.owner.clone(), member.wanted()));
    let wanted: HashSet<_> = wanted.collect();
    let youngest = circle[0].owner.clone();
    let slowness = Slowness::of(&circle[0].locks);
    let since = Instant::now();
    let waiting: Vec<_> =
        circle.into_iter().map(|member| tokio::spawn(member.go_round())).collect();
    let mut told = Vec::new();
    for wait in waiting {
        let (owner, granted) = soon("it goes on", wait).await.unwrap();
        match granted {
            Ok(()) => {}
            Err(Error::Deadlock { cycle }) => {
                told.push((owner, cycle, Instant::now().since(since)))
            }
            Err(error) => panic!("{error}"),
        }
    }
    let [(owner, cycle, took)] = &told[..] else { panic!("exactly one is told: {told:?}") };
    assert_eq!(owner, &youngest);
    assert_eq!(cycle[0].owner, *owner, "its own wait comes first");
    assert_eq!(members(cycle), wanted);
    assert!(slowness.allows(*took), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_two_is_told_to_one() {
    a_circle_of(2, &Stores::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_three_is_told_to_one() {
    a_circle_of(3, &Stores::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_five_is_told_to_one() {
    a_circle_of(5, &Stores::start().await).await;
}

async fn circles_through(one: Store, two: Store) {
    let stores = Stores([one, two]);
    for size in [2, 3, 5] {
        a_circle_of(size, &stores).await;
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_redis_and_postgres_are_told_to_one() {
    let postgres = database(testkit::database::System::Postgres, "").await;
    circles_through(redis().await, postgres).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_sessions_of_postgres_and_redis_are_told_to_one() {
    let postgres = database(testkit::database::System::Postgres, "?mode=session").await;
    circles_through(postgres, redis().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_mariadb_and_files_are_told_to_one() {
    let mariadb = database(testkit::database::System::MariaDb, "").await;
    circles_through(mariadb, file()).await;
}

#[cfg(all(feature = "etcd", feature = "zookeeper"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_etcd_and_zookeeper_are_told_to_one() {
    circles_through(etcd().await, zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_redlock_and_files_are_told_to_one() {
    let nodes = testkit::redlock::Nodes::start(3).await;
    circles_through((nodes.url(), Box::new(nodes)), file()).await;
}

/// The circle is closed by an old owner, long after the youngest began to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_that_is_closed_late_is_found_by_who_waits_long_since() {
    let stores = Stores::start().await;
    let pair = stores.connect().await;
    let old = Member::new(pair.clone(), "late", 0, 2).await;
    let young = Member::new(stores.connect().await, "late", 1, 2).await;
    let young = tokio::spawn(young.go_round());
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (since, slowness) = (Instant::now(), Slowness::of(&pair));
    let old = tokio::spawn(old.go_round());
    let (_, told) = soon("told", young).await.unwrap();
    assert!(matches!(told, Err(Error::Deadlock { .. })), "{told:?}");
    assert!(slowness.allows(Instant::now().since(since)));
    assert!(soon("goes on", old).await.unwrap().1.is_ok());
}

/// One server, and two sets of locks in it that have nothing to do with each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_through_two_prefixes_of_one_server_is_told_to_one() {
    let (url, server) = redis().await;
    let one = (format!("{url}?prefix=one/"), server);
    circles_through(one, (format!("{url}?prefix=two/"), Box::new(()))).await;
}

/// Only the first of a process waits at the server; the one in the circle is behind it.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_through_the_second_in_line_for_a_session_is_found() {
    let postgres = database(testkit::database::System::Postgres, "?mode=session").await;
    let stores = Stores([postgres, file()]);
    let [sessions, file] = stores.connect().await;
    let [old, young] = [file.new_owner(), file.new_owner()];
    let olds = sessions.owned_by(&old).mutex("a").lock().await.unwrap();
    let youngs = file.owned_by(&young).mutex("b").lock().await.unwrap();
    let first = sessions.mutex("a");
    let first = tokio::spawn(async move { first.lock().await.map(drop) });
    let a = "a".parse().unwrap();
    let waits = async || !sessions.admin().show(&a).await.unwrap().waiters.is_empty();
    eventually("the first waits", waits).await;
    let b = file.owned_by(&old).mutex("b");
    let waiting = tokio::spawn(async move { b.lock().await });
    let told = soon("told", sessions.owned_by(&young).mutex("a").lock()).await;
    let Err(Error::Deadlock { cycle }) = told else { panic!("{told:?}") };
    assert_eq!(cycle.len(), 2);
    youngs.release().await.unwrap();
    for guard in [soon("goes on", waiting).await.unwrap().unwrap(), olds] {
        guard.release().await.unwrap();
    }
    soon("goes on", first).await.unwrap().unwrap();
}

/// Readers, writers and fair locks are in the way of each other as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_through_readers_is_found() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await;
    let [reader, writer] = [redis.new_owner(), redis.new_owner()];
    let other = redis.rw_lock("catalogue").read().await.unwrap();
    let reading = redis.owned_by(&reader).rw_lock("catalogue").read().await.unwrap();
    let held = file.owned_by(&writer).mutex("index").fair().lock().await.unwrap();
    let index = file.owned_by(&reader).mutex("index").fair();
    let waiting = tokio::spawn(async move { index.lock().await });
    let told = soon("told", redis.owned_by(&writer).rw_lock("catalogue").write()).await;
    let Err(Error::Deadlock { cycle }) = told else { panic!("{told:?}") };
    assert_eq!(cycle.len(), 2);
    held.release().await.unwrap();
    let index = soon("goes on", waiting).await.unwrap().unwrap();
    for guard in [index, reading, other] {
        guard.release().await.unwrap();
    }
}

/// A member of a circle in a process of its own, started by the test below. Ends with 0 when it was
/// granted, and with 3 when it was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_in_a_process_of_its_own() {
    let Ok(task) = std::env::var("LOCKKEEPER_TEST_CIRCLE") else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let [at, size, one, two] = words[..] else { panic!("{task}") };
    let stores = connect([one, two]).await;
    let [redis, _] = &stores;
    let everybody = redis.latch("everybody holds his own");
    let member =
        Member::new(stores.clone(), "far", at.parse().unwrap(), size.parse().unwrap()).await;
    everybody.count_down().await.unwrap();
    assert!(everybody.wait_timeout(LONG).await.unwrap());
    let (_, granted) = member.go_round().await;
    match granted {
        Ok(()) => {}
        Err(Error::Deadlock { cycle }) => {
            assert_eq!(cycle.len().to_string(), size);
            std::process::exit(3);
        }
        Err(error) => panic!("{error}"),
    }
}

fn start_member(at: usize, size: usize, [one, two]: [&str; 2]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "member_in_a_process_of_its_own"])
        .env("LOCKKEEPER_TEST_CIRCLE", format!("{at} {size} {one} {two}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_processes_is_told_to_one() {
    const SIZE: usize = 3;
    let stores = Stores::start().await;
    let [redis, _] = stores.connect().await;
    redis.latch("everybody holds his own").close(3).await.unwrap();
    let mut members: Vec<Child> =
        (0..SIZE).map(|at| start_member(at, SIZE, stores.urls())).collect();
    let mut ends = Vec::new();
    for member in &mut members {
        let member = tokio::sync::Mutex::new(member);
        let ended = async || member.lock().await.try_wait().unwrap().is_some();
        eventually("a member ends", ended).await;
        ends.push(member.lock().await.wait().unwrap().code());
    }
    ends.sort();
    assert_eq!(ends, [Some(0), Some(0), Some(3)]);
}
