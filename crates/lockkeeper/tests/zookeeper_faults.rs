//! What can go wrong between a client and its ZooKeeper server.
#![cfg(feature = "zookeeper")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::proxy::Proxy;
use testkit::server::Server;
use testkit::wait::{eventually, soon};
use testkit::zookeeper;
use zookeeper_client::{Acls, Client, CreateMode};

/// A path of its own at a server that the tests have in common.
struct Place {
    server: Arc<Server>,
    path: String,
}

impl Place {
    async fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { server: zookeeper::shared().await, path: format!("/fault-{number}") }
    }

    async fn connect(&self) -> Locks {
        let url = format!("zookeeper://{}{}", self.server.address(), self.path);
        Locks::connect(&url).await.unwrap()
    }

    /// A client behind a proxy.
    async fn through(&self, options: &str) -> (Locks, Proxy) {
        let proxy = Proxy::to(self.server.address()).await;
        let url = format!("zookeeper://{}{}{options}", proxy.address(), self.path);
        (Locks::connect(&url).await.unwrap(), proxy)
    }

    /// What an operator uses.
    async fn operator(&self) -> Client {
        Client::connect(&self.server.address().to_string()).await.unwrap()
    }

    async fn children(&self, operator: &Client) -> Vec<String> {
        operator.list_children(&format!("{}/x", self.path)).await.unwrap_or_default()
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn idle(locks: &Locks) {
    let idle = async || {
        let status = locks.admin().show(&name("x")).await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    };
    eventually("idle", idle).await;
}

async fn waiters(locks: &Locks, count: usize) {
    let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == count;
    eventually("in line", queued).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_create_leaves_one_node_and_one_grant() {
    let place = Place::new().await;
    let (direct, operator) = (place.connect().await, place.operator().await);
    for once in [false, true] {
        let (locks, proxy) = place.through("").await;
        // So that the next reply is that to the create, and not to that of the node above it.
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        proxy.lose_next_reply();
        let mutex = locks.mutex("x").fair();
        let guard = match once {
            true => soon("granted", mutex.try_lock()).await.unwrap().expect("free"),
            false => soon("granted", mutex.lock()).await.unwrap(),
        };
        assert!(proxy.lost_a_reply());
        assert_eq!(place.children(&operator).await.len(), 1, "adopted, not asked for twice");
        assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        idle(&direct).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_without_an_answer_leaves_nothing() {
    let place = Place::new().await;
    let (direct, operator) = (place.connect().await, place.operator().await);
    for permits in [false, true] {
        let (locks, proxy) = place.through("").await;
        let name = if permits { "y" } else { "x" };
        proxy.lose_next_reply();
        let asking = async {
            match permits {
                true => locks.semaphore(name, 2).acquire().await,
                false => locks.mutex(name).fair().lock().await,
            }
        };
        let given_up = tokio::time::timeout(Duration::from_millis(20), asking).await;
        drop(given_up);
        eventually("nothing is left", async || {
            let status = direct.admin().show(&self::name(name)).await.unwrap();
            status.holders.is_empty() && status.waiters.is_empty()
        })
        .await;
        for below in ["x", "y/locks", "y/leases"] {
            let path = format!("{}/{below}", place.path);
            let left = operator.list_children(&path).await.unwrap_or_default();
            let nodes = left.iter().filter(|child| child.starts_with("_c_")).count();
            assert_eq!(nodes, 0, "{below}: {left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_release_is_unknown_and_done_all_the_same() {
    let place = Place::new().await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through("").await;
    let guard = locks.mutex("x").lock().await.unwrap();
    proxy.lose_next_reply();
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    idle(&direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_cannot_be_sent_is_sent_later() {
    let place = Place::new().await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through("").await;
    let guard = locks.mutex("x").lock().await.unwrap();
    proxy.cut();
    drop(guard);
    assert!(direct.mutex("x").try_lock().await.unwrap().is_none(), "nobody was told");
    proxy.pass();
    drop(soon("the session goes on", direct.mutex("x").lock()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_when_connections_break() {
    let place = Place::new().await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through("").await;
    let held = direct.mutex("x").lock().await.unwrap();
    let mutex = locks.mutex("x").fair();
    let first = tokio::spawn(async move { mutex.lock().await });
    waiters(&direct, 1).await;
    let mutex = direct.mutex("x").fair();
    let second = tokio::spawn(async move { mutex.lock().await });
    waiters(&direct, 2).await;
    for _ in 0..3 {
        proxy.drop_connections();
    }
    held.release().await.unwrap();
    let guard = soon("its turn", first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    soon("the next", second).await.unwrap().unwrap().release().await.unwrap();
}

/// How a client is cut off from its server.
async fn is_lost_in_time(off: fn(&Proxy)) {
    let place = Place::new().await;
    let direct = place.connect().await;
    let (locks, proxy) = place.through("?ttl=4s").await;
    let hosted = locks.mutex("x").lock().await.unwrap();
    let fixed = locks.lease(Duration::from_secs(600)).mutex("y").lock().await.unwrap();
    let mutexes = [direct.mutex("x"), direct.mutex("y")];
    let mut waiting = mutexes.map(|mutex| {
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            (Instant::now(), guard)
        })
    });
    waiters(&direct, 1).await;
    off(&proxy);
    let cause = soon("the loss", hosted.lost()).await;
    let at = Instant::now();
    assert_eq!(cause, Cause::Expired);
    assert_eq!(soon("the loss", fixed.lost()).await, Cause::Expired);
    let late = Instant::now();
    let [first, second] = &mut waiting;
    let (x, next) = soon("the session ends", first).await.unwrap();
    assert!(at < x && next.token() > hosted.token(), "lost before it is granted again");
    let (y, _next) = soon("the session ends", second).await.unwrap();
    assert!(late < y);
    proxy.pass();
    let again = soon("a new session", locks.mutex("z").lock()).await.unwrap();
    assert!(hosted.is_lost() && fixed.is_lost() && !again.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_cut_off_loses_before_others_are_granted() {
    is_lost_in_time(Proxy::cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_network_freezes_loses_before_others_are_granted() {
    is_lost_in_time(Proxy::freeze).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_gone_silent_is_replaced_and_nothing_is_lost() {
    let place = Place::new().await;
    let (locks, proxy) = place.through("").await;
    let guard = locks.mutex("x").lock().await.unwrap();
    proxy.silence();
    let other = match soon("another connection", locks.mutex("y").lock()).await {
        Ok(guard) => guard,
        // A request that is not answered for five seconds is given up.
        Err(error) => {
            assert!(error.is_transient(), "{error}");
            soon("another connection", locks.mutex("y").lock()).await.unwrap()
        }
    };
    assert!(!guard.is_lost(), "{:?}", guard.check());
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_an_operator_deletes_is_a_loss_at_once() {
    let place = Place::new().await;
    let (locks, operator) = (place.connect().await, place.operator().await);
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    for child in place.children(&operator).await {
        operator.delete(&format!("{}/x/{child}", place.path), None).await.unwrap();
    }
    assert_eq!(soon("told", guard.lost()).await, Cause::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_node_is_deleted_lines_up_again() {
    let place = Place::new().await;
    let (locks, operator) = (place.connect().await, place.operator().await);
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    waiters(&locks, 1).await;
    let mut children = place.children(&operator).await;
    children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
    let last = children.last().unwrap();
    operator.delete(&format!("{}/x/{last}", place.path), None).await.unwrap();
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_done_only_while_the_lock_is_held() {
    let place = Place::new().await;
    let (locks, operator) = (place.connect().await, place.operator().await);
    let (acls, path) = (Acls::anyone_all(), format!("{}-data", place.path));
    operator.create(&path, b"old", &CreateMode::Persistent.with_acls(acls)).await.unwrap();
    let guard = locks.mutex("x").lock().await.unwrap();
    let guarded = guard.zookeeper().unwrap();
    let write = async |data: &[u8]| {
        let mut writer = guarded.writer().unwrap();
        writer.add_set_data(&path, data, None).unwrap();
        writer.commit().await
    };
    write(b"mine").await.unwrap();
    locks.admin().evict(&name("x"), "enough").await.unwrap();
    let refused = write(b"late").await.unwrap_err();
    let check =
        zookeeper_client::CheckWriteError::CheckFailed { source: zookeeper_client::Error::NoNode };
    assert_eq!(refused, check);
    assert_eq!(operator.get_data(&path).await.unwrap().0, b"mine");
    soon("told", guard.lost()).await;
    assert!(matches!(guard.zookeeper(), Err(Error::Lost { .. })));
    let memory = Locks::memory().mutex("x").lock().await.unwrap();
    assert!(matches!(memory.zookeeper(), Err(Error::Unsupported { .. })));
}

/// What is sent in time and arrives late: when the session is over and somebody else has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_a_holder_that_was_overtaken_is_refused() {
    let place = Place::new().await;
    let ((locks, proxy), operator) = (place.through("?ttl=2s").await, place.operator().await);
    let (acls, path) = (Acls::anyone_all(), format!("{}-data", place.path));
    operator.create(&path, b"old", &CreateMode::Persistent.with_acls(acls)).await.unwrap();
    let guard = locks.mutex("x").lock().await.unwrap();
    let guarded = guard.zookeeper().unwrap();
    let data = path.clone();
    let late = async move {
        let mut writer = guarded.writer().unwrap();
        writer.add_set_data(&data, b"late", None).unwrap();
        writer.commit().await
    };
    proxy.freeze();
    let late = tokio::spawn(late);
    let direct = place.connect().await;
    let next = soon("overtaken", direct.mutex("x").lock()).await.unwrap();
    assert!(guard.is_lost() && next.token() > guard.token());
    let guarded = next.zookeeper().unwrap();
    let mut writer = guarded.writer().unwrap();
    writer.add_set_data(&path, b"next", None).unwrap();
    writer.commit().await.unwrap();
    proxy.pass();
    assert!(soon("an answer", late).await.unwrap().is_err());
    assert_eq!(operator.get_data(&path).await.unwrap().0, b"next");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_let_in_and_are_not_shown() {
    let place = Place::new().await;
    let at = |who: &str, options: &str| {
        format!("zookeeper://{who}{}{}{options}", place.server.address(), place.path)
    };
    let mine = Locks::connect(&at("me:s3cret@", "?acl=creator")).await.unwrap();
    assert!(!format!("{mine:?}").contains("s3cret"));
    let guard = mine.mutex("x").lock().await.unwrap();
    let other = Locks::connect(&at("you:wr0ng@", "")).await.unwrap();
    let error = other.mutex("x").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("user:password"), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"));
    let same = Locks::connect(&at("me:s3cret@", "")).await.unwrap();
    assert!(same.mutex("x").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_in_name_do_not_disturb_each_other() {
    let place = Place::new().await;
    let locks = place.connect().await;
    let mut guards = Vec::new();
    for name in ["a", "a/b", "a/0", "zookeeper", "locks", "leases", "latch", "a%2Fb"] {
        guards.push(locks.mutex(name).try_lock().await.unwrap().expect(name));
    }
    assert_eq!(locks.admin().list().await.unwrap().len(), guards.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_goes_on_when_its_empty_node_is_removed() {
    let place = Place::new().await;
    let (locks, operator) = (place.connect().await, place.operator().await);
    let mut last = 0;
    for _ in 0..3 {
        let guard = locks.mutex("x").lock().await.unwrap();
        assert!(guard.token().get() > last, "although the numbers begin again");
        last = guard.token().get();
        guard.release().await.unwrap();
        let path = format!("{}/x", place.path);
        eventually("the server removes it", async || {
            operator.check_stat(&path).await.unwrap().is_none()
        })
        .await;
    }
}
