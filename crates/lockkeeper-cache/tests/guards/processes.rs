//! Several processes, and what the database sees of them.
//!
//! The test binary is its own other process: it is run again for the one test [`child_main`], with `CACHE_CHILD` set to what
//! it shall do. It says what it has done on standard output, and does the next thing when it is told to.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use testkit::random::Random;
use testkit::resp::{Raw, Reply};
use testkit::server;
use testkit::wait::{CASE, soon, within};
use tokio::sync::mpsc;

const VARIABLE: &str = "CACHE_CHILD";
const MARK: &str = "@cache ";
const PROCESSES: usize = 4;

/// Another process.
struct Process {
    child: Child,
    said: mpsc::UnboundedReceiver<String>,
}

impl Process {
    fn start(order: &str) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(["processes::child_main", "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, said) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        Self { child, said }
    }

    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "go").unwrap();
    }

    async fn says(&mut self) -> String {
        tokio::time::timeout(CASE, self.said.recv()).await.unwrap().expect("it is gone")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: impl std::fmt::Display) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{MARK}{word}").unwrap();
    output.flush().unwrap();
}

/// Waits until it is told to go on; ends with whoever should tell it.
async fn told() {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    if line.await.unwrap().unwrap().is_empty() {
        std::process::exit(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_main() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let address = |at: usize| words[at].parse::<SocketAddr>().unwrap();
    match words[0] {
        "herd" => herd(address(1)).await,
        "traffic" => traffic(address(1), address(2), words[3].parse().unwrap()).await,
        other => panic!("{other}"),
    }
    std::process::exit(0);
}

const HERD: u64 = 2500;

/// All want the same key; each time they are told, the next one.
async fn herd(server: SocketAddr) {
    let store = Redis::connect(&format!("redis://{server}")).await.unwrap();
    let raw = Arc::new(Raw::connect(server).await);
    let loader = move |key: u32| {
        let raw = Arc::clone(&raw);
        async move {
            let load = raw.number(&format!("INCR loads:{key}")).await;
            // Nobody has it before all have missed it.
            let go = format!("go:{key}");
            within(CASE, "all have missed it", async || raw.exists(&go).await).await;
            Ok::<_, Error>(Loaded::found(load))
        }
    };
    let builder = Cache::builder(store).max_loads(64, CASE).timeout(CASE).lease(CASE).ttl(CASE);
    let cache = builder.build(loader).unwrap();
    say("ready");
    for key in 0.. {
        told().await;
        let before = cache.stats();
        let mut gets = Vec::new();
        // Not so many at once that the server cannot answer them in time; but nobody has an answer yet.
        while gets.len() < usize::try_from(HERD).unwrap() {
            for _ in 0..100 {
                let cache = cache.clone();
                gets.push(tokio::spawn(async move { cache.get(&key).await.unwrap() }));
            }
            let missed = before.misses + gets.len() as u64;
            within(CASE, "they miss it", async || cache.stats().misses == missed).await;
        }
        say("missed");
        let found = join_all(gets).await;
        let stats = cache.stats();
        let errors =
            stats.store_errors + stats.down_reads - before.store_errors - before.down_reads;
        let first = found.iter().filter(|found| found.as_ref().unwrap().as_deref() == Some(&1));
        say(format!("{} {errors} {}", stats.loads - before.loads, first.count()));
    }
}

#[tokio::test]
async fn ten_thousand_misses_in_four_processes_are_one_load() {
    let server = server::redis(&[]).await;
    let raw = Raw::connect(server.address()).await;
    let order = format!("herd {}", server.address());
    let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::start(&order)).collect();
    for process in &mut processes {
        assert_eq!(process.says().await, "ready");
    }
    // A machine that is so busy that it does not get to an answer for a second sees more loads: the store is then taken
    // for dead. That is not what this is about.
    for key in 0..5 {
        processes.iter_mut().for_each(Process::go_on);
        for process in &mut processes {
            assert_eq!(process.says().await, "missed");
        }
        raw.ask(&format!("SET go:{key} 1")).await;
        let (mut loads, mut errors, mut first) = (0, 0, 0);
        for process in &mut processes {
            let said = process.says().await;
            let said: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
            (loads, errors, first) = (loads + said[0], errors + said[1], first + said[2]);
        }
        let at_the_database = raw.number(&format!("INCR loads:{key}")).await - 1;
        if errors == 0 {
            assert_eq!((loads, at_the_database, first), (1, 1, 4 * HERD));
            return;
        }
    }
    panic!("the store did not answer in time, in five rounds");
}

/// Of each process.
const RATE: u32 = 50;
const BURST: u32 = 10;

/// Reads all the time, of ten thousand keys. The database writes down when it was asked.
async fn traffic(server: SocketAddr, database: SocketAddr, limited: bool) {
    let store = Redis::connect(&format!("redis://{server}")).await.unwrap();
    let rows = Arc::new(Raw::connect(database).await);
    let loader = move |key: u64| {
        let rows = Arc::clone(&rows);
        async move {
            rows.text("XADD loads * l 1").await;
            Ok::<_, Error>(Loaded::found(key))
        }
    };
    let mut builder = Cache::builder(store).max_loads(64, Duration::from_millis(200));
    if limited {
        let number = |number| NonZeroU32::new(number).unwrap();
        builder = builder.limit(Limit::per_second(number(RATE)).burst(number(BURST)));
    }
    let cache = builder.build(loader).unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let mut random = Random::seeded();
    for _ in 0..64 {
        let (cache, reads, mut random) = (cache.clone(), Arc::clone(&reads), random.fork());
        tokio::spawn(async move {
            loop {
                let key = random.below(10_000);
                match cache.get(&key).await {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&key)),
                    Err(Error::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                reads.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    say("ready");
    loop {
        told().await;
        say(reads.load(Ordering::SeqCst));
    }
}

/// When the database was asked, in milliseconds by its clock.
async fn loads(database: &Raw) -> Vec<u64> {
    let Reply::Many(entries) = database.ask("XRANGE loads - +").await else { panic!("no loads") };
    let at = |entry: Reply| match entry {
        Reply::Many(parts) => match &parts[0] {
            Reply::Text(id) => id.split_once('-').unwrap().0.parse().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(at).collect()
}

/// The most loads in any time, less what that time allows.
fn most_over(loads: &[u64], rate: u32, burst: u32) -> i64 {
    let (rate, burst) = (i64::from(rate), i64::from(burst));
    // What was not used before is burst; it is never more than full.
    let (mut over, mut most, mut last) = (0_i64, 0_i64, loads.first().copied().unwrap_or(0));
    for at in loads {
        let passed = i64::try_from(at.saturating_sub(last)).unwrap();
        // In thousandths, so that nothing is lost to rounding.
        over = (over - passed * rate).max(0) + 1000;
        most = most.max(over);
        last = *at;
    }
    most / 1000 - burst
}

/// How many were read in all so far.
async fn reads(processes: &mut [Process]) -> u64 {
    let mut all = 0;
    for process in processes {
        process.go_on();
        all += process.says().await.parse::<u64>().unwrap();
    }
    all
}

#[tokio::test]
async fn a_cache_that_is_killed_does_not_kill_the_database() {
    let mut server = server::redis(&["--save", ""]).await;
    let database = server::redis(&[]).await;
    let raw = Raw::connect(database.address()).await;
    let order = |limited| format!("traffic {} {} {limited}", server.address(), database.address());
    let (limited, free) = (order(true), order(false));
    let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::start(&limited)).collect();
    for process in &mut processes {
        assert_eq!(process.says().await, "ready");
    }
    let asked = |count: i64| {
        let raw = &raw;
        async move { raw.number("XLEN loads").await >= count }
    };
    within(CASE, "it fills", || asked(200)).await;
    server.kill();
    let (dead, before) = (raw.number("XLEN loads").await, reads(&mut processes).await);
    within(CASE, "it goes on without the cache", || asked(dead + 600)).await;
    let during = raw.number("XLEN loads").await - dead;
    let read = reads(&mut processes).await - before;
    assert!(read > 3 * u64::try_from(during).unwrap(), "{read} reads, {during} loads: no load");
    server.start_again().await;
    within(CASE, "it goes on with the cache", || asked(dead + during + 300)).await;
    drop(processes);
    // What was admitted then may arrive later, where the machine is busy: all of two seconds together.
    let number = u32::try_from(PROCESSES).unwrap();
    let slack = 2 * i64::from(number * RATE);
    let over = most_over(&loads(&raw).await, number * RATE, number * BURST);
    assert!(over <= slack, "{over} more than allowed");
    // Would it be seen?
    raw.ask("DEL loads").await;
    let mut process = Process::start(&free);
    assert_eq!(process.says().await, "ready");
    server.kill();
    within(CASE, "nothing holds it back", async || {
        soon("loads", loads(&raw)).await.len() > 100
            && most_over(&loads(&raw).await, number * RATE, number * BURST) > slack
    })
    .await;
}

#[test]
fn what_is_over_the_limit_is_counted() {
    // A hundred a second with a burst of two.
    assert_eq!(most_over(&[0, 0], 100, 2), 0);
    assert_eq!(most_over(&[0, 0, 0], 100, 2), 1);
    assert_eq!(most_over(&[0, 0, 10, 20, 30], 100, 2), 0);
    assert_eq!(most_over(&[0, 0, 10, 20, 25, 25], 100, 2), 1);
    assert_eq!(most_over(&[0, 5000, 5000, 5000], 100, 2), 1);
}
