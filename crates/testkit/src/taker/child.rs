//! The other side of a [`Taker`](super::Taker): reads commands, takes locks, answers.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use lockkeeper::{Error, Guard, Locks};
use tokio::sync::mpsc;

use super::MARK;
use crate::conformance::in_order;
use crate::random::Random;
use crate::register::FileRegister;

type Answer = Result<String, Box<dyn std::error::Error + Send + Sync>>;

/// Serves commands from standard input until it ends.
///
/// # Panics
///
/// When there is no runtime to be had.
pub fn run(url: &str) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(serve(url));
}

fn say(answer: &Answer) {
    let mut out = std::io::stdout().lock();
    // Nobody listens when the parent is gone: then this process ends too, below.
    let _ = match answer {
        Ok(answer) => writeln!(out, "{MARK}ok {answer}"),
        Err(error) => writeln!(out, "{MARK}err {}", whole(error.as_ref())),
    };
    let _ = out.flush();
}

/// An error with its sources, on one line.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.replace('\n', " ")
}

async fn serve(url: &str) {
    // A thread, because standard input cannot be waited for.
    let (tell, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if tell.send(line).is_err() {
                break;
            }
        }
        // Also ends what waits for a lock: a taker never outlives its test.
        std::process::exit(0);
    });
    let locks = match Locks::connect(url).await {
        Ok(locks) => locks,
        Err(error) => return say(&Err(error.into())),
    };
    say(&Ok("ready".into()));
    let mut guards = Vec::new();
    while let Some(command) = commands.recv().await {
        let words: Vec<&str> = command.split_whitespace().collect();
        say(&obey(&locks, &mut guards, &words).await);
    }
}

async fn obey(locks: &Locks, guards: &mut Vec<Guard>, words: &[&str]) -> Answer {
    let youngest = guards.last().ok_or("no lock is held");
    match words {
        ["release"] => {
            youngest?;
            if let Some(guard) = guards.pop() {
                guard.release().await?;
            }
            Ok("released".into())
        }
        ["token"] => Ok(youngest?.token().to_string()),
        ["wait-lost"] => Ok(youngest?.lost().await.to_string()),
        ["fenced-write", file, value] => {
            let written = FileRegister::at(*file).write(youngest?.token().get(), value)?;
            Ok(written.map_or_else(|_| "refused".into(), |()| "accepted".into()))
        }
        ["rounds", name, times, dir] => rounds(locks, name, times.parse()?, Path::new(dir)).await,
        ["release-on-signal"] => {
            locks.release_on_signal()?;
            Ok("told".into())
        }
        ["drain", name, segments, most, file] => {
            drain(locks, name, (segments.parse()?, most.parse()?), Path::new(file)).await
        }
        ["churn", name, segments, most, rounds, file] => {
            let numbers = (segments.parse()?, most.parse()?, rounds.parse()?);
            churn(locks, name, numbers, Path::new(file)).await
        }
        ["exit"] => std::process::exit(0),
        [how, name, options @ ..] => match take(locks, how, name, options).await? {
            Some(guard) => {
                let token = guard.token().to_string();
                guards.push(guard);
                Ok(token)
            }
            None => Ok("none".into()),
        },
        _ => Err("no such command".into()),
    }
}

async fn take(
    locks: &Locks,
    how: &str,
    name: &str,
    options: &[&str],
) -> Result<Option<Guard>, Box<dyn std::error::Error + Send + Sync>> {
    let mut locks = locks.clone();
    let mut permits = 1;
    for option in options {
        match option.split_once('=') {
            Some(("ttl", millis)) => locks = locks.ttl(Duration::from_millis(millis.parse()?)),
            Some(("lease", millis)) => locks = locks.lease(Duration::from_millis(millis.parse()?)),
            Some(_) => return Err(format!("no such option: {option}").into()),
            None => permits = option.parse()?,
        }
    }
    Ok(match how {
        "lock" => Some(locks.mutex(name).lock().await?),
        "try" => locks.mutex(name).try_lock().await?,
        "fair" => Some(in_order(&locks, locks.mutex(name)).lock().await?),
        "read" => Some(locks.rw_lock(name).read().await?),
        "write" => Some(locks.rw_lock(name).write().await?.into()),
        "permit" => Some(locks.semaphore(name, permits).acquire().await?),
        _ => return Err(format!("no such command: {how}").into()),
    })
}

/// Takes and releases a lock many times. Two judges that know nothing of it: a file that can be
/// created only once, and a register that refuses late tokens.
async fn rounds(locks: &Locks, name: &str, times: usize, dir: &Path) -> Answer {
    let marker = dir.join("inside");
    let register = FileRegister::at(dir.join("register"));
    let mutex = locks.mutex(name);
    let mut violations = 0;
    for _ in 0..times {
        let guard = mutex.lock().await?;
        let alone = OpenOptions::new().write(true).create_new(true).open(&marker).is_ok();
        let in_order = register.write(guard.token().get(), "x")?.is_ok();
        // Lets others in, if the lock does.
        tokio::task::yield_now().await;
        if alone {
            std::fs::remove_file(&marker)?;
        }
        violations += usize::from(!alone) + usize::from(!in_order);
        guard.release().await?;
    }
    Ok(violations.to_string())
}

/// Takes random portions of a stock until nothing is left, and writes down each before it asks for it and
/// when it has it.
async fn drain(locks: &Locks, name: &str, (segments, most): (usize, u64), file: &Path) -> Answer {
    let mut log = OpenOptions::new().create(true).append(true).open(file)?;
    let mut random = Random::seeded();
    let stock = locks.stock(name, segments);
    let mut sum = 0;
    let mut bound = most;
    while bound > 0 {
        let portion = 1 + random.below(bound);
        writeln!(log, "asks {portion}")?;
        if stock.take(portion).await? {
            writeln!(log, "took {portion}")?;
            sum += portion;
        } else {
            writeln!(log, "none {portion}")?;
            // Less may still be there.
            bound = portion - 1;
        }
    }
    Ok(sum.to_string())
}

/// Takes random portions of a stock and puts them back, so many times, and writes down each step before
/// and after.
async fn churn(
    locks: &Locks,
    name: &str,
    (segments, most, rounds): (usize, u64, u32),
    file: &Path,
) -> Answer {
    let mut log = OpenOptions::new().create(true).append(true).open(file)?;
    let mut random = Random::seeded();
    let stock = locks.stock(name, segments);
    let mut times = 0;
    for _ in 0..rounds {
        let portion = 1 + random.below(most);
        writeln!(log, "asks {portion}")?;
        // Who has had no luck for ten seconds is told so, and that nothing was changed.
        let taken = match stock.take(portion).await {
            Err(Error::Unavailable { .. }) => false,
            Err(Error::Unknown { .. }) => return Ok(times.to_string()),
            taken => taken?,
        };
        if !taken {
            writeln!(log, "none {portion}")?;
            continue;
        }
        writeln!(log, "took {portion}")?;
        writeln!(log, "back {portion}")?;
        loop {
            match stock.restock(portion).await {
                Err(Error::Unavailable { .. }) => {}
                // It is left in doubt, as by one that was killed.
                Err(Error::Unknown { .. }) => return Ok(times.to_string()),
                given => break given?,
            }
        }
        writeln!(log, "gave {portion}")?;
        times += 1;
    }
    Ok(times.to_string())
}
