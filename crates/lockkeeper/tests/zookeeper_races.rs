//! What can come between two steps of a client of ZooKeeper.
#![cfg(feature = "zookeeper")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::backend::{
    Backend, Cell, Hold, Kind, Patience, Release, Renewal, Request, Term, Write,
};
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Name, Owner, RequestId, Result};
use testkit::proxy::{Proxy, Way};
use testkit::server::Server;
use testkit::wait::{eventually, soon};
use testkit::zookeeper;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

const TTL: Duration = Duration::from_secs(600);

/// A path of its own at a server that the tests have in common.
struct Place {
    server: Arc<Server>,
    path: String,
}

type Asking = JoinHandle<Result<Option<Arc<dyn Hold>>>>;

impl Place {
    async fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { server: zookeeper::shared().await, path: format!("/race-{number}") }
    }

    async fn open(&self) -> Arc<dyn Backend> {
        open(&format!("zookeeper://{}{}", self.server.address(), self.path)).await
    }

    /// A client behind a proxy.
    async fn through(&self) -> (Arc<dyn Backend>, Proxy) {
        let proxy = Proxy::to(self.server.address()).await;
        (open(&format!("zookeeper://{}{}", proxy.address(), self.path)).await, proxy)
    }

    /// What an operator uses.
    async fn operator(&self) -> Client {
        Client::connect(&self.server.address().to_string()).await.unwrap()
    }

    /// The nodes of requests at the lock, in the order of their numbers.
    async fn line(&self, operator: &Client) -> Vec<String> {
        let mut children =
            operator.list_children(&format!("{}/x", self.path)).await.unwrap_or_default();
        children.retain(|child| child.starts_with("_c_"));
        children.sort_by_key(|child| child[child.len() - 10..].to_owned());
        children
    }
}

async fn open(url: &str) -> Arc<dyn Backend> {
    let url: lockkeeper::Url = url.parse().unwrap();
    url.open().await.unwrap()
}

fn name() -> Name {
    "x".parse().unwrap()
}

fn request(who: u8, kind: Kind, patience: Patience) -> Request {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Request {
        name: name(),
        kind,
        owner: Owner::try_from(format!("race:{who}")).unwrap(),
        id: RequestId::from_bytes((number as u128).to_be_bytes()),
        term: Term::Fixed(TTL),
        tokens: 1,
        patience,
    }
}

fn ask(backend: &Arc<dyn Backend>, who: u8, kind: Kind) -> Asking {
    tokio::spawn(Arc::clone(backend).acquire(request(who, kind, Patience::Forever)))
}

/// Asks for a lock that is to be had.
async fn take(backend: &Arc<dyn Backend>, who: u8, kind: Kind) -> Arc<dyn Hold> {
    granted(ask(backend, who, kind)).await
}

async fn granted(asking: Asking) -> Arc<dyn Hold> {
    soon("granted", asking).await.unwrap().unwrap().expect("waits for ever")
}

/// Asks for a lock that others have, as the last of so many who wait.
async fn line_up(backend: &Arc<dyn Backend>, who: u8, kind: Kind, waiters: usize) -> Asking {
    let asking = ask(backend, who, kind);
    in_line(backend, waiters).await;
    asking
}

async fn in_line(backend: &Arc<dyn Backend>, waiters: usize) {
    let shown = async || backend.admin().show(&name()).await.unwrap().waiters.len() == waiters;
    eventually("in line", shown).await;
}

/// Makes a node that another kind of client could have made.
async fn create(client: &Client, prefix: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create(prefix, b"other", &options).await.unwrap();
    format!("{prefix}{sequence}")
}

async fn is_watched(place: &Place, path: &str) -> bool {
    let watches = zookeeper::ask(place.server.address(), "wchp").await.unwrap_or_default();
    watches.lines().any(|line| line == path)
}

async fn idle(backend: &Arc<dyn Backend>) {
    eventually("idle", async || {
        let status = backend.admin().show(&name()).await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_follows_its_own_writer_when_the_one_between_them_leaves() {
    let place = Place::new().await;
    let backend = place.open().await;
    let first = take(&backend, 0, Kind::Mutex).await;
    let write = line_up(&backend, 1, Kind::FairWrite, 1).await;
    let between = line_up(&backend, 2, Kind::Mutex, 2).await;
    let read = line_up(&backend, 1, Kind::FairRead, 3).await;
    first.release().await.unwrap();
    let write = granted(write).await;
    in_line(&backend, 2).await;
    between.abort();
    let read = granted(read).await;
    assert_eq!(read.tokens().first(), write.tokens().first(), "one piece of work");
    write.release().await.unwrap();
    read.release().await.unwrap();
    idle(&backend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_follow_their_own_writer_one_after_the_other() {
    let place = Place::new().await;
    let backend = place.open().await;
    for _ in 0..30 {
        let first = take(&backend, 0, Kind::Mutex).await;
        let write = line_up(&backend, 1, Kind::FairWrite, 1).await;
        let mut readers = Vec::new();
        for at in 0..4 {
            readers.push(line_up(&backend, 1, Kind::FairRead, at + 2).await);
        }
        first.release().await.unwrap();
        let write = granted(write).await;
        for reader in readers {
            granted(reader).await.release().await.unwrap();
        }
        write.release().await.unwrap();
    }
}

/// A downgrade changes the name of the node in one step; the answer is a step of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_whose_answer_is_read_late_is_no_loss() {
    let place = Place::new().await;
    let (backend, operator) = (place.open().await, place.operator().await);
    let write = take(&backend, 0, Kind::FairWrite).await;
    // Longer than a hold may be without being watched.
    eventually("watched", async || {
        let watches = zookeeper::ask(place.server.address(), "wchp").await.unwrap_or_default();
        watches.contains(&format!("{}/x/_c_", place.path))
    })
    .await;
    let mut downgrading = Arc::clone(&write).downgrade();
    assert!(futures_util::poll!(&mut downgrading).is_pending());
    eventually("done", async || {
        let line = place.line(&operator).await;
        line.len() == 1 && line[0].contains("__READ__")
    })
    .await;
    // The watch of the node that is gone has been heard of, and the one that is there is watched.
    eventually("watched", async || {
        let watches = zookeeper::ask(place.server.address(), "wchp").await.unwrap_or_default();
        let path = format!("{}/x/", place.path);
        watches.lines().any(|line| line.starts_with(&path) && line.contains("__READ__"))
            || write.loss().cause().is_some()
    })
    .await;
    assert!(matches!(downgrading.await.unwrap(), Renewal::Held(_)));
    assert_eq!(write.loss().cause(), None);
    assert_eq!(write.release().await.unwrap(), Release::Released);
    idle(&backend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_is_given_up_leaves_nothing() {
    let place = Place::new().await;
    let backend = place.open().await;
    let write = take(&backend, 0, Kind::FairWrite).await;
    let mut downgrading = Arc::clone(&write).downgrade();
    assert!(futures_util::poll!(&mut downgrading).is_pending());
    drop(downgrading);
    assert_eq!(write.release().await.unwrap(), Release::Released);
    take(&backend, 1, Kind::FairWrite).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_downgrade_is_unknown_and_leaves_nothing() {
    let place = Place::new().await;
    let (direct, operator) = (place.open().await, place.operator().await);
    let (backend, proxy) = place.through().await;
    let write = take(&backend, 0, Kind::FairWrite).await;
    proxy.delay(Way::Down, Duration::from_secs(60));
    let mut downgrading = Arc::clone(&write).downgrade();
    assert!(futures_util::poll!(&mut downgrading).is_pending());
    eventually("done", async || {
        place.line(&operator).await.iter().any(|child| child.contains("__READ__"))
    })
    .await;
    proxy.drop_connections();
    proxy.pass();
    drop(soon("an answer", downgrading).await.unwrap_err());
    // Done all the same: it still holds, and says so.
    let renewed = soon("an answer", async {
        loop {
            if let Ok(renewed) = Arc::clone(&write).renew(TTL).await {
                return renewed;
            }
        }
    });
    assert!(matches!(renewed.await, Renewal::Held(_)));
    assert_eq!(write.loss().cause(), None);
    let read = take(&direct, 1, Kind::FairRead).await;
    assert_eq!(write.release().await.unwrap(), Release::Released);
    read.release().await.unwrap();
    take(&direct, 2, Kind::FairWrite).await.release().await.unwrap();
}

/// On a slow line the clearing of the first try must not meet the nodes of the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_again_is_not_undone_by_the_first_try() {
    for (kind, below) in [(Kind::Mutex, "x"), (Kind::Permit { of: 1 }, "x/leases")] {
        let place = Place::new().await;
        let (direct, operator) = (place.open().await, place.operator().await);
        let (slow, proxy) = place.through().await;
        // Somebody else, so that nobody watches but the one who waits.
        let dir = format!("{}/{below}", place.path);
        let options = CreateMode::Container.with_acls(Acls::anyone_all());
        operator.mkdir(&dir, &options).await.unwrap();
        let holder = create(&operator, &format!("{dir}/_c_other-lock-")).await;
        let waiting = ask(&slow, 1, kind);
        if kind == Kind::Mutex {
            eventually("watched", async || is_watched(&place, &holder).await).await;
        }
        let ours = async || {
            let children = operator.list_children(&dir).await.unwrap();
            children.into_iter().find(|child| child.starts_with("_c_0000"))
        };
        eventually("there", async || ours().await.is_some()).await;
        proxy.delay(Way::Down, Duration::from_millis(150));
        let ours = ours().await.unwrap();
        operator.delete(&format!("{dir}/{ours}"), None).await.unwrap();
        operator.delete(&holder, None).await.unwrap();
        let again = granted(waiting).await;
        // As long as the clearing of the first try may take.
        for _ in 0..5 {
            let renewed = Arc::clone(&again).renew(TTL).await.unwrap();
            assert!(matches!(renewed, Renewal::Held(_)), "{kind}: {renewed:?}");
        }
        again.release().await.unwrap();
        idle(&direct).await;
    }
}

/// The reply to the step after which the operator sees `done` is lost.
async fn lose_reply_after<T: Send + 'static, F: Future<Output = bool> + Send>(
    proxy: &Proxy,
    step: impl Future<Output = T> + Send + 'static,
    done: impl Fn() -> F + Send,
    meanwhile: impl AsyncFnOnce(),
) -> T {
    proxy.delay(Way::Down, Duration::from_millis(500));
    let step = tokio::spawn(step);
    eventually("done", done).await;
    meanwhile().await;
    proxy.drop_connections();
    proxy.pass();
    soon("an answer", step).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_count_down_counts_once_even_if_the_latch_is_closed_again() {
    let place = Place::new().await;
    let (direct, operator) = (place.open().await, place.operator().await);
    let (slow, proxy) = place.through().await;
    let latches = direct.latches().unwrap();
    assert!(latches.close(&name(), 1, TTL).await.unwrap());
    assert_eq!(slow.latches().unwrap().count(&name()).await.unwrap(), 1);
    let id = RequestId::from_bytes([7; 16]);
    let counting = async move { slow.latches().unwrap().count_down(&name(), id).await };
    let path = format!("{}/x/latch", place.path);
    let open = async || operator.check_stat(&path).await.unwrap().is_none();
    let close_again = async || assert!(latches.close(&name(), 1, TTL).await.unwrap());
    let left = lose_reply_after(&proxy, counting, open, close_again).await;
    assert_eq!(left.unwrap(), 0, "that latch is open");
    assert_eq!(latches.count(&name()).await.unwrap(), 1, "this one was not counted down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_closing_a_latch_does_not_close_it_over_a_lock() {
    let place = Place::new().await;
    let (direct, operator) = (place.open().await, place.operator().await);
    let (slow, proxy) = place.through().await;
    // Before the latch, so that it is the latch that must give way, and after a first look.
    let path = format!("{}/x/latch", place.path);
    let closing = async move { slow.latches().unwrap().close(&name(), 1, TTL).await };
    let held = take(&direct, 0, Kind::Mutex).await;
    let closed = async || operator.check_stat(&path).await.unwrap().is_some();
    let refused = lose_reply_after(&proxy, closing, &closed, async || {}).await;
    assert!(matches!(refused, Err(Error::WrongKind { .. })), "{refused:?}");
    assert!(!closed().await);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_that_is_given_up_while_it_is_closed_does_not_stay_over_a_lock() {
    let place = Place::new().await;
    let (direct, operator) = (place.open().await, place.operator().await);
    let (slow, proxy) = place.through().await;
    let held = take(&direct, 0, Kind::Mutex).await;
    proxy.delay(Way::Down, Duration::from_millis(200));
    let closing = tokio::spawn(async move {
        let closed = slow.latches().unwrap().close(&name(), 1, TTL).await;
        (closed, slow)
    });
    let path = format!("{}/x/latch", place.path);
    eventually("closed", async || operator.check_stat(&path).await.unwrap().is_some()).await;
    closing.abort();
    eventually("open", async || operator.check_stat(&path).await.unwrap().is_none()).await;
    held.release().await.unwrap();
}

/// A server that is behind the others does not know yet of a latch that is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_that_a_server_has_not_heard_of_is_counted_and_waited_for() {
    let ensemble = zookeeper::Ensemble::start_to_be_cut().await;
    let behind = (ensemble.leader().await + 1) % 3;
    let at = |at: usize| ensemble.servers[at % 3].address();
    let there = open(&format!("zookeeper://{}/locks?ttl=40s", at(behind))).await;
    let (one, two) = (at(behind + 1), at(behind + 2));
    let here = open(&format!("zookeeper://{one},{two}/locks")).await;
    // So that it knows the time, and the node above.
    take(&there, 0, Kind::Mutex).await.release().await.unwrap();
    ensemble.cut_off(behind);
    let latches = here.latches().unwrap();
    assert!(latches.close(&name(), 2, TTL).await.unwrap());
    let (counter, waiter) = (Arc::clone(&there), there);
    let id = RequestId::from_bytes([7; 16]);
    let counting =
        tokio::spawn(
            async move { counter.latches().unwrap().count_down(&name(), id).await.unwrap() },
        );
    let waiting = tokio::spawn(async move {
        waiter.latches().unwrap().wait(&name(), id, Patience::Forever).await.unwrap()
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensemble.mend();
    assert_eq!(soon("counted", counting).await.unwrap(), 1);
    assert!(!waiting.is_finished());
    assert_eq!(latches.count_down(&name(), RequestId::from_bytes([8; 16])).await.unwrap(), 0);
    assert!(soon("open", waiting).await.unwrap());
}

/// The last number that is used; see `layout.rs`.
const LAST: i32 = i32::MAX - (1 << 16);

/// A server with a lock whose next number is this.
async fn server_at(number: i32) -> Place {
    let mut server = zookeeper::alone().await;
    let operator = Client::connect(&server.address().to_string()).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.mkdir("/race/x", &options).await.unwrap();
    drop(operator);
    zookeeper::snapshot::set_children_created(&mut server, "/race/x", number).await;
    Place { server: Arc::new(server), path: "/race".into() }
}

/// At the end of its numbers ZooKeeper gives the last one again and again: nobody would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_used_up_are_refused_before_they_break_the_order() {
    let place = server_at(LAST).await;
    let (backend, operator) = (place.open().await, place.operator().await);
    let held = take(&backend, 0, Kind::Mutex).await;
    assert_eq!(place.line(&operator).await[0].rsplit('-').next(), Some(&*LAST.to_string()));
    for kind in [Kind::Mutex, Kind::FairRead, Kind::FairWrite] {
        for patience in [Patience::TryOnce, Patience::Forever] {
            let refused = Arc::clone(&backend).acquire(request(1, kind, patience));
            let refused = soon("an answer", refused).await.unwrap_err();
            assert!(refused.to_string().contains("used up"), "{refused}");
        }
    }
    assert_eq!(place.line(&operator).await.len(), 1, "nothing is left of those");
    assert_eq!(held.loss().cause(), None);
    held.release().await.unwrap();
    let refused = Arc::clone(&backend).acquire(request(1, Kind::Mutex, Patience::Forever)).await;
    assert!(refused.is_err(), "even while nobody holds it: the next may not see it");
    // What the message says helps.
    operator.delete("/race/x", None).await.unwrap();
    take(&backend, 1, Kind::Mutex).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_used_up_are_refused_even_if_the_reply_was_lost() {
    let place = server_at(i32::MAX).await;
    let (backend, operator) = (place.open().await, place.operator().await);
    let (slow, proxy) = place.through().await;
    // Another client that does not care: it has the last number of all.
    let holder = create(&operator, "/race/x/_c_other-lock-").await;
    assert!(holder.ends_with("-lock-2147483647"));
    let asking = request(1, Kind::Mutex, Patience::TryOnce);
    let asking = async move { slow.acquire(asking).await };
    let there = async || {
        let children = operator.list_children("/race/x").await.unwrap();
        children.iter().any(|child| child.starts_with("_c_0000"))
    };
    let refused = lose_reply_after(&proxy, asking, there, async || {}).await;
    assert!(refused.unwrap_err().to_string().contains("used up"));
    let refused = Arc::clone(&backend).acquire(request(2, Kind::Mutex, Patience::TryOnce)).await;
    assert!(refused.unwrap_err().to_string().contains("used up"));
    eventually("alone", async || operator.list_children("/race/x").await.unwrap().len() == 1).await;
}

/// Whoever was in line for a permit first gets it after the lock has been asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_granted_beside_a_permit_that_was_asked_for_before() {
    let place = Place::new().await;
    let operator = place.operator().await;
    let (slow, proxy) = place.through().await;
    let [locks, leases] = ["locks", "leases"].map(|dir| format!("{}/x/{dir}", place.path));
    for dir in [&locks, &leases] {
        let options = CreateMode::Container.with_acls(Acls::anyone_all());
        operator.mkdir(dir, &options).await.unwrap();
    }
    let in_line = create(&operator, &format!("{locks}/_c_other-lock-")).await;
    proxy.delay(Way::Down, Duration::from_millis(300));
    let asking = ask(&slow, 1, Kind::Mutex);
    eventually("there", async || !place.line(&operator).await.is_empty()).await;
    create(&operator, &format!("{leases}/_c_other-lease-")).await;
    operator.delete(&in_line, None).await.unwrap();
    let refused = soon("an answer", asking).await.unwrap();
    assert!(matches!(refused, Err(Error::WrongKind { used_as: "semaphore", .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_ask_while_nobody_answers_wait_together_and_not_one_after_the_other() {
    let place = Place::new().await;
    let proxy = Proxy::to(place.server.address()).await;
    let backend = open(&format!("zookeeper://{}{}?ttl=1s", proxy.address(), place.path)).await;
    let held = take(&backend, 0, Kind::Mutex).await;
    proxy.blackhole();
    soon("lost", held.loss().wait()).await;
    let asking = |who| {
        let request = request(who, Kind::Mutex, Patience::TryOnce);
        tokio::spawn(Arc::clone(&backend).acquire(request))
    };
    let refused = async |asking: Asking| {
        let refused = soon("an answer", asking).await.unwrap();
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    };
    // By the end of the first the session is over.
    refused(asking(0)).await;
    let began = Instant::now();
    refused(asking(0)).await;
    let alone = Instant::now().since(began);
    let all: Vec<_> = (0..12).map(asking).collect();
    let began = Instant::now();
    for one in all {
        refused(one).await;
    }
    let together = Instant::now().since(began);
    assert!(together < alone * 4, "{together:?} for all, {alone:?} for one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_for_the_time_leaves_nothing_when_it_is_given_up() {
    let place = Place::new().await;
    let (direct, operator) = (place.open().await, place.operator().await);
    assert!(direct.latches().unwrap().close(&name(), 1, TTL).await.unwrap());
    let (slow, proxy) = place.through().await;
    proxy.delay(Way::Down, Duration::from_millis(200));
    let kept = Arc::clone(&slow);
    let looking = tokio::spawn(async move { slow.latches().unwrap().count(&name()).await });
    let dir = format!("{}/x", place.path);
    let asks = async || {
        let children = operator.list_children(&dir).await.unwrap();
        children.iter().any(|child| child.starts_with("_time"))
    };
    eventually("asked", async || looking.is_finished() || asks().await).await;
    looking.abort();
    eventually("nothing is left", async || !asks().await).await;
    drop(kept);
}

/// Whoever looks at cells, as `lockkeeper show` does, leaves nothing behind; whoever writes makes them.
#[tokio::test]
async fn looking_at_cells_makes_nothing() {
    let place = Place::new().await;
    let (backend, operator) = (place.open().await, place.operator().await);
    let cells = backend.cells().unwrap();
    let nodes = format!("{}/%stock", place.path);
    assert_eq!(cells.read(&name(), 2).await.unwrap(), [Cell::default(), Cell::default()]);
    assert!(operator.check_stat(&nodes).await.unwrap().is_none());
    let write = |cell, version| Write { cell, version, value: b"a".to_vec() };
    assert!(!cells.swap(&name(), &[write(1, 1)]).await.unwrap(), "it is not of that version");
    assert!(cells.swap(&name(), &[write(1, 0)]).await.unwrap());
    assert!(!cells.swap(&name(), &[write(1, 0)]).await.unwrap());
    let written = Cell { version: 1, value: b"a".to_vec() };
    assert_eq!(cells.read(&name(), 2).await.unwrap(), [Cell::default(), written.clone()]);
    assert!(!cells.swap(&name(), &[write(0, 0), write(1, 0)]).await.unwrap(), "all or none");
    assert_eq!(cells.read_at_once(&name(), 2).await.unwrap(), [Cell::default(), written]);
}
