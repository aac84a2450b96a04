//! How often the server is asked until everybody had the lock: by polling, and by messages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper::clock::Instant;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Barrier;

use crate::bench::{Bench, connect, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::{PATIENCE, within};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::{Program, Server};
use crate::timeline::{Kind, State, Timeline};

/// So many clients want the lock at the same time, once each: few, and three times as many.
const FEW: usize = 8;
const MANY: usize = 24;
/// And have it for so long.
const WORK: Duration = Duration::from_millis(5);
/// How long who polls waits before it asks again: a short time, and a long one.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(20);
/// How long locks live: much longer than anybody waits.
const TTL: Duration = Duration::from_secs(30);
/// What a grant costs may hardly grow with the number of those who wait: three times as many may make it
/// dearer by half at most.
const GROWTH: f64 = 1.5;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "polling-or-notice",
    title: "What waiting costs the server: polling, a message to all, a message to one",
    about: "Who does not get the lock has to wait. The usual loop asks again and again, and the server answers \
            no again and again: the more wait, the more it has to do for each grant. With a message on release \
            (Redisson's channel) nobody asks in between; but if all who wait hear it, all ask at once, and \
            all but one in vain. Who polls seldom asks less, and leaves the lock idle in between. Nobody is let \
            in wrongly here, so what is counted as a violation is something else: a grant costs the server more \
            the more clients wait, by more than half with 24 of them instead of 8. The server's own MONITOR \
            counts the commands, without those that scripts issue inside, from the moment when all clients are \
            connected. Throughput and waiting times are those of the 24.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "polling",
            title: "SET NX PX every millisecond",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(both(bench, Waiting::Polls(SOON))),
        },
        Variant {
            name: "slow-polling",
            title: "SET NX PX every 20 milliseconds: fewer commands, and the lock is idle in between",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(both(bench, Waiting::Polls(LATE))),
        },
        Variant {
            name: "message-to-all",
            title: "SET NX PX, and again whenever a release is published",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(both(bench, Waiting::Hears)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: the one whose turn it is hears of it",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(both(bench, Waiting::Keeps)),
        },
    ],
};

/// How clients wait.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// They ask again after this time.
    Polls(Duration),
    /// They ask again when a release is published.
    Hears,
    /// Lockkeeper does.
    Keeps,
}

/// What came out with so many clients.
struct Measured {
    scene: Scene,
    commands: u64,
    waited: Vec<Duration>,
    busy: Duration,
}

impl Measured {
    fn per_grant(&self) -> f64 {
        let grants = u32::try_from(self.waited.len()).unwrap_or(1);
        f64::from(u32::try_from(self.commands).unwrap_or(u32::MAX)) / f64::from(grants)
    }
}

/// With few clients, and with many.
async fn both(bench: &Bench, waiting: Waiting) -> Result<Outcome> {
    let mut measured = Vec::new();
    for clients in [FEW, MANY] {
        measured.push(match waiting {
            Waiting::Polls(pause) => home_made(bench, clients, Some(pause)).await?,
            Waiting::Hears => home_made(bench, clients, None).await?,
            Waiting::Keeps => kept(bench, clients).await?,
        });
    }
    let [few, many] = <[Measured; 2]>::try_from(measured)
        .map_err(|_| Error::Other("it was measured twice".into()))?;
    Ok(counted(&few, many))
}

/// Counts what clients send to a server.
struct Monitor {
    lines: BufReader<OwnedReadHalf>,
    // Closing it would end the monitor.
    _up: OwnedWriteHalf,
    asks: MultiplexedConnection,
}

impl Monitor {
    async fn start(server: &Server) -> Result<Self> {
        let (down, mut up) = TcpStream::connect(server.address()).await?.into_split();
        up.write_all(b"MONITOR\r\n").await?;
        let mut lines = BufReader::new(down);
        let mut first = String::new();
        within(PATIENCE, "the monitor", lines.read_line(&mut first)).await??;
        Ok(Self { lines, _up: up, asks: connect(&server.url()).await? })
    }

    /// How many commands there were since the last call, or the start.
    async fn count(&mut self, until: &str) -> Result<u64> {
        let mut mark = redis::cmd("ECHO");
        mark.arg(until).query_async::<()>(&mut self.asks).await?;
        let (mut count, mut line) = (0, String::new());
        loop {
            line.clear();
            let reading = self.lines.read_line(&mut line);
            if within(PATIENCE, "a line of the monitor", reading).await?? == 0 {
                return Err(Error::Other("the monitor ended".into()));
            }
            if line.contains(until) {
                return Ok(count);
            }
            count += u64::from(from_client(&line));
        }
    }
}

/// Whether a line of `MONITOR` is a command that a client sent, and none of a script.
fn from_client(line: &str) -> bool {
    !line.split(']').next().unwrap_or_default().ends_with(" lua")
}

/// By hand; who does not poll hears of releases.
async fn home_made(bench: &Bench, clients: usize, polls: Option<Duration>) -> Result<Measured> {
    let server = Server::redis(&[]).await?;
    let (key, scene) = (bench.key("lock"), Scene::new());
    let mut monitor = Monitor::start(&server).await?;
    let ready = Arc::new(Barrier::new(clients + 1));
    let clients = (0..clients).map(|at| {
        let (scene, server, key, ready) = (&scene, &server, &key, Arc::clone(&ready));
        async move {
            let actor = scene.actor(format!("client {}", at + 1));
            let mut connection = connect(&server.url()).await?;
            let mut messages = match polls {
                None => Some(Messages::subscribe(server, key).await?),
                Some(_) => None,
            };
            ready.wait().await;
            ready.wait().await;
            let since = Instant::now();
            actor.begins(State::Waits);
            let mut in_vain = 0_u32;
            while !set_nx(&mut connection, key, actor.name(), Some(TTL)).await? {
                in_vain += 1;
                match &mut messages {
                    Some(messages) => messages.next().await?,
                    None => tokio::time::sleep(polls.unwrap_or_default()).await,
                }
            }
            actor.ends(State::Waits);
            let waited = Instant::now().since(since);
            work(&actor, format!("SET lock NX PX → OK, after {in_vain} in vain")).await;
            if messages.is_some() {
                let release = "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[1], '')";
                redis::Script::new(release).key(key).invoke_async::<()>(&mut connection).await?;
                actor.did(Kind::Released, "DEL lock, PUBLISH");
            } else {
                connection.del::<_, ()>(key).await?;
                actor.did(Kind::Released, "DEL lock");
            }
            Ok::<_, Error>(waited)
        }
    });
    let counting = async {
        ready.wait().await;
        monitor.count("all are connected").await?;
        ready.wait().await;
        Ok::<_, Error>(Instant::now())
    };
    let (since, waited) = tokio::try_join!(counting, try_join_all(clients))?;
    let busy = Instant::now().since(since);
    let commands = monitor.count("all had it").await?;
    Ok(Measured { scene, commands, waited, busy })
}

/// Has the lock for a while.
async fn work(actor: &Actor, took: String) {
    actor.did(Kind::Took, took);
    actor.believes();
    tokio::time::sleep(WORK).await;
    actor.believes_no_more();
}

/// The releases that are published.
struct Messages {
    lines: BufReader<OwnedReadHalf>,
    _up: OwnedWriteHalf,
}

impl Messages {
    async fn subscribe(server: &Server, key: &str) -> Result<Self> {
        let (down, mut up) = TcpStream::connect(server.address()).await?.into_split();
        up.write_all(format!("SUBSCRIBE {key}\r\n").as_bytes()).await?;
        let mut messages = Self { lines: BufReader::new(down), _up: up };
        messages.until(":1").await?;
        Ok(messages)
    }

    /// Waits for one.
    async fn next(&mut self) -> Result<()> {
        self.until("message").await?;
        // The length of the empty text is its last line but one.
        self.until("$0").await
    }

    async fn until(&mut self, what: &str) -> Result<()> {
        let mut line = String::new();
        while line.trim_end() != what {
            line.clear();
            let reading = self.lines.read_line(&mut line);
            if within(PATIENCE, "a message", reading).await?? == 0 {
                return Err(Error::Other("the subscription ended".into()));
            }
        }
        Ok(())
    }
}

async fn kept(bench: &Bench, clients: usize) -> Result<Measured> {
    let server = Server::redis(&[]).await?;
    let (key, scene) = (bench.key("lock"), Scene::new());
    let mut monitor = Monitor::start(&server).await?;
    let ready = Arc::new(Barrier::new(clients + 1));
    let clients = (0..clients).map(|at| {
        let (scene, server, key, ready) = (&scene, &server, &key, Arc::clone(&ready));
        async move {
            let actor = scene.actor(format!("client {}", at + 1));
            // A process each: those of one process would wait among themselves, and ask once.
            let locks = lockkeeper::Locks::connect(&server.url()).await?;
            ready.wait().await;
            ready.wait().await;
            let since = Instant::now();
            actor.begins(State::Waits);
            let guard = locks.mutex(key).lock().await?;
            actor.ends(State::Waits);
            let waited = Instant::now().since(since);
            work(&actor, "lock() → held".into()).await;
            guard.release().await?;
            actor.did(Kind::Released, "release()");
            Ok::<_, Error>(waited)
        }
    });
    let counting = async {
        ready.wait().await;
        monitor.count("all are connected").await?;
        ready.wait().await;
        Ok::<_, Error>(Instant::now())
    };
    let (since, waited) = tokio::try_join!(counting, try_join_all(clients))?;
    let busy = Instant::now().since(since);
    let commands = monitor.count("all had it").await?;
    Ok(Measured { scene, commands, waited, busy })
}

/// So many clients are shown: a picture of all would be too wide.
const SHOWN: usize = 4;

/// The last who had it, and the server.
fn some(mut line: Timeline) -> Timeline {
    let mut took: Vec<String> = Vec::new();
    for event in line.events.iter().rev().filter(|event| event.kind == Kind::Took) {
        took.push(event.actor.clone());
    }
    took.truncate(SHOWN);
    let shown = |actor: &String| actor == "Redis" || took.contains(actor);
    line.actors.retain(shown);
    line.events.retain(|event| shown(&event.actor));
    line.spans.retain(|span| shown(&span.actor));
    line
}

/// Whether a grant became dearer because more wait.
fn grows(few: f64, many: f64) -> bool {
    many > GROWTH * few
}

/// So many commands for each grant: do they grow?
fn counted(few: &Measured, many: Measured) -> Outcome {
    let (little, much) = (few.per_grant(), many.per_grant());
    let server = many.scene.actor("Redis");
    let text =
        format!("a grant costs {little:.1} commands with {FEW} clients, {much:.1} with {MANY}");
    if grows(little, much) {
        many.scene.violation(&server, text);
    } else {
        server.did(Kind::Noted, text);
    }
    let mut tally = Tally::new();
    let (all, busy) = (many.commands, many.busy);
    tally.operations(many.waited);
    tally.within(busy);
    tally.run_of(few.scene.violations() + many.scene.violations(), || some(many.scene.end()));
    tally.figure("commands per grant, 8 clients", little, "");
    tally.figure("commands per grant, 24 clients", much, "");
    tally.end(move |_: &Timeline| {
        format!(
            "{MANY} clients had the lock once each, for {} ms, in {} ms together. The server was sent {all} commands for \
             that: {much:.1} for each grant, and {little:.1} when there were {FEW} clients. The last of them are \
             shown.",
            WORK.as_millis(),
            busy.as_millis(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_who_had_it_are_shown() {
        let scene = Scene::new();
        let actors: Vec<_> = (0..9).map(|at| scene.actor(format!("client {at}"))).collect();
        actors.iter().for_each(|actor| actor.did(Kind::Took, "lock"));
        scene.actor("Redis").did(Kind::Noted, "9 commands");
        let line = some(scene.end());
        assert_eq!(line.actors, ["client 5", "client 6", "client 7", "client 8", "Redis"]);
        assert_eq!(line.events.len(), 5);
    }

    #[test]
    fn a_grant_that_costs_more_the_more_wait_is_seen() {
        assert!(!grows(4.0, 4.2), "hardly");
        assert!(!grows(4.0, 6.0));
        assert!(grows(5.5, 13.5), "a message to all");
    }

    #[test]
    fn what_scripts_do_is_not_sent_by_clients() {
        assert!(from_client(r#"1339518083.107412 [0 127.0.0.1:60866] "SET" "a lua]""#));
        assert!(!from_client(r#"1339518083.107412 [0 lua] "SET" "a""#));
    }
}
