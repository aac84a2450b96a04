//! Circles of owners across two stores, and the lack of them.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::any::Any;
use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::deadlock::Wait;
use lockkeeper::{Error, Guard, Locks, Owner, Result};
use tempfile::TempDir;
use testkit::random::Random;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

/// From the moment when the circle is closed, on a machine that has the time.
const REPORTED: Duration = Duration::from_secs(3);

/// By how much timers ring too late, all in all: what a loaded machine costs, and not us.
fn lateness() -> Arc<AtomicU64> {
    const TICK: Duration = Duration::from_millis(20);
    let late = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&late);
    tokio::spawn(async move {
        loop {
            let since = Instant::now();
            tokio::time::sleep(TICK).await;
            let over = Instant::now().since(since).saturating_sub(2 * TICK);
            counting.fetch_add(u64::try_from(over.as_millis()).unwrap(), Ordering::SeqCst);
        }
    });
    late
}

/// Whether something took no longer than it may.
fn in_time(took: Duration, late: &AtomicU64) -> bool {
    took < REPORTED + Duration::from_millis(late.load(Ordering::SeqCst))
}

/// Two stores that know nothing of each other.
struct Stores {
    urls: [String; 2],
    /// Ended with the test.
    _servers: (Server, Box<dyn Any + Send + Sync>),
}

impl Stores {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        Self::beside_redis(format!("file:{}", dir.path().display()), Box::new(dir)).await
    }

    #[cfg(feature = "postgres")]
    async fn start_with_postgres() -> Self {
        let database = testkit::database::System::Postgres.start(&[]).await;
        let url = database.url("here");
        Locks::init(&url).await.unwrap();
        Self::beside_redis(url, Box::new(database)).await
    }

    async fn beside_redis(url: String, other: Box<dyn Any + Send + Sync>) -> Self {
        let redis = server::redis(&[]).await;
        Self { urls: [format!("redis://{}", redis.address()), url], _servers: (redis, other) }
    }

    async fn connect(&self) -> [Locks; 2] {
        connect(&self.urls).await
    }
}

async fn connect(urls: &[String; 2]) -> [Locks; 2] {
    let [one, two] = urls;
    [Locks::connect(one).await.unwrap(), Locks::connect(two).await.unwrap()]
}

/// One member of a circle of `size`: holds its own lock and then wants that of the next. Stores take turns.
struct Member {
    owner: Owner,
    locks: [Locks; 2],
    at: usize,
    size: usize,
    held: Guard,
}

impl Member {
    async fn new(stores: [Locks; 2], at: usize, size: usize) -> Self {
        let owner = stores[0].new_owner();
        let locks = stores.map(|store| store.owned_by(&owner));
        let held = locks[at % 2].mutex(format!("lock/{at}")).lock().await.unwrap();
        Self { owner, locks, at, size, held }
    }

    /// Waits for the next one's lock, gives everything back however that ends, and says how it did.
    async fn go_round(self) -> (Owner, Result<()>) {
        let next = (self.at + 1) % self.size;
        let granted = self.locks[next % 2].mutex(format!("lock/{next}")).lock().await;
        self.held.release().await.unwrap();
        (self.owner, granted.map(drop))
    }
}

/// The owners and locks of a circle, whoever is named first.
fn members(cycle: &[Wait]) -> HashSet<(Owner, String)> {
    cycle.iter().map(|wait| (wait.owner.clone(), wait.name.to_string())).collect()
}

async fn a_circle_of(size: usize, stores: Stores) {
    let mut circle = Vec::new();
    for at in 0..size {
        circle.push(Member::new(stores.connect().await, at, size).await);
    }
    // Not the one that closes the circle in the end.
    circle.swap(0, size - 1);
    let wanted = circle
        .iter()
        .map(|member| (member.owner.clone(), format!("lock/{}", (member.at + 1) % member.size)));
    let wanted: HashSet<_> = wanted.collect();
    let youngest = circle[0].owner.clone();
    let late = lateness();
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
    eprintln!("{size} owners: told after {took:?}");
    assert_eq!(owner, &youngest);
    assert_eq!(cycle[0].owner, *owner, "its own wait comes first");
    assert_eq!(members(cycle), wanted);
    assert!(in_time(*took, &late), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_two_is_told_to_one() {
    a_circle_of(2, Stores::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_three_is_told_to_one() {
    a_circle_of(3, Stores::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_of_five_is_told_to_one() {
    a_circle_of(5, Stores::start().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_through_redis_and_postgres_are_told_to_one() {
    for size in [2, 3, 5] {
        a_circle_of(size, Stores::start_with_postgres().await).await;
    }
}

/// The circle is closed by an old owner, long after the youngest began to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circle_that_is_closed_late_is_found_by_who_waits_long_since() {
    let stores = Stores::start().await;
    let old = Member::new(stores.connect().await, 0, 2).await;
    let young = Member::new(stores.connect().await, 1, 2).await;
    let young = tokio::spawn(young.go_round());
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (since, late) = (Instant::now(), lateness());
    let old = tokio::spawn(old.go_round());
    let (_, told) = soon("told", young).await.unwrap();
    assert!(matches!(told, Err(Error::Deadlock { .. })), "{told:?}");
    assert!(in_time(Instant::now().since(since), &late));
    assert!(soon("goes on", old).await.unwrap().1.is_ok());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_switched_off() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await.map(|store| store.deadlock_detection(false));
    let [one, two] = [redis.new_owner(), redis.new_owner()];
    let ones = redis.owned_by(&one).mutex("a").lock().await.unwrap();
    let twos = file.owned_by(&two).mutex("b").lock().await.unwrap();
    let long = REPORTED + Duration::from_secs(1);
    let [b, a] = [file.owned_by(&one).mutex("b"), redis.owned_by(&two).mutex("a")];
    let (b, a) = tokio::join!(b.lock_timeout(long), a.lock_timeout(long));
    assert!(matches!(b, Err(Error::Timeout { .. })), "{b:?}");
    assert!(matches!(a, Err(Error::Timeout { .. })), "{a:?}");
    ones.release().await.unwrap();
    twos.release().await.unwrap();
}

/// Seen once, and gone at the second look: who holds on has given up waiting meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_gives_up_meanwhile_is_in_no_circle() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await;
    let [old, young] = [redis.new_owner(), redis.new_owner()];
    let olds = redis.owned_by(&old).mutex("a").lock().await.unwrap();
    let youngs = file.owned_by(&young).mutex("b").lock().await.unwrap();
    let wanted = redis.owned_by(&young).mutex("a");
    let waiting = tokio::spawn(async move { wanted.lock().await });
    let b = file.owned_by(&old).mutex("b");
    let gave_up = b.lock_timeout(Duration::from_millis(1400)).await;
    assert!(matches!(gave_up, Err(Error::Timeout { .. })), "{gave_up:?}");
    // Long enough for several looks.
    tokio::time::sleep(REPORTED).await;
    assert!(!waiting.is_finished());
    olds.release().await.unwrap();
    soon("granted", waiting).await.unwrap().unwrap().release().await.unwrap();
    youngs.release().await.unwrap();
}

/// Many owners take several locks each, always in the same order, so that they wait for each other for
/// long and never in a circle. Owners live for the whole test and take the same names over and over: what
/// is read of them one after the other looks like circles that were never there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_circle_nobody_is_told() {
    const FOR: Duration = Duration::from_secs(20);
    let stores = Stores::start().await;
    let mut random = Random::seeded();
    let over = Arc::new(AtomicBool::new(false));
    let long_waits = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let stores = stores.connect().await;
        let (mut random, over) = (random.fork(), Arc::clone(&over));
        let long_waits = Arc::clone(&long_waits);
        tasks.push(tokio::spawn(async move {
            let owner = stores[0].new_owner();
            let stores = stores.map(|store| store.owned_by(&owner));
            while !over.load(Ordering::SeqCst) {
                let mut held = Vec::new();
                let first = usize::try_from(random.below(4)).unwrap();
                for at in first..5 {
                    // Everybody wants the last one, and waits for it with something in hand.
                    if at != first && at < 4 && random.below(4) > 0 {
                        continue;
                    }
                    let store = &stores[at % 2];
                    let (name, writes) = (format!("lock/{at}"), random.below(3) > 0);
                    let since = Instant::now();
                    let granted = if at % 4 < 2 {
                        store.mutex(name).lock().await
                    } else if writes {
                        store.rw_lock(name).write().await.map(Into::into)
                    } else {
                        store.rw_lock(name).read().await
                    };
                    held.push(granted.unwrap_or_else(|error| panic!("{error}")));
                    if held.len() > 1 && Instant::now().since(since) > Duration::from_secs(1) {
                        long_waits.fetch_add(1, Ordering::SeqCst);
                    }
                    let longest = Duration::from_millis(if at == 4 { 1500 } else { 100 });
                    tokio::time::sleep(random.duration(longest)).await;
                }
                for guard in held {
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    tokio::time::sleep(FOR).await;
    over.store(true, Ordering::SeqCst);
    for task in tasks {
        tokio::time::timeout(2 * LONG, task).await.expect("the end").unwrap();
    }
    let long_waits = long_waits.load(Ordering::SeqCst);
    eprintln!("{long_waits} waits of those who held something took long enough to look");
    assert!(long_waits > 5, "only {long_waits} waits were long enough to look");
}

/// A member of a circle in a process of its own, started by the test below. Ends with 0 when it was
/// granted, and with 3 when it was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_in_a_process_of_its_own() {
    let Ok(task) = std::env::var("LOCKKEEPER_TEST_CIRCLE") else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let [at, size, one, two] = words[..] else { panic!("{task}") };
    let stores = connect(&[one.to_owned(), two.to_owned()]).await;
    let [redis, _] = &stores;
    let everybody = redis.latch("everybody holds his own");
    let member = Member::new(stores.clone(), at.parse().unwrap(), size.parse().unwrap()).await;
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

fn start_member(at: usize, size: usize, [one, two]: &[String; 2]) -> Child {
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
        (0..SIZE).map(|at| start_member(at, SIZE, &stores.urls)).collect();
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
