//! Random transactions of several clients, some of whose answers are lost, against a serial oracle.
//!
//! Every transaction appends its number to a list in the same step, so the server itself says which were
//! carried out, and in which order. The oracle carries them out one by one in that order, and each must
//! have seen exactly what it would have seen alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper::backend::redis::optimistic::redis::Cmd;
use lockkeeper::backend::redis::optimistic::{Optimistic, Outcome};
use lockkeeper::{Error, Locks};
use testkit::proxy::Proxy;
use testkit::random::Random;
use testkit::resp::{Raw, Reply};

use super::start;

const CLIENTS: u64 = 5;
const EACH: u64 = 120;
const KEYS: u64 = 6;

/// What one run of a body saw, and what it wanted to write.
#[derive(Clone, Debug, Default)]
struct Run {
    read: BTreeMap<String, Option<i64>>,
    write: BTreeMap<String, i64>,
}

/// How each transaction ended, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Maybe,
    Not,
}

type Book = Arc<Mutex<HashMap<u64, (End, Run)>>>;

static NEXT: AtomicU64 = AtomicU64::new(1);

fn some_keys(random: &mut Random) -> Vec<String> {
    let mut keys: Vec<String> =
        (0..=random.below(3)).map(|_| format!("k{}", random.below(KEYS))).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// One transaction: reads some keys, and writes some of those and perhaps another.
async fn transact(locks: &Locks, random: &mut Random, proxy: Option<&Proxy>, book: &Book) {
    let keys = some_keys(random);
    let mut written = keys.clone();
    written.retain(|_| random.below(3) > 0);
    written.extend((random.below(4) == 0).then(|| format!("k{}", random.below(KEYS))));
    let (pause, lose) = (random.below(3) == 0, random.below(20) == 0);
    let factor = i64::try_from(random.below(7)).unwrap() + 2;
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    let last: &Mutex<Run> = &Mutex::default();
    let (reading, writing) = (&keys, &written);
    let outcome = Optimistic::new(locks, &keys).attempts(4).run(|tx| async move {
        let mut run = Run::default();
        for key in reading {
            run.read.insert(key.clone(), tx.read(Cmd::get(key)).await?);
            if pause {
                tokio::task::yield_now().await;
            }
        }
        let sum: i64 = run.read.values().flatten().sum();
        let made = i64::try_from(number).unwrap();
        for key in writing {
            run.write.insert(key.clone(), (sum * factor + made) % 1_000_003);
        }
        for (key, value) in &run.write {
            tx.queue(Cmd::set(key, value))?;
        }
        tx.queue(Cmd::rpush("order", number))?;
        *last.lock().unwrap() = run;
        if lose && let Some(proxy) = proxy {
            proxy.lose_next_reply();
        }
        Ok(())
    });
    let end = match outcome.await {
        Ok(Outcome::Committed { .. }) => End::Done,
        Ok(Outcome::Unknown { .. }) => End::Maybe,
        Ok(Outcome::Partial { replies, .. }) => panic!("no command can fail: {replies:?}"),
        // The other clients were faster, or the proxy took the connection away too often.
        Err(Error::Conflict { .. } | Error::Unavailable { .. }) => End::Not,
        Err(error) => panic!("{error}"),
    };
    let run = last.lock().unwrap().clone();
    book.lock().unwrap().insert(number, (end, run));
}

/// The numbers that the server has in its list.
async fn order(raw: &Raw) -> Vec<u64> {
    let Reply::Many(order) = raw.ask("LRANGE order 0 -1").await else { panic!("no list") };
    let number = |reply| match reply {
        Reply::Text(text) => text.parse().unwrap(),
        other => panic!("{other:?}"),
    };
    order.into_iter().map(number).collect()
}

async fn check(raw: &Raw, book: &Book) {
    let book = std::mem::take(&mut *book.lock().unwrap());
    let mut state: BTreeMap<String, i64> = BTreeMap::new();
    let mut carried_out: HashMap<u64, u32> = HashMap::new();
    for number in order(raw).await {
        let (end, run) = &book[&number];
        assert_ne!(*end, End::Not, "{number} was reported as not carried out");
        for (key, seen) in &run.read {
            assert_eq!(state.get(key), seen.as_ref(), "{number} saw another {key} than there was");
        }
        state.extend(run.write.clone());
        *carried_out.entry(number).or_default() += 1;
    }
    assert!(carried_out.values().all(|times| *times == 1), "nothing twice");
    for (number, (end, _)) in &book {
        assert!(*end != End::Done || carried_out.contains_key(number), "{number} was lost");
    }
    for at in 0..KEYS {
        let key = format!("k{at}");
        let there = raw.text(&format!("GET {key}")).await.map(|text| text.parse().unwrap());
        assert_eq!(there, state.get(&key).copied(), "{key} at the end");
    }
    let count = |wanted| book.values().filter(|(end, _)| *end == wanted).count();
    let (done, maybe, not) = (count(End::Done), count(End::Maybe), count(End::Not));
    eprintln!("{done} done, {maybe} unknown, {not} not");
    assert!(done > 100, "only {done} were carried out");
}

async fn storm(faults: bool) {
    let (server, _, raw) = start().await;
    let mut random = Random::seeded();
    let book = Book::default();
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (mut random, book) = (random.fork(), Arc::clone(&book));
        let proxy = if faults { Some(Proxy::to(server.address()).await) } else { None };
        let address = proxy.as_ref().map_or(server.address(), Proxy::address);
        tasks.push(tokio::spawn(async move {
            let locks = Locks::connect(&format!("redis://{address}")).await.unwrap();
            for _ in 0..EACH {
                transact(&locks, &mut random, proxy.as_ref(), &book).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    check(&raw, &book).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_are_as_if_one_after_the_other() {
    storm(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_with_lost_answers_are_so_too() {
    storm(true).await;
}
