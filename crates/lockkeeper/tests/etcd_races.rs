//! What others may do between two requests of one client of etcd, and what is lost on the way.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{Hold, Kind, Patience, Renewal, Request, Term};
use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Locks, Name, RequestId};
use testkit::proxy::{Proxy, Way};
use testkit::server::{self, Server, etcdctl};
use testkit::wait::{eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Long enough to act between a request that was carried out and its answer.
const LATE: Duration = Duration::from_millis(300);

async fn connect(server: &Server) -> Locks {
    Locks::connect(&format!("etcd://{}", server.address())).await.unwrap()
}

/// A client behind a proxy.
async fn through(server: &Server) -> (Locks, Proxy) {
    let proxy = Proxy::to(server.address()).await;
    (Locks::connect(&format!("etcd://{}", proxy.address())).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn queued(locks: &Locks, waiters: usize) {
    let shown = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == waiters;
    eventually("in line", shown).await;
}

async fn holders(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.unwrap().holders.len()
}

fn request(locks: &Locks, term: Term, patience: Patience) -> Request {
    Request {
        name: name("x"),
        kind: Kind::FairMutex,
        owner: locks.new_owner(),
        id: RequestId::from_bytes([7; 16]),
        term,
        tokens: 1,
        patience,
    }
}

async fn acquire(locks: &Locks, request: &Request) -> Arc<dyn Hold> {
    soon("free", Arc::clone(locks.backend()).acquire(request.clone())).await.unwrap().unwrap()
}

/// A request that is sent again after its grant goes on with the lease that the key has by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_found_again_can_be_renewed_for_longer() {
    let server = server::etcd(&[]).await;
    let (one, two) = tokio::join!(connect(&server), connect(&server));
    let asked = request(&one, Term::Fixed(Duration::from_secs(60)), Patience::Forever);
    let _first = acquire(&one, &asked).await;
    let again = acquire(&two, &asked).await;
    for ttl in [120, 240] {
        let renewed = Arc::clone(&again).renew(Duration::from_secs(ttl)).await.unwrap();
        let Renewal::Held(Some(expires)) = renewed else { panic!("{renewed:?}") };
        let lost = tokio::time::timeout(LATE, again.loss().wait()).await;
        assert!(lost.is_err(), "{lost:?}");
        assert!(expires.since(Instant::now()) > Duration::from_secs(ttl - 10), "all of it");
    }
    assert_eq!(holders(&one).await, 1);
}

/// A renewal that is given up on when the key has got its longer lease already: from then on that one
/// counts, however short the next renewals are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_lease_whose_answer_was_lost_is_kept_alive() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let (short, long) = (Duration::from_secs(2), Duration::from_secs(5));
    let hold = acquire(&locks, &request(&locks, Term::Hosted(short), Patience::TryOnce)).await;
    proxy.delay(Way::Down, LATE);
    let renewal = tokio::spawn(Arc::clone(&hold).renew(long));
    let left = async || {
        let shown = direct.admin().show(&name("x")).await.unwrap();
        shown.holders[0].lease_left.unwrap()
    };
    eventually("the longer lease", async || left().await > short).await;
    renewal.abort();
    assert!(renewal.await.is_err(), "without an answer");
    proxy.pass();
    let since = Instant::now();
    while Instant::now().since(since) < long + Duration::from_secs(1) {
        let renewed = Arc::clone(&hold).renew(short).await.unwrap();
        assert!(matches!(renewed, Renewal::Held(_)), "{renewed:?}");
        tokio::time::sleep(LATE).await;
    }
    assert_eq!(holders(&direct).await, 1);
}

/// The watch of a hold begins with its grant; by then that may be history that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_history_was_compacted_is_watched_all_the_same() {
    let server = server::etcd(&[]).await;
    let (one, two) = tokio::join!(connect(&server), connect(&server));
    let asked = request(&one, Term::Fixed(Duration::from_secs(600)), Patience::Forever);
    let _first = acquire(&one, &asked).await;
    for _ in 0..5 {
        etcdctl(&server, &["put", "unrelated", "1"]);
    }
    let status = etcdctl(&server, &["get", "unrelated", "-w", "json"]);
    let revision = status.split("\"revision\":").nth(1).unwrap().split(',').next().unwrap();
    etcdctl(&server, &["compact", revision]);
    let again = acquire(&two, &asked).await;
    let renewed = Arc::clone(&again).renew(Duration::from_secs(600)).await.unwrap();
    assert!(matches!(renewed, Renewal::Held(_)), "{renewed:?}");
    tokio::time::sleep(LATE).await;
    two.admin().evict(&name("x"), "stuck").await.unwrap();
    assert_eq!(*soon("told", again.loss().wait()).await, Cause::Evicted("stuck".into()));
}

/// A renewal of a short lease is given up on before a request as such is: that is enough to leave the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_lease_survives_a_connection_that_has_gone_silent() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    for ttl in [3, 6] {
        let locks = locks.ttl(Duration::from_secs(ttl));
        let guard = locks.mutex("x").try_lock().await.unwrap().unwrap();
        let begun = guard.expires_at().unwrap();
        eventually("renewed", async || guard.expires_at().unwrap() > begun).await;
        proxy.silence();
        // Whatever was on its way is noted by now.
        tokio::time::sleep(LATE).await;
        let silent = guard.expires_at().unwrap();
        let renewed = async || guard.is_lost() || guard.expires_at().unwrap() > silent;
        eventually("renewed through another connection", renewed).await;
        assert!(!guard.is_lost(), "{ttl} s: {:?}", guard.check());
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_an_answer_may_be_dropped_anywhere() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    proxy.silence();
    let mutex = locks.mutex("x").fair();
    let mut asking = Box::pin(async move { mutex.lock().await });
    assert!(tokio::time::timeout(LATE, &mut asking).await.is_err(), "no answer");
    tokio::task::spawn_blocking(|| std::thread::spawn(move || drop(asking)).join().unwrap())
        .await
        .unwrap();
    soon("through another connection", locks.mutex("x").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// An owner that writes reads at once, past those who wait for it: also if what it sent was lost when
/// it was in line already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_request_was_lost_does_not_wait_for_itself() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let owner = direct.new_owner();
    let writing = direct.owned_by(&owner).rw_lock("x").fair().write().await.unwrap();
    let other = direct.rw_lock("x").fair();
    let waiting = tokio::spawn(async move { other.write().await });
    queued(&direct, 1).await;
    // Once it has heard that it is in line, and what it says next has not arrived.
    for late in 1..=8 {
        let (locks, proxy) = through(&server).await;
        for way in [Way::Up, Way::Down] {
            proxy.delay(way, LATE);
        }
        let lock = locks.owned_by(&owner).rw_lock("x").fair();
        let reading = tokio::spawn(async move { lock.read().await });
        queued(&direct, 2).await;
        tokio::time::sleep(LATE / 2 * late).await;
        proxy.cut();
        proxy.pass();
        let reading = soon("reads", reading).await.unwrap().unwrap();
        assert_eq!(reading.token(), writing.token());
        assert!(!waiting.is_finished());
        // Unknown at worst: its connection may go just now.
        drop(reading.release().await);
        eventually("released", async || holders(&direct).await == 1).await;
    }
    writing.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_that_is_sent_again_spares_the_next_latch() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let latch = direct.latch("x");
    assert!(latch.close(1).await.unwrap());
    proxy.delay(Way::Down, LATE);
    let counting = locks.latch("x");
    let counting = tokio::spawn(async move { counting.count_down().await });
    eventually("open", async || latch.count().await.unwrap() == 0).await;
    proxy.cut();
    assert!(latch.close(2).await.unwrap());
    proxy.pass();
    assert_eq!(soon("an answer", counting).await.unwrap().unwrap(), 0);
    assert_eq!(latch.count().await.unwrap(), 2, "nobody counted this one down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_whose_closing_is_sent_again_is_not_closed_twice() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let latch = direct.latch("x");
    proxy.delay(Way::Down, LATE);
    let closing = locks.latch("x");
    let closing = tokio::spawn(async move { closing.close(1).await });
    eventually("closed", async || latch.count().await.unwrap() == 1).await;
    proxy.cut();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    proxy.pass();
    assert!(soon("an answer", closing).await.unwrap().unwrap(), "it was open");
    assert_eq!(latch.count().await.unwrap(), 0, "and is so again");
    let leases = async || etcdctl(&server, &["lease", "list"]).starts_with("found 0");
    eventually("nothing stays", leases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_too_late_to_close_a_latch_leaves_nothing() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let latch = direct.latch("x");
    proxy.delay(Way::Down, LATE);
    let closing = locks.latch("x");
    let closing = tokio::spawn(async move { closing.close(1).await });
    // It was told that the latch is open, and will hear so when it is not any more.
    tokio::time::sleep(LATE / 2).await;
    assert!(latch.close(1).await.unwrap());
    assert!(!soon("an answer", closing).await.unwrap().unwrap(), "too late");
    assert_eq!(latch.count_down().await.unwrap(), 0);
    let leases = async || etcdctl(&server, &["lease", "list"]).starts_with("found 0");
    eventually("nothing stays", leases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_is_whole_after_a_wait() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let lease = Duration::from_secs(4);
    let mutex = locks.lease(lease).mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    // Not so long that the waiter keeps its place alive once more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let since = Instant::now();
    held.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(guard.expires_at().unwrap().since(since) >= lease, "from the grant on");
    guard.release().await.unwrap();
}

/// A server whose user is `root:s3cret`.
async fn with_user(arguments: &[&str]) -> (Server, String) {
    let server = server::etcd(arguments).await;
    for words in [
        &["user", "add", "root:s3cret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcdctl(&server, words);
    }
    let url = format!("etcd://root:s3cret@{}", server.address());
    (server, url)
}

/// Signed tokens say which rights were in force; when rights change, all of them are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_older_than_the_rights_is_replaced() {
    let keys = tempfile::tempdir().unwrap();
    let file = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let (private, public) = (file("private"), file("public"));
    for words in [
        &["genrsa", "-out", &private, "2048"][..],
        &["rsa", "-in", &private, "-pubout", "-out", &public],
    ] {
        let made = std::process::Command::new("openssl").args(words).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    let tokens = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
    let (server, url) = with_user(&["--auth-token", &tokens]).await;
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.ttl(Duration::from_secs(9)).mutex("x").lock().await.unwrap();
    etcdctl(&server, &["--user", "root:s3cret", "role", "add", "other"]);
    let before = guard.expires_at().unwrap();
    let renewed = async || guard.is_lost() || guard.expires_at().unwrap() > before;
    eventually("renewed", renewed).await;
    assert!(!guard.is_lost(), "{:?}", guard.check());
    let other = soon("free", locks.mutex("y").lock()).await.unwrap();
    etcdctl(&server, &["--user", "root:s3cret", "role", "add", "another"]);
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

/// A fixed lease asks for nothing: its watch alone finds out that its token is not known any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_token_was_forgotten_is_set_up_again() {
    let (mut server, url) = with_user(&[]).await;
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    let alone = async || {
        etcdctl(&server, &["--user", "root:s3cret", "lease", "list"]).starts_with("found 1")
    };
    eventually("nothing else on its way", alone).await;
    server.restart().await;
    let other = Locks::connect(&url).await.unwrap();
    // It has just been started, and may be slow.
    let evicted = async || other.admin().evict(&name("x"), "stuck").await.is_ok();
    eventually("evicted", evicted).await;
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

/// Who only asks is in line for a moment. If it dies just then, the others wait as for any waiter that
/// dies, and not for as long as the lock was to be held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_dies_while_it_only_asks_holds_nobody_up() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let held = direct.mutex("x").fair().lock().await.unwrap();
    let (locks, proxy) = through(&server).await;
    proxy.delay(Way::Down, LATE);
    let asked = request(&locks, Term::Fixed(Duration::from_secs(600)), Patience::TryOnce);
    let asking = tokio::spawn(Arc::clone(locks.backend()).acquire(asked));
    queued(&direct, 1).await;
    // Nothing that it says is heard any more.
    proxy.cut();
    held.release().await.unwrap();
    let next = soon("its turn", direct.mutex("x").fair().lock()).await.unwrap();
    next.release().await.unwrap();
    asking.abort();
}

/// A way to the server on which everything arrives as late as is said, even when the client has left it
/// by then.
async fn slow_way(server: SocketAddr, delay: watch::Receiver<Duration>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let server = TcpStream::connect(server).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            let (late, mut due) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
            let delay = delay.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                    let at = tokio::time::Instant::now() + *delay.borrow();
                    late.send((at, buffer[..length].to_vec())).unwrap();
                }
            });
            tokio::spawn(async move {
                while let Some((at, data)) = due.recv().await {
                    tokio::time::sleep_until(at).await;
                    to_server.write_all(&data).await.unwrap();
                }
            });
            tokio::spawn(async move {
                // It may have nobody to answer any more.
                let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                let _ = tokio::io::copy(&mut from_server, &mut tokio::io::sink()).await;
            });
        }
    });
    address
}

/// A renewal that was given up on may still be on its way, with what was true when it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_does_not_undo_a_downgrade() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (delay, delayed) = watch::channel(Duration::ZERO);
    let slow = slow_way(server.address(), delayed).await;
    // The first way is left for the second.
    let url = format!("etcd://{slow},{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    let term = Term::Hosted(Duration::from_secs(5));
    let asked = Request { kind: Kind::Write, ..request(&locks, term, Patience::TryOnce) };
    let hold = acquire(&locks, &asked).await;
    delay.send_replace(LATE * 2);
    let renewal = tokio::spawn(Arc::clone(&hold).renew(Duration::from_secs(60)));
    let leases = async || etcdctl(&server, &["lease", "list"]).starts_with("found 2");
    eventually("the longer lease", leases).await;
    // It has sent the key that goes with it.
    tokio::time::sleep(LATE).await;
    renewal.abort();
    assert!(renewal.await.is_err(), "without an answer");
    let downgraded = Arc::clone(&hold).downgrade().await.unwrap();
    assert!(matches!(downgraded, Renewal::Held(_)), "{downgraded:?}");
    tokio::time::sleep(LATE * 6).await;
    let reading = direct.rw_lock("x").try_read().await.unwrap();
    reading.expect("readers are let in").release().await.unwrap();
}

/// Of several guards of one owner one is downgraded, and nobody knows whether it was: the others must
/// not go on as if they wrote alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_without_an_answer_leaves_no_guard_that_writes() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let lock = locks.owned_by(&locks.new_owner()).rw_lock("x");
    let (one, two) = (lock.write().await.unwrap(), lock.write().await.unwrap());
    proxy.delay(Way::Down, LATE * 2);
    let downgrading = tokio::spawn(one.downgrade());
    let reading = soon("downgraded", direct.rw_lock("x").read()).await.unwrap();
    proxy.cut();
    let unknown = soon("an answer", downgrading).await.unwrap().unwrap_err();
    assert!(matches!(unknown, lockkeeper::Error::Unknown { .. }), "{unknown}");
    assert_eq!(two.kind(), Kind::Read, "somebody else reads");
    proxy.pass();
    reading.release().await.unwrap();
}

/// The only key of the lock.
fn key(server: &Server) -> String {
    etcdctl(server, &["get", "--prefix", "x/", "--keys-only"]).trim().to_owned()
}

/// A new key for every turn would stay in the history, which every look at the queue goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_turns_does_so_with_one_lease_and_one_key() {
    let server = server::etcd(&[]).await;
    // As long as that of a place in line, which would soon be given up for a longer one.
    let ttl = Duration::from_secs(5);
    let locks = connect(&server).await.ttl(ttl);
    // It is used again for half of that time, and only if every request was answered in time.
    let quick = |since: Instant| Instant::now().since(since) < Duration::from_millis(100);
    let (mut last, mut before, mut born) = (0, String::new(), Instant::now());
    let mut in_time = false;
    for _ in 0..20 {
        let begun = Instant::now();
        let turn = locks.mutex("x").lock().await.unwrap();
        let granted = quick(begun);
        in_time &= granted && Instant::now().since(born) < ttl / 3;
        let mine = key(&server);
        if mine != before {
            assert!(!in_time, "not the same again");
            (before, born) = (mine, begun);
        }
        assert!(turn.token().get() > last, "and another token");
        last = turn.token().get();
        let begun = Instant::now();
        turn.release().await.unwrap();
        in_time = granted && quick(begun);
        assert_eq!(key(&server), "");
    }
    // Two at once have one each, and none of them outlives its use for long.
    let held = locks.mutex("x").lock().await.unwrap();
    let other = locks.mutex("y").lock().await.unwrap();
    assert!(etcdctl(&server, &["lease", "list"]).starts_with("found 2"));
    held.release().await.unwrap();
    other.release().await.unwrap();
    let ended = async || etcdctl(&server, &["lease", "list"]).starts_with("found 0");
    eventually("no lease is left", ended).await;
}

/// What is still on its way must not find the lease alive: it would create the key again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_used_again_when_an_answer_was_lost() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    proxy.lose_next_reply();
    let held = soon("asked again", locks.mutex("x").lock()).await.unwrap();
    assert!(proxy.lost_a_reply());
    let mine = key(&server);
    held.release().await.unwrap();
    let next = locks.mutex("x").lock().await.unwrap();
    assert_ne!(key(&server), mine, "another lease");
    next.release().await.unwrap();
}

/// The lease of a request need not be one of its own: then a resend has another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_sent_again_with_another_lease_finds_its_place() {
    let server = server::etcd(&[]).await;
    let (one, two) = tokio::join!(connect(&server), connect(&server));
    one.mutex("x").lock().await.unwrap().release().await.unwrap();
    let asked = request(&one, Term::Hosted(Duration::from_secs(5)), Patience::Forever);
    let first = acquire(&one, &asked).await;
    let mine = key(&server);
    let again = acquire(&two, &asked).await;
    assert_eq!((again.tokens(), holders(&one).await), (first.tokens(), 1));
    assert_eq!(key(&server), mine, "nothing else is left");
    let renewed = Arc::clone(&again).renew(Duration::from_secs(20)).await.unwrap();
    assert!(matches!(renewed, Renewal::Held(_)), "{renewed:?}");
    again.release().await.unwrap();
    assert_eq!(holders(&one).await, 0);
}
