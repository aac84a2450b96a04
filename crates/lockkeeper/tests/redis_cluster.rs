//! What is different in a Redis cluster: slots that move, masters that are replaced, names and keys that
//! must keep together.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::backend::redis::keyspace::Keyspace;
use lockkeeper::backend::redis::optimistic::redis::Cmd;
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Latch, Locks, Multi, Name};
use testkit::nodes::{Cluster, SETTLE, ask};
use testkit::resp::{Raw, Reply};
use testkit::wait::{eventually, soon, within};

/// Short, because every test that kills a master waits for it.
const DOWN: Duration = Duration::from_secs(1);

async fn connect(cluster: &Cluster, options: &str) -> Locks {
    Locks::connect(&format!("{}{options}", cluster.url())).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn waiters(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.map_or(0, |status| status.waiters.len())
}

/// Releases; where the answer is not known because of the fail-over, it is tried again behind us.
async fn let_go(guard: Guard, locks: &Locks) {
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::Unknown { .. })), "{released:?}");
    let free = async || {
        let status = locks.admin().show(&name("x")).await;
        status.is_ok_and(|status| status.holders.is_empty())
    };
    within(SETTLE, "free", free).await;
}

/// The slot of `x`, who has it, and who else is a master.
async fn place(cluster: &Cluster) -> (u16, usize, usize) {
    let slot = cluster.slot("x").await;
    let owner = cluster.owner_other_than(slot, None).await;
    (slot, owner, (owner + 1) % 3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_a_fail_over_of_a_cluster_may_grant_twice() {
    let mut cluster = Cluster::start(DOWN).await;
    let (slot, owner, _) = place(&cluster).await;
    let [one, two] = [connect(&cluster, "").await, connect(&cluster, "").await];
    cluster.cut_off_replica_of(owner).await;
    let first = one.ttl(Duration::from_secs(30)).mutex("x").lock().await.unwrap();
    let ends = first.expires_at().unwrap();
    cluster.servers[owner].kill();
    cluster.servers[owner + 3].resume();
    cluster.owner_other_than(slot, Some(owner)).await;
    let second = two.mutex("x").lock_timeout(SETTLE).await.unwrap();
    assert!(Instant::now() < ends, "the first one has not ended");
    assert!(second.token() <= first.token(), "the counter was lost as well");
    // At its next renewal at the latest.
    soon("the first one is lost", first.lost()).await;
    let_go(second, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_a_hold_survives_a_fail_over_of_a_cluster() {
    let mut cluster = Cluster::start(DOWN).await;
    let (slot, owner, _) = place(&cluster).await;
    let [one, two] = [connect(&cluster, "?replicas=1").await, connect(&cluster, "").await];
    cluster.cut_off_replica_of(owner).await;
    let error = one.mutex("x").try_lock().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Replicas { wanted: 1, reached: 0, .. }), "{error}");
    cluster.servers[owner + 3].resume();
    let one = one.ttl(Duration::from_secs(40));
    within(SETTLE, "acknowledged", async || one.mutex("x").try_lock().await.is_ok()).await;
    let guard = soon("granted", one.mutex("x").lock()).await.unwrap();
    let waiting = tokio::spawn({
        let mutex = two.mutex("x");
        async move { mutex.lock().await }
    });
    eventually("in line", async || waiters(&two).await == 1).await;
    cluster.servers[owner].kill();
    let next = cluster.owner_other_than(slot, Some(owner)).await;
    assert_eq!(next, owner + 3);
    within(SETTLE, "in line again", async || waiters(&two).await == 1).await;
    assert!(!guard.is_lost() && !waiting.is_finished());
    let token = guard.token();
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::Unknown { .. })), "{released:?}");
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(guard.token() > token, "tokens grow over the fail-over");
    let_go(guard, &two).await;
}

/// That a master hangs takes a second to find out, and nobody here has as much patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_left_although_nobody_waits_for_it() {
    let cluster = Cluster::start(DOWN).await;
    let (slot, owner, _) = place(&cluster).await;
    let keyspace = Keyspace::connect(&cluster.url().parse().unwrap()).await.unwrap();
    let locks = connect(&cluster, "").await;
    let soon = Duration::from_millis(50);
    let answers = async || {
        let mut get = redis::cmd("GET");
        let looking = keyspace.query::<Option<String>>("x", get.arg("x"));
        tokio::time::timeout(soon, looking).await.is_ok_and(|it| it.is_ok())
    };
    // Each on a connection of its own.
    let decides = async || {
        let deciding = locks
            .optimistic(["x"], |tx| async move { tx.read::<Option<String>>(Cmd::get("x")).await });
        tokio::time::timeout(soon, deciding).await.is_ok_and(|it| it.is_ok())
    };
    eventually("it answers", &answers).await;
    eventually("it answers in transactions", &decides).await;
    cluster.servers[owner].pause();
    assert!(!answers().await && !decides().await, "it was to hang");
    cluster.owner_other_than(slot, Some(owner)).await;
    eventually("another one answers in transactions", &decides).await;
    eventually("another one answers", &answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_a_hold_and_a_waiter() {
    let cluster = Cluster::start(SETTLE).await;
    let (slot, from, to) = place(&cluster).await;
    let [one, two] = [connect(&cluster, "").await, connect(&cluster, "").await];
    for fair in [false, true] {
        let (from, to) = if fair { (to, from) } else { (from, to) };
        let guard = one.ttl(Duration::from_secs(10)).mutex("x").lock().await.unwrap();
        let mutex = if fair { two.mutex("x").fair() } else { two.mutex("x") };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually("in line", async || waiters(&two).await == 1).await;
        cluster.move_slot(slot, from, to).await;
        let before = guard.expires_at().unwrap();
        eventually("renewed where it is now", async || guard.expires_at().unwrap() > before).await;
        assert!(!guard.is_lost() && !waiting.is_finished());
        let token = guard.token();
        guard.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        assert_eq!(ask(cluster.servers[to].address(), "EXISTS x").await, "1");
        guard.release().await.unwrap();
    }
}

/// Keys are at two servers then, and no script can see all of them: nobody is granted anything, and
/// whoever does not want to wait any longer is told in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_just_moving_breaks_no_bound() {
    let cluster = Cluster::start(SETTLE).await;
    let (slot, from, to) = place(&cluster).await;
    let [one, two] = [connect(&cluster, "").await, connect(&cluster, "").await];
    let guard = one.mutex("x").lock().await.unwrap();
    cluster.begin_move(slot, from, to).await;
    let since = Instant::now();
    let second = Duration::from_secs(1);
    two.mutex("x").lock_timeout(second).await.map(|_| ()).unwrap_err();
    assert!(Instant::now().since(since) < 3 * second, "the deadline is kept");
    let waiting = tokio::spawn({
        let mutex = two.mutex("x");
        async move { mutex.lock().await }
    });
    cluster.finish_move(slot, from, to).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load() {
    let cluster = Cluster::start(SETTLE).await;
    let names: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    let mut places = Vec::new();
    for name in &names {
        let slot = cluster.slot(name).await;
        places.push((slot, cluster.owner_other_than(slot, None).await));
    }
    let (done, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let inside: Arc<Vec<AtomicU32>> = Arc::new(names.iter().map(|_| AtomicU32::new(0)).collect());
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = connect(&cluster, "").await;
        for (at, name) in names.iter().enumerate() {
            let mutex = if at % 2 == 0 { locks.mutex(name) } else { locks.mutex(name).fair() };
            let (done, granted) = (Arc::clone(&done), Arc::clone(&granted));
            let inside = Arc::clone(&inside);
            tasks.push(tokio::spawn(async move {
                let mut last = None;
                while !done.load(Ordering::SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "alone");
                    assert!(last < Some(guard.token()), "tokens grow");
                    last = Some(guard.token());
                    tokio::task::yield_now().await;
                    inside[at].fetch_sub(1, Ordering::SeqCst);
                    granted.fetch_add(1, Ordering::SeqCst);
                    guard.release().await.ok();
                }
            }));
        }
    }
    for round in 1..=4 {
        for (slot, first) in &places {
            let (from, to) = ((first + round - 1) % 3, (first + round) % 3);
            cluster.move_slot(*slot, from, to).await;
        }
        let before = granted.load(Ordering::SeqCst);
        eventually("it goes on", async || granted.load(Ordering::SeqCst) > before + 20).await;
    }
    done.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("an end", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_whose_keys_would_be_apart_are_refused() {
    let cluster = Cluster::shared().await;
    let locks = connect(&cluster, "?prefix=apart:").await;
    for bad in ["a}b", "{}x", "a{b"] {
        let error = locks.mutex(bad).lock().await.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
        let error = locks.admin().show(&name(bad)).await.unwrap_err();
        assert!(error.to_string().contains("slots"), "{error}");
    }
    for good in ["{a}b", "a{b}", "a{b}c{d}", "{{a}"] {
        let guard = locks.rw_lock(good).fair().read().await.unwrap();
        guard.release().await.unwrap();
    }
    let latch: Latch = locks.latch("{a}b");
    assert!(matches!(latch.count().await.unwrap_err(), Error::Unsupported { .. }));
    assert_eq!(locks.latch("ab").count().await.unwrap(), 0);
}

/// At once where they are in one slot, one after the other where they are not; in both cases all or
/// none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_may_be_in_several_slots() {
    let cluster = Cluster::shared().await;
    let [one, two] =
        [connect(&cluster, "?prefix=multi:").await, connect(&cluster, "?prefix=multi:").await];
    for names in [["{a}1", "{a}2", "{a}3"], ["a", "b", "c"]] {
        let multi = Multi::new(names.map(|name| one.mutex(name)));
        let guard = multi.lock().await.unwrap();
        for name in names {
            assert!(two.mutex(name).try_lock().await.unwrap().is_none());
        }
        guard.release().await.unwrap();
        let last = two.mutex(names[2]).lock().await.unwrap();
        multi.lock_timeout(Duration::from_millis(300)).await.map(|_| ()).unwrap_err();
        for name in &names[..2] {
            let free = async || two.mutex(name).try_lock().await.unwrap().is_some();
            eventually("none", free).await;
        }
        last.release().await.unwrap();
    }
}

/// The rights of docs/OPERATIONS.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_one_prefix_are_enough_in_a_cluster() {
    let cluster = Cluster::shared().await;
    let rights = "reset on >pw ~app:* ~{app:* ~lockkeeper*:{app:* ~lockkeeper*::app:* ~redisson_*{app:* \
                  resetchannels &lockkeeper_wake:* &redisson_*{app:* \
                  +@connection +@scripting +@pubsub +@read +@write +time -@dangerous +info \
                  +cluster|slots +cluster|info";
    for server in &cluster.servers {
        assert_eq!(ask(server.address(), &format!("ACL SETUSER app {rights}")).await, "OK");
    }
    let url = cluster.url().replace("://", "://app:pw@");
    let url = format!("{url}?prefix=app:&replicas=1");
    let [one, two] = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    for fair in [false, true] {
        let held = one.mutex("x").lock().await.unwrap();
        let mutex = if fair { two.mutex("x").fair() } else { two.mutex("x") };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually("in line", async || waiters(&one).await == 1).await;
        held.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    drop(one.rw_lock("y").read().await.unwrap());
    drop(one.semaphore("z", 2).acquire().await.unwrap());
    assert!(one.latch("w").close(1).await.unwrap());
    assert_eq!(two.latch("w").count_down().await.unwrap(), 0);
    one.admin().list().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_locks_of_all_masters_are_listed() {
    let cluster = Cluster::shared().await;
    let locks = connect(&cluster, "?prefix=list:").await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let name = format!("n{number:02}");
        guards.push(if number % 2 == 0 {
            locks.mutex(&name).lock().await.unwrap()
        } else {
            locks.rw_lock(&name).read().await.unwrap()
        });
    }
    let listed = locks.admin().list().await.unwrap();
    let names: Vec<String> = listed.iter().map(|status| status.name.to_string()).collect();
    let all: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    assert_eq!(names, all);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// As a client of Redisson's does since 3.28: `SSUBSCRIBE` and `SPUBLISH` on the channel of the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_of_redisson_belong_to_slots() {
    let cluster = Cluster::shared().await;
    let slot = cluster.slot("shard").await;
    let owner = cluster.owner_other_than(slot, None).await;
    let address = cluster.servers[owner].address();
    let channel = "redisson_lock__channel:{shard}";
    let locks = connect(&cluster, "").await;
    // They hear when we let go.
    let guard = locks.mutex("shard").lock().await.unwrap();
    let theirs = Raw::connect(address).await;
    theirs.ask(&format!("SSUBSCRIBE {channel}")).await;
    guard.release().await.unwrap();
    let message = ["smessage", channel, "0"].map(|word| Reply::Text(word.into()));
    // The answer to the question comes after it.
    assert_eq!(theirs.ask("PING").await, Reply::Many(message.to_vec()));
    // We hear when they do.
    let them = Raw::connect(address).await;
    let owner = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    them.ask(&format!("HSET shard {owner} 1")).await;
    them.ask("PEXPIRE shard 60000").await;
    let waiting = tokio::spawn({
        let mutex = locks.mutex("shard");
        async move { mutex.lock().await }
    });
    let listening = async || ask(address, &format!("PUBSUB SHARDNUMSUB {channel}")).await;
    eventually("it listens", async || listening().await == format!("{channel}\n2")).await;
    // In one step, as their scripts do: between the two we might look by ourselves.
    for step in ["MULTI", "DEL shard", &format!("SPUBLISH {channel} 0")] {
        them.ask(step).await;
    }
    assert_eq!(them.ask("EXEC").await, Reply::Many(vec![Reply::Number(1), Reply::Number(2)]));
    soon("woken", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// Names at a master that is not the one a client meets first.
async fn names_at_another_master(cluster: &Cluster, count: usize) -> (Vec<Name>, usize) {
    let first = cluster.owner_other_than(0, None).await;
    let (mut names, mut chosen) = (Vec::new(), None);
    for number in 0.. {
        let text = format!("n{number}");
        let owner = cluster.owner_other_than(cluster.slot(&text).await, None).await;
        if owner != first && *chosen.get_or_insert(owner) == owner {
            names.push(name(&text));
        }
        if names.len() == count {
            break;
        }
    }
    (names, chosen.unwrap())
}

/// The first who uses a master does so in a runtime that ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_outlive_the_runtime_of_who_was_first() {
    let cluster = Cluster::shared().await;
    let [one, two] = [connect(&cluster, "").await, connect(&cluster, "").await];
    let of = names_at_another_master(&cluster, 1).await.0.remove(0);
    let mutex = one.mutex(&of);
    let first = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { mutex.lock().await.unwrap().release().await.unwrap() });
    };
    tokio::task::spawn_blocking(first).await.unwrap();
    let held = two.mutex(&of).lock().await.unwrap();
    let mutex = one.mutex(&of);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let queued = async || two.admin().show(&of).await.unwrap().waiters.len() == 1;
    eventually("in line", queued).await;
    let since = Instant::now();
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().release().await.unwrap();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(1), "woken, not found by asking again: {took:?}");
}

/// Many want something from a master that hangs and to which nobody was connected yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_the_attempts_of_others() {
    let cluster = Cluster::start(SETTLE).await;
    let locks = connect(&cluster, "").await;
    let (names, owner) = names_at_another_master(&cluster, 10).await;
    cluster.servers[owner].pause();
    let since = Instant::now();
    let asking = names.into_iter().map(|of| {
        let mutex = locks.mutex(of);
        async move { mutex.try_lock().await.map(|_| ()).unwrap_err() }
    });
    futures_util::future::join_all(asking).await;
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(10), "together, not one after the other: {took:?}");
}

/// One master hangs: who begins now can use the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_can_be_used_from_the_start_while_one_master_is_gone() {
    let cluster = Cluster::start(SETTLE).await;
    let first = cluster.owner_other_than(0, None).await;
    let of = names_at_another_master(&cluster, 1).await.0.remove(0);
    cluster.servers[first].pause();
    let locks = soon("connected", Locks::connect(&cluster.url())).await.unwrap();
    locks.mutex(of).lock().await.unwrap().release().await.unwrap();
}

/// Who comes and goes where a client of Redisson holds a lock does not cost everybody the connection for
/// messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coming_and_going_keeps_the_connection_for_messages() {
    let cluster = Cluster::start(SETTLE).await;
    let (_, owner, _) = place(&cluster).await;
    let master = cluster.servers[owner].address();
    ask(master, "HSET x 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1").await;
    ask(master, "PEXPIRE x 60000").await;
    let locks = connect(&cluster, "").await;
    let wait = async || {
        let waited = locks.rw_lock("x").write_timeout(Duration::from_millis(30)).await;
        assert!(waited.is_err());
    };
    wait().await;
    let made = async || {
        let stats = ask(master, "INFO stats").await;
        let line = stats.lines().find_map(|l| l.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = made().await;
    for _ in 0..50 {
        wait().await;
    }
    // The one that asks.
    assert_eq!(made().await - before, 1);
}
