//! Filters that are shared: at servers that come back with what they had, that take over without the last steps, and that lose
//! answers; and where there are several.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::stream;
use lockkeeper_cache::filter::redis::RedisFilter;
use lockkeeper_cache::filter::{Filter, FilterError, Plan, Shape, Verdict, rebuild};
use lockkeeper_cache::{Cache, Error, Loaded, Redis, Strategy};
use testkit::nodes::{Cluster, Sentinels, ask};
use testkit::proxy::{Proxy, Way};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::inserted::Anything;

use Verdict::{Absent, Maybe, Unknown};

fn plan() -> Plan {
    Plan::new(Shape::for_keys(1000, 0.000_001).unwrap()).settle(Duration::ZERO)
}

async fn load(filter: &RedisFilter, keys: &[&str]) {
    let rows = || stream::iter(keys.iter().map(Ok::<_, Infallible>));
    soon("loaded", rebuild(filter, plan(), rows, |_| {})).await.unwrap();
}

async fn look(filter: &RedisFilter, key: &str) -> Verdict {
    soon("a look", filter.look(&[key.as_bytes()])).await[0]
}

async fn insert(filter: &RedisFilter, key: &str) {
    soon("inserted", filter.insert(&[key.as_bytes()])).await.unwrap();
}

/// Waits until a server that can be written to answers, and believes nothing that is said meanwhile.
async fn inserts_again(filter: &RedisFilter, what: &str) {
    eventually(what, async || filter.insert(&[b"since"]).await.is_ok()).await;
}

/// A filter of the rows `old` and `new` was loaded with `old`; what it says of `new`, and then it forgets, if it has to be told, and is
/// rebuilt.
async fn found_then_rebuilt(filter: &RedisFilter, warm: bool) -> Verdict {
    let found = look(filter, "new").await;
    if warm {
        soon("forgotten", filter.forget()).await.unwrap();
    }
    assert_eq!(look(filter, "old").await, Unknown);
    assert_eq!(look(filter, "made up").await, Unknown);
    let mut build = soon("begun", filter.begin(plan().shape)).await.unwrap();
    assert_eq!(look(filter, "new").await, Unknown, "the old one does not count again");
    ["old", "new"].iter().for_each(|key| build.add(key.as_bytes()));
    soon("finished", build.finish()).await.unwrap();
    for (key, verdict) in [("old", Maybe), ("new", Maybe), ("made up", Absent)] {
        assert_eq!(look(filter, key).await, verdict, "{key}");
    }
    found
}

async fn open(url: &str, warm: bool) -> RedisFilter {
    let connected = async {
        match warm {
            true => Redis::connect_warm(url).await,
            false => Redis::connect(url).await,
        }
    };
    soon("connected", connected).await.unwrap().filter("users").unwrap()
}

/// What is said of a row that was inserted, when a replica has taken over that did not hear of it.
async fn after_a_fail_over(warm: bool) -> Verdict {
    let mut redis = Sentinels::start(Duration::from_millis(500)).await;
    let filter = open(&redis.url(), warm).await;
    load(&filter, &["old"]).await;
    assert_eq!((look(&filter, "old").await, look(&filter, "new").await), (Maybe, Absent));
    let build = soon("begun", filter.begin(plan().shape)).await.unwrap();
    for replica in &redis.nodes.servers[1..] {
        let has = async || {
            let built = ask(replica.address(), "HEXISTS lockkeeper-filter:{users}:head built");
            built.await == "1"
        };
        eventually("the replicas have it", has).await;
    }
    redis.nodes.cut_off_replicas().await;
    insert(&filter, "new").await;
    assert_eq!(look(&filter, "new").await, Maybe);
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    inserts_again(&filter, "the new master answers").await;
    if !warm {
        let finished = soon("an end", build.finish()).await;
        assert!(matches!(finished, Err(FilterError::Gone)), "{finished:?}");
    }
    found_then_rebuilt(&filter, warm).await
}

#[tokio::test]
async fn a_filter_knows_nothing_where_a_replica_may_have_missed_an_insert() {
    assert_eq!(after_a_fail_over(false).await, Unknown);
}

/// That is what the other way is against.
#[tokio::test]
async fn a_filter_that_is_to_be_warm_denies_what_a_replica_has_missed() {
    assert_eq!(after_a_fail_over(true).await, Absent);
}

/// What is said of a row that was inserted after the snapshot with which a server is started again.
async fn after_a_crash(warm: bool) -> Verdict {
    let mut server = server::redis(&["--dir", "{dir}", "--dbfilename", "kept.rdb"]).await;
    let filter = open(&format!("redis://{}", server.address()), warm).await;
    load(&filter, &["old"]).await;
    assert_eq!(ask(server.address(), "SAVE").await, "OK");
    insert(&filter, "new").await;
    assert_eq!(look(&filter, "new").await, Maybe);
    server.restart().await;
    let there = ask(server.address(), "HEXISTS lockkeeper-filter:{users}:head used").await;
    assert_eq!(there, "1", "it has brought it back");
    inserts_again(&filter, "it answers").await;
    found_then_rebuilt(&filter, warm).await
}

#[tokio::test]
async fn a_filter_knows_nothing_at_a_server_that_is_started_again_with_old_data() {
    assert_eq!(after_a_crash(false).await, Unknown);
}

#[tokio::test]
async fn a_filter_that_is_to_be_warm_denies_what_old_data_lack() {
    assert_eq!(after_a_crash(true).await, Absent);
}

/// A process with a connection of its own is told that there is something from the moment when anybody writes it.
#[tokio::test]
async fn what_is_written_in_any_way_is_in_the_filter_for_all() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let filter = open(&url, false).await;
    load(&filter, &[]).await;
    let other = open(&url, false).await;
    let builder = || async {
        let store = soon("connected", Redis::connect(&url)).await.unwrap();
        Cache::builder(store).namespace("cache")
    };
    let reader = builder().await.filter(other.clone()).build(Anything).unwrap();
    let table = builder().await.filter(filter).table(Strategy::Strong, Anything).unwrap();
    let cache = table.cache();
    for key in 1..=6 {
        assert_eq!(reader.get(&key).await.unwrap(), None, "{key}");
        let text = key.to_string();
        let before_the_commit = async || assert_eq!(look(&other, &text).await, Maybe, "{key}");
        match key {
            1 => {
                let write = cache.intend(&[key]).await.unwrap();
                before_the_commit().await;
                write.settle(None).await.unwrap();
            }
            2 => cache.invalidate(&[key]).await.unwrap(),
            3 => {
                let set = [(key, Loaded::found(key).version(1))];
                assert_eq!(cache.set_many(&set).await.unwrap(), [false]);
            }
            4 => drop(table.write(&key, Some(key)).await.unwrap()),
            5 => {
                let commit = async {
                    before_the_commit().await;
                    Ok(Loaded::found(key).version(1))
                };
                table.write_with(&key, commit).await.unwrap();
            }
            _ => {
                let mut transaction = cache.transaction();
                transaction.touch(&key).unwrap();
                let commit = async {
                    before_the_commit().await;
                    Ok::<_, Error>(())
                };
                transaction.commit(commit).await.unwrap().cache.unwrap();
            }
        }
        assert_eq!(reader.get(&key).await.unwrap().as_deref(), Some(&key));
    }
    assert_eq!((reader.stats().filtered, reader.stats().unfiltered), (6, 0));
}

#[tokio::test]
async fn filters_are_where_their_slot_is_in_a_cluster() {
    let cluster = Cluster::shared().await;
    let url = cluster.url();
    let [one, other] = [Redis::connect(&url), Redis::connect(&url)];
    let [one, other] =
        [soon("connected", one).await.unwrap(), soon("connected", other).await.unwrap()];
    let mut owners = std::collections::BTreeSet::new();
    for number in 0..8 {
        let name = format!("cluster-{number}");
        let [builder, writer] = [&one, &other].map(|store| store.filter(&name).unwrap());
        assert_eq!(look(&writer, "old").await, Unknown);
        load(&builder, &["old"]).await;
        assert_eq!((look(&writer, "old").await, look(&writer, "new").await), (Maybe, Absent));
        insert(&writer, "new").await;
        assert_eq!(look(&builder, "new").await, Maybe);
        let slot = cluster.slot(&format!("lockkeeper-filter:{{{name}}}:head")).await;
        owners.insert(cluster.owner_other_than(slot, None).await);
    }
    assert!(owners.len() > 1, "all at {owners:?}");
}

#[tokio::test]
async fn a_prefix_keeps_filters_of_one_name_apart_and_its_keys_are_rights_enough() {
    let server = server::redis(&[]).await;
    // With no more rights than docs/OPERATIONS.md asks for.
    let user = "ACL SETUSER app reset on >secret ~app:lockkeeper-filter:* resetchannels \
                &lockkeeper_wake:* +@connection +@scripting +@pubsub +@read +@write +time \
                -@dangerous +info";
    assert_eq!(ask(server.address(), user).await, "OK");
    let address = server.address();
    let urls = [format!("redis://{address}"), format!("redis://app:secret@{address}?prefix=app:")];
    let [plain, ours] =
        [RedisFilter::connect(&urls[0], "users"), RedisFilter::connect(&urls[1], "users")];
    let [plain, ours] =
        [soon("connected", plain).await.unwrap(), soon("connected", ours).await.unwrap()];
    load(&ours, &["ours"]).await;
    assert_eq!(look(&plain, "ours").await, Unknown);
    let keys = Raw::connect(server.address()).await.keys("*").await;
    assert_eq!(keys, ["a", "head"].map(|part| format!("app:lockkeeper-filter:{{users}}:{part}")));
    load(&plain, &["plain"]).await;
    for (filter, own, foreign) in [(&plain, "plain", "ours"), (&ours, "ours", "plain")] {
        assert_eq!((look(filter, own).await, look(filter, foreign).await), (Maybe, Absent));
    }
    plain.forget().await.unwrap();
    assert_eq!((look(&plain, "plain").await, look(&ours, "ours").await), (Unknown, Maybe));
}

/// How many scripts a server has run.
async fn scripts(raw: &Raw) -> usize {
    let stats = raw.text("INFO commandstats").await.unwrap();
    let calls =
        |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

/// Builds a filter, through a proxy that loses the answers to its steps, while somebody else writes. Whether each step was
/// carried out twice: now and then an answer to something else is lost.
async fn built_with_lost_answers(
    proxy: &Proxy,
    raw: &Raw,
    filter: &RedisFilter,
    writer: &RedisFilter,
) -> bool {
    load(filter, &["old"]).await;
    let lose = async || {
        // It is known who answers: the next request is the step itself.
        assert_eq!(look(filter, "old").await, Maybe);
        proxy.lose_next_reply();
        scripts(raw).await
    };
    let before = lose().await;
    let mut build = soon("begun", filter.begin(plan().shape)).await.unwrap();
    let begun_twice = scripts(raw).await == before + 2;
    insert(writer, "new").await;
    build.add(b"old");

    let before = lose().await;
    soon("kept", build.keep()).await.unwrap();
    let kept_twice = scripts(raw).await == before + 2;

    assert_eq!(look(filter, "old").await, Maybe);
    let before = scripts(raw).await;
    // The four bytes that say that all is uploaded, and the first of those that say that it is in its place.
    proxy.cut_after(Way::Down, 5);
    let mended = async {
        eventually("an answer is lost", async || proxy.is_cut()).await;
        proxy.pass();
    };
    let (finished, ()) = tokio::join!(soon("finished", build.finish()), mended);
    finished.unwrap();
    let finished_twice = scripts(raw).await == before + 3;
    for filter in [filter, writer] {
        for (key, verdict) in [("old", Maybe), ("new", Maybe), ("made up", Absent)] {
            assert_eq!(look(filter, key).await, verdict, "{key}");
        }
    }
    begun_twice && kept_twice && finished_twice
}

#[tokio::test]
async fn lost_answers_do_a_filter_no_harm() {
    let server = server::redis(&[]).await;
    let (proxy, raw) = (Proxy::to(server.address()).await, Raw::connect(server.address()).await);
    let [there, here] = [proxy.address(), server.address()]
        .map(async |address| Redis::connect(&format!("redis://{address}")).await.unwrap());
    let (there, here) = (there.await, here.await);
    let count = AtomicU32::new(0);
    eventually("each step is carried out twice", async || {
        let name = format!("lost-{}", count.fetch_add(1, Ordering::Relaxed));
        let [filter, writer] = [&there, &here].map(|store| store.filter(&name).unwrap());
        built_with_lost_answers(&proxy, &raw, &filter, &writer).await
    })
    .await;
}

/// Takes a step while the server stands still for longer than any answer is waited for.
async fn while_it_stands<T>(
    server: &Server,
    filter: &RedisFilter,
    step: impl Future<Output = T> + Send,
) -> T {
    server.pause();
    let others = async {
        // Each has waited for its answer as long as the step did that began before it.
        for _ in 0..2 {
            assert_eq!(look(filter, "old").await, Unknown);
        }
        server.resume();
    };
    tokio::join!(soon("it is answered", step), others).0
}

/// As it does for a large filter. What was given up is carried out then, besides what was sent again.
#[tokio::test]
async fn a_builder_outlasts_a_server_that_stands_still() {
    let server = server::redis(&[]).await;
    let filter = open(&format!("redis://{}", server.address()), false).await;
    load(&filter, &["old"]).await;
    let mut build = while_it_stands(&server, &filter, filter.begin(plan().shape)).await.unwrap();
    insert(&filter, "new").await;
    build.add(b"old");
    while_it_stands(&server, &filter, build.keep()).await.unwrap();
    while_it_stands(&server, &filter, build.finish()).await.unwrap();
    for (key, verdict) in [("old", Maybe), ("new", Maybe), ("made up", Absent)] {
        assert_eq!(look(&filter, key).await, verdict, "{key}");
    }
}
