//! Where there is no circle, nobody is told; nor where nobody wants to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Locks, Result};
use testkit::random::Random;
use testkit::wait::{LONG, soon};
use tokio::task::JoinHandle;

use super::{REPORTED, Stores};

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

/// Starts a wait.
fn wait(wait: impl Future<Output = Result<Guard>> + Send + 'static) -> JoinHandle<Result<Guard>> {
    tokio::spawn(wait)
}

/// Long enough for several looks at each.
async fn go_on(waits: &[&JoinHandle<Result<Guard>>]) {
    tokio::time::sleep(REPORTED + Duration::from_millis(500)).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()), "{waits:?}");
}

async fn granted(wait: JoinHandle<Result<Guard>>) -> Guard {
    soon("it is granted", wait).await.unwrap().unwrap()
}

/// The other holder of a permit may let the waiter in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_semaphore_are_in_nobodys_way() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await;
    let [one, two, other] = [redis.new_owner(), redis.new_owner(), redis.new_owner()];
    let permit = redis.owned_by(&one).semaphore("seats", 2).acquire().await.unwrap();
    let others = redis.owned_by(&other).semaphore("seats", 2).acquire().await.unwrap();
    let index = file.owned_by(&two).mutex("index").lock().await.unwrap();
    let wanted = file.owned_by(&one).mutex("index");
    let ones = wait(async move { wanted.lock().await });
    let wanted = redis.owned_by(&two).semaphore("seats", 2);
    let twos = wait(async move { wanted.acquire().await });
    go_on(&[&ones, &twos]).await;
    others.release().await.unwrap();
    let seat = granted(twos).await;
    index.release().await.unwrap();
    for guard in [granted(ones).await, seat, permit] {
        guard.release().await.unwrap();
    }
}

/// Two read together, one of them waits for the other, and a writer for both of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_together_does_not_wait_for_each_other() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await;
    let [one, two, writer] = [redis.new_owner(), redis.new_owner(), redis.new_owner()];
    let index = file.owned_by(&two).mutex("index").lock().await.unwrap();
    let ones = redis.owned_by(&one).rw_lock("catalogue").read().await.unwrap();
    let twos = redis.owned_by(&two).rw_lock("catalogue").read().await.unwrap();
    let wanted = file.owned_by(&one).mutex("index");
    let waiting = wait(async move { wanted.lock().await });
    let wanted = redis.owned_by(&writer).rw_lock("catalogue");
    let writing = wait(async move { wanted.write().await.map(Into::into) });
    go_on(&[&waiting, &writing]).await;
    // Read again, past the writer: the same hold.
    let again = redis.owned_by(&two).rw_lock("catalogue").read().await.unwrap();
    for guard in [again, twos, index] {
        guard.release().await.unwrap();
    }
    granted(waiting).await.release().await.unwrap();
    ones.release().await.unwrap();
    granted(writing).await.release().await.unwrap();
}

/// Entered again, the lock has one hold and no wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_enters_again_does_not_wait_for_himself() {
    let stores = Stores::start().await;
    let [redis, file] = stores.connect().await;
    let [one, two, three] = [redis.new_owner(), redis.new_owner(), redis.new_owner()];
    let mine = redis.owned_by(&one);
    let outer = mine.mutex("ledger").lock().await.unwrap();
    let others = file.owned_by(&three).mutex("index").lock().await.unwrap();
    let wanted = redis.owned_by(&two).mutex("ledger");
    let behind = wait(async move { wanted.lock().await });
    let wanted = file.owned_by(&one).mutex("index");
    let waiting = wait(async move { wanted.lock().await });
    let inner = soon("again", mine.mutex("ledger").lock()).await.unwrap();
    go_on(&[&behind, &waiting]).await;
    others.release().await.unwrap();
    for guard in [granted(waiting).await, inner, outer] {
        guard.release().await.unwrap();
    }
    granted(behind).await.release().await.unwrap();
}

/// In a circle, but not for as long as it takes to be sure: the time is up, and that is what is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_whose_time_is_up_first_says_so() {
    let [one, two] = [Locks::memory(), Locks::memory()];
    let [old, young] = [one.new_owner(), one.new_owner()];
    let olds = one.owned_by(&old).mutex("a").lock().await.unwrap();
    let youngs = two.owned_by(&young).mutex("b").lock().await.unwrap();
    let wanted = two.owned_by(&old).mutex("b");
    let waiting = wait(async move { wanted.lock().await });
    let wanted = one.owned_by(&young).mutex("a");
    let told = wanted.lock_timeout(Duration::from_millis(1800)).await;
    assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
    youngs.release().await.unwrap();
    for guard in [granted(waiting).await, olds] {
        guard.release().await.unwrap();
    }
}
