//! What can go wrong at the nodes of a RedLock, and between them and a client.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::proxy::{Proxy, Way};
use testkit::redlock::Nodes;
use testkit::register::Register;
use testkit::resp::Raw;
use testkit::server::Server;
use testkit::wait::{eventually, soon, within};

const TTL: Duration = Duration::from_secs(4);
const LONG_TTL: Duration = Duration::from_secs(60);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A client with a proxy before each node.
async fn through(nodes: &Nodes) -> (Locks, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for server in &nodes.servers {
        proxies.push(Proxy::to(server.address()).await);
    }
    (connect_to(&proxies).await, proxies)
}

async fn connect_to(proxies: &[Proxy]) -> Locks {
    let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    Locks::connect(&format!("redlock://{}", hosts.join(","))).await.unwrap()
}

/// At how many nodes there is such a key.
async fn copies(nodes: &Nodes, key: &str) -> usize {
    let mut copies = 0;
    for server in &nodes.servers {
        copies += usize::from(Raw::connect(server.address()).await.exists(key).await);
    }
    copies
}

async fn tell(nodes: &Nodes, at: usize, command: &str) {
    Raw::connect(nodes.servers[at].address()).await.ask(command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_is_killed_is_not_missed() {
    let mut nodes = Nodes::start(5).await;
    let locks = nodes.connect().await.ttl(TTL);
    let held = locks.mutex("y").lock().await.unwrap();
    nodes.servers[1].kill();
    nodes.servers[4].kill();
    let mut last = 0;
    for _ in 0..10 {
        let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.unwrap();
    }
    let first = held.expires_at().unwrap();
    eventually("renewed", async || held.expires_at().unwrap() > first).await;
    assert!(!held.is_lost());
    held.release().await.unwrap();
    // Nor by whoever comes now.
    let locks = nodes.connect().await;
    soon("granted", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_is_stopped_costs_no_time_and_keeps_nothing() {
    let nodes = Nodes::start(5).await;
    let locks = nodes.connect().await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    nodes.servers[0].pause();
    nodes.servers[3].pause();
    let mut times = Vec::new();
    for _ in 0..21 {
        let since = Instant::now();
        let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
        guard.release().await.unwrap();
        times.push(Instant::now().since(since));
    }
    times.sort_unstable();
    assert!(times[10] < Duration::from_millis(500), "not one time-out each: {times:?}");
    nodes.servers[0].resume();
    nodes.servers[3].resume();
    eventually("nothing is left", async || copies(&nodes, "x").await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_there_is_an_error_in_time_that_says_what_each_node_said() {
    let mut nodes = Nodes::start(5).await;
    let locks = nodes.connect().await.ttl(TTL);
    let held = locks.mutex("y").lock().await.unwrap();
    let losing = tokio::spawn(async move {
        let cause = held.lost().await;
        (cause, Instant::now() < held.expires_at().unwrap())
    });
    for at in [0, 2, 4] {
        nodes.servers[at].kill();
    }
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(Instant::now().since(since) < Duration::from_secs(3), "{error}");
    assert!(matches!(error, Error::Timeout { .. } | Error::Unavailable { .. }), "{error}");
    // Asked for without others of this process.
    let since = Instant::now();
    let alone = locks.lease(TTL).mutex("x");
    let error = alone.lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(Instant::now().since(since) < Duration::from_secs(3), "{error}");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let text = error.to_string();
    for server in &nodes.servers {
        assert!(text.contains(&format!("{}: ", server.address())), "{text}");
    }
    assert_eq!(text.matches("refused").count(), 3, "{text}");
    assert_eq!(text.matches(": yes").count(), 2, "{text}");
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = soon("gives up", locks.mutex("x").lock()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(soon("the loss", losing).await.unwrap(), (Cause::Expired, true), "in time");
    let error = soon("refused", Locks::connect(&nodes.url())).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    for at in [0, 2, 4] {
        nodes.servers[at].start_again().await;
    }
    // Three of five forgot: they wait for the longest lease that may be.
    let error = locks.mutex("x").try_lock().await.unwrap_err().to_string();
    assert_eq!(error.matches("does not vote yet").count(), 3, "{error}");
}

/// What makes a node forget.
#[derive(Clone, Copy, Debug)]
enum Forgets {
    Flushed,
    RestartedEmpty,
    RestartedWithOldData,
}

/// The node that is in both majorities forgets the first grant. It must not give the lock again until
/// that lease is over, and must not forget the token.
async fn the_node_in_both_majorities_forgets(how: Forgets) {
    let mut nodes = Nodes::start(3).await;
    let (first, proxies) = through(&nodes).await;
    // Counters that differ: the last one has not seen most of it.
    proxies[2].cut();
    for _ in 0..3 {
        first.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
    tell(&nodes, 0, "SAVE").await;
    let lease = Duration::from_secs(6);
    let held = first.lease(lease).mutex("x").lock().await.unwrap();
    let ends = Instant::now() + lease;
    assert_eq!(copies(&nodes, "x").await, 2);
    match how {
        Forgets::Flushed => tell(&nodes, 0, "FLUSHALL").await,
        Forgets::RestartedWithOldData => nodes.servers[0].restart().await,
        Forgets::RestartedEmpty => {
            nodes.servers[0].kill();
            std::fs::remove_file(nodes.servers[0].dir().join("dump.rdb")).unwrap();
            nodes.servers[0].start_again().await;
        }
    }
    assert_eq!(copies(&nodes, "x").await, 1, "{how:?}");
    // A client that has seen nothing of that, and cannot reach the one node that remembers for a while.
    let (second, proxies) = through(&nodes).await;
    let mutex = second.mutex("x");
    assert!(mutex.try_lock().await.is_ok_and(|guard| guard.is_none()) || !held.is_lost());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("it is known when the node votes again", async || {
        let node = Raw::connect(nodes.servers[0].address()).await;
        node.text("HGET lockkeeper_redlock_node:{} from").await.is_some()
    })
    .await;
    proxies[1].cut();
    let next = waiting.await.unwrap().unwrap();
    let left = ends.since(Instant::now());
    assert!(left < lease / 100 + Duration::from_millis(50), "{how:?}: {left:?} too early");
    assert!(held.is_lost());
    assert!(next.token() > held.token(), "{how:?}: {:?} {:?}", next.token(), held.token());
    let register = Register::default();
    register.write(next.token().get(), "new").unwrap();
    register.write(held.token().get(), "old").unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_flushed_does_not_vote_until_the_longest_lease_is_over() {
    the_node_in_both_majorities_forgets(Forgets::Flushed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_restarted_empty_does_not_vote_until_the_longest_lease_is_over() {
    the_node_in_both_majorities_forgets(Forgets::RestartedEmpty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_restarted_with_old_data_does_not_vote_until_the_longest_lease_is_over() {
    the_node_in_both_majorities_forgets(Forgets::RestartedWithOldData).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_nobody_said_are_new_vote_after_the_longest_lease_that_may_be() {
    let nodes = Nodes::start_new(3, &[]).await;
    let locks = nodes.connect().await;
    let url: lockkeeper::Url = nodes.url().parse().unwrap();
    let error = url.init().await.unwrap_err().to_string();
    assert!(error.contains("0 of 3 nodes vote"), "{error}");
    let error = locks.mutex("x").try_lock().await.unwrap_err().to_string();
    assert_eq!(error.matches("does not vote yet").count(), 3, "{error}");
    let since = Instant::now();
    let guard = locks.mutex("x").lock().await.unwrap();
    let took = Instant::now().since(since);
    assert!(took > Duration::from_secs(25), "{took:?}");
    // Larger than any token from before can be.
    assert!(guard.token().get() > 1_700_000_000_000_000, "{:?}", guard.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_majorities_that_have_one_node_in_common() {
    let nodes = Nodes::start(5).await;
    let (locks, proxies) = through(&nodes).await;
    let (other, others) = through(&nodes).await;
    let mut last = 0;
    for turn in 0..12 {
        // Two clients in turn; each cannot reach the two nodes that the other one shares with nobody.
        let (locks, mine) = if turn % 2 == 0 { (&locks, &proxies) } else { (&other, &others) };
        let cut = if turn % 2 == 0 { [turn % 4, 4] } else { [1, 3] };
        cut.iter().for_each(|at| mine[*at].cut());
        let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
        assert!(guard.token().get() > last, "{:?} after {last}", guard.token());
        last = guard.token().get();
        guard.release().await.unwrap();
        cut.iter().for_each(|at| mine[*at].pass());
        eventually("undone everywhere", async || copies(&nodes, "x").await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_cost_nothing_and_leave_nothing() {
    let nodes = Nodes::start(5).await;
    let (locks, proxies) = through(&nodes).await;
    for at in 0..5 {
        for lost in [vec![at], vec![at, (at + 1) % 5], (0..5).collect()] {
            lost.iter().for_each(|at| proxies[*at].lose_next_reply());
            let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
            assert!(copies(&nodes, "x").await >= 3);
            proxies.iter().for_each(Proxy::pass);
            soon("released", guard.release()).await.unwrap();
            eventually("nothing is left", async || copies(&nodes, "x").await == 0).await;
        }
        // A release that nobody confirms is done all the same.
        let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
        proxies.iter().for_each(Proxy::lose_next_reply);
        let error = soon("unknown", guard.release()).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        eventually("nothing is left", async || copies(&nodes, "x").await == 0).await;
        proxies.iter().for_each(Proxy::pass);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_cut_off_loses_its_lock_in_time_and_its_late_write_is_refused() {
    let nodes = Nodes::start(5).await;
    let (locks, proxies) = through(&nodes).await;
    let held = locks.ttl(TTL).mutex("x").lock().await.unwrap();
    proxies[..3].iter().for_each(Proxy::freeze);
    let direct = nodes.connect().await;
    let next = soon("its turn", direct.mutex("x").lock()).await.unwrap();
    assert!(held.is_lost(), "before anybody else has it");
    let register = Register::default();
    register.write(next.token().get(), "new").unwrap();
    register.write(held.token().get(), "old").unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_leaves_nothing_at_any_node() {
    let nodes = Nodes::start(5).await;
    let (locks, proxies) = through(&nodes).await;
    proxies.iter().for_each(Proxy::lose_next_reply);
    let mutex = locks.mutex("x");
    drop(tokio::time::timeout(Duration::from_millis(20), mutex.lock()).await);
    eventually("nothing is left", async || copies(&nodes, "x").await == 0).await;
    // Nor from a node that takes it later.
    nodes.servers[2].pause();
    let held = nodes.connect().await.mutex("x").lock().await.unwrap();
    drop(tokio::time::timeout(Duration::from_millis(100), locks.mutex("x").lock()).await);
    held.release().await.unwrap();
    nodes.servers[2].resume();
    eventually("nothing is left", async || copies(&nodes, "x").await == 0).await;
    eventually("nobody waits", async || direct_waiters(&nodes).await == 0).await;
}

async fn direct_waiters(nodes: &Nodes) -> usize {
    nodes.connect().await.admin().show(&name("x")).await.unwrap().waiters.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_another_library_is_respected_and_a_minority_of_it_is_not() {
    let nodes = Nodes::start(5).await;
    let locks = nodes.connect().await;
    // As redsync and node-redlock take it.
    for at in 0..3 {
        tell(&nodes, at, "SET x theirs NX PX 60000").await;
    }
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    let status = locks.admin().show(&name("x")).await.unwrap();
    assert_eq!(status.holders[0].owner.to_string(), "theirs:0");
    tell(&nodes, 0, "DEL x").await;
    let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
    // Whoever has it waits nowhere: it would be woken there in the place of others.
    let nobody = async || direct_waiters(&nodes).await == 0;
    within(Duration::from_secs(2), "nobody waits", nobody).await;
    for at in [0, 3, 4] {
        let theirs = Raw::connect(nodes.servers[at].address()).await;
        assert_eq!(theirs.text("SET x theirs NX PX 60000").await, None, "held");
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_under_two_names_is_an_error() {
    let nodes = Nodes::start_new(2, &[]).await;
    let [one, two] = [0, 1].map(|at| nodes.servers[at].address());
    let url = format!("redlock://{one},{two},localhost:{}", one.port());
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains("the same server"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_the_record_of_a_node_lives_for_ever() {
    let nodes = Nodes::start(3).await;
    let (locks, other) = (nodes.connect().await, nodes.connect().await);
    let held = locks.mutex("x").lock().await.unwrap();
    let mutex = other.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("in line", async || direct_waiters(&nodes).await == 1).await;
    locks.admin().evict(&name("x"), "test").await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    for server in &nodes.servers {
        let immortal = Raw::connect(server.address()).await.immortal().await;
        assert_eq!(immortal, ["lockkeeper_redlock_node:{}"]);
    }
    drop((held, next));
}

/// A clock that jumps ahead past every lease.
async fn clock_jumps(nodes: &Nodes, at: usize) {
    let node = Raw::connect(nodes.servers[at].address()).await;
    assert!(node.exists("x").await, "held there");
    nodes.servers[at].set_clock(2 * LONG_TTL);
    assert!(!node.exists("x").await, "over there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_at_a_minority_that_all_voted_with_does_no_harm() {
    let nodes = Nodes::start_with_clocks(5).await;
    let (locks, other) = (nodes.connect().await.ttl(TTL), nodes.connect().await);
    let held = locks.mutex("x").lock().await.unwrap();
    eventually("everywhere", async || copies(&nodes, "x").await == 5).await;
    clock_jumps(&nodes, 0).await;
    clock_jumps(&nodes, 3).await;
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    let first = held.expires_at().unwrap();
    eventually("renewed", async || held.expires_at().unwrap() > first).await;
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

/// What is *not* safe, and how the fence protects the resource all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_at_the_node_in_both_majorities_lets_two_in_and_the_fence_holds() {
    let nodes = Nodes::start_with_clocks(3).await;
    let (first, proxies) = through(&nodes).await;
    proxies[2].cut();
    let held = first.lease(LONG_TTL).mutex("x").lock().await.unwrap();
    clock_jumps(&nodes, 0).await;
    let second = nodes.connect().await;
    let next = soon("granted", second.mutex("x").lock()).await.unwrap();
    assert!(!held.is_lost(), "two holders");
    assert!(next.token() > held.token());
    let register = Register::default();
    register.write(held.token().get(), "in time").unwrap();
    register.write(next.token().get(), "new").unwrap();
    register.write(held.token().get(), "too late").unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_use_one_prefix_only_can_use_a_redlock() {
    let nodes = Nodes::start_new(3, &[]).await;
    let rights = "reset on >pw ~app:* ~lockkeeper*:{app:* ~lockkeeper*::app:* ~{app:* \
                  resetchannels &lockkeeper_wake:* \
                  +@connection +@scripting +@pubsub +@read +@write +time -@dangerous +info";
    for at in 0..3 {
        tell(&nodes, at, &format!("ACL SETUSER app {rights}")).await;
    }
    let url = format!("{}?prefix=app:", nodes.url().replace("//", "//app:pw@"));
    url.parse::<lockkeeper::Url>().unwrap().init().await.unwrap();
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = locks.mutex("x").lock().await.unwrap();
    let mutex = other.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let in_line = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line", in_line).await;
    held.release().await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert_eq!(locks.admin().list().await.unwrap().len(), 1);
    locks.admin().evict(&name("x"), "test").await.unwrap();
    assert_eq!(soon("told", next.lost()).await, Cause::Evicted("test".into()));
    let outside = nodes.url().replace("//", "//app:pw@");
    let error = Locks::connect(&outside).await.unwrap_err().to_string();
    assert!(error.contains("may not do that") && !error.contains("pw@"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_lock_costs_one_round_trip_and_a_release_another() {
    let nodes = Nodes::start(3).await;
    let locks = nodes.connect().await.lease(TTL);
    // Scripts are loaded.
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    eventually("free", async || copies(&nodes, "x").await == 0).await;
    let steps = async |at: usize| {
        let node = Raw::connect(nodes.servers[at].address()).await;
        let stats = node.text("INFO commandstats").await.unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).unwrap();
        calls.split(',').next().unwrap().parse::<u32>().unwrap()
    };
    let before = [steps(0).await, steps(1).await, steps(2).await];
    for _ in 0..10 {
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
    for (at, before) in before.into_iter().enumerate() {
        eventually("two steps each", async || steps(at).await >= before + 20).await;
        assert_eq!(steps(at).await, before + 20, "no second phase");
    }
}

/// The network goes away for two seconds between the requests and their answers. What is found
/// afterwards of the first attempt is about to be undone: it is not a hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_is_being_undone_is_not_taken_for_a_grant() {
    let nodes = Nodes::start(3).await;
    let (locks, proxies) = through(&nodes).await;
    let other = nodes.connect().await;
    let locks = locks.lease(LONG_TTL);
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    eventually("free", async || copies(&nodes, "x").await == 0).await;
    proxies.iter().for_each(|proxy| proxy.delay(Way::Down, Duration::from_millis(500)));
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("taken", async || copies(&nodes, "x").await == 3).await;
    proxies.iter().for_each(Proxy::cut);
    // So long that whoever undoes it pauses, and the next attempt comes first.
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxies.iter().for_each(Proxy::pass);
    let held = soon("granted", waiting).await.unwrap().unwrap();
    // Longer than whoever undoes something pauses.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert!(other.mutex("x").try_lock().await.unwrap().is_none(), "two holders");
    }
    assert!(!held.is_lost());
}

/// It is never among the first who answer, and locks are granted without it all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_is_noticed_while_the_others_grant() {
    let mut nodes = Nodes::start(3).await;
    let (locks, proxies) = through(&nodes).await;
    let locks = locks.lease(Duration::from_secs(3));
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    proxies[2].delay(Way::Down, Duration::from_millis(20));
    tell(&nodes, 2, "FLUSHALL").await;
    let node = Raw::connect(nodes.servers[2].address()).await;
    let votes = async || {
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        node.text("HGET lockkeeper_redlock_node:{} from").await.is_some()
    };
    eventually("noticed", votes).await;
    // So that another one may go.
    nodes.servers[0].kill();
    soon("granted", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_in_vain_for_a_held_lock_is_told_that_and_not_of_an_outage() {
    let nodes = Nodes::start(3).await;
    let (locks, proxies) = through(&nodes).await;
    let other = nodes.connect().await;
    proxies.iter().for_each(|proxy| proxy.delay(Way::Down, Duration::from_millis(30)));
    let locks = locks.lease(LONG_TTL);
    let (mut held, mut tasks) = (Vec::new(), Vec::new());
    for number in 0..40_u64 {
        let name = format!("x{number}");
        held.push(other.mutex(&name).lock().await.unwrap());
        let mutex = locks.mutex(&name);
        // At any moment between two attempts.
        let time = Duration::from_millis(1500 + number * 10);
        tasks.push(tokio::spawn(async move { mutex.lock_timeout(time).await.map(|_| ()) }));
    }
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}

/// Held at two nodes, of which one is down: nobody else can have it, so it must be possible to evict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_in_the_way_at_one_node_can_be_evicted() {
    let mut nodes = Nodes::start(3).await;
    let (locks, proxies) = through(&nodes).await;
    proxies[2].cut();
    let held = locks.lease(LONG_TTL).mutex("x").lock().await.unwrap();
    nodes.servers[0].kill();
    let other = nodes.connect().await;
    assert!(other.mutex("x").try_lock().await.unwrap().is_none(), "held");
    other.admin().evict(&name("x"), "test").await.unwrap();
    let next = soon("granted", other.mutex("x").lock()).await.unwrap();
    drop((held, next));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_slow_node_did_not_hear_is_sent_again() {
    let nodes = Nodes::start(3).await;
    let (locks, proxies) = through(&nodes).await;
    let held = locks.lease(LONG_TTL).mutex("x").lock().await.unwrap();
    eventually("everywhere", async || copies(&nodes, "x").await == 3).await;
    proxies[2].freeze();
    held.release().await.unwrap();
    // What was under way is lost.
    proxies[2].cut();
    proxies[2].pass();
    eventually("long before its lease ends", async || copies(&nodes, "x").await == 0).await;
}

/// Many wait, and there are no more nodes than it takes: they do not stand in each other's way for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_wait_get_their_turn_with_every_node_and_with_just_enough() {
    for (count, down) in [(3, 0), (3, 1), (4, 0), (5, 2)] {
        let mut nodes = Nodes::start(count).await;
        nodes.servers[..down].iter_mut().for_each(Server::kill);
        let turns = (0..4).map(async |_| {
            let locks = nodes.connect().await;
            for _ in 0..20 {
                locks.mutex("x").lock().await.unwrap().release().await.unwrap();
            }
        });
        let what = format!("{count} nodes, {down} down");
        soon(&what, futures_util::future::join_all(turns)).await;
    }
}
