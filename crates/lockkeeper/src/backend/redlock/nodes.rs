//! The nodes: connections, keys, and one request to all of them at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Cmd, RedisWrite, Script, Value};
use tokio::runtime::Handle;

use super::attend::attend;
use super::readmit::{Memory, View};
use super::votes::{Absence, Vote};
use crate::backend::Request;
use crate::backend::redis::commands::{Commands, evalsha};
use crate::backend::redis::connect;
use crate::backend::redis::layout::WAKE;
use crate::backend::redis::listener::Listener;
use crate::backend::register::Register;
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::owner::{self, RequestId};
use crate::undo::UNDOING;
use crate::url::RedLockOptions;

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(include_str!("lua/head.lua"), include_str!(concat!("lua/", $file))))
        })
    };
}

static TAKE: LazyLock<Script> = script!("take.lua");
static RAISE: LazyLock<Script> = script!("raise.lua");
static RENEW: LazyLock<Script> = script!("renew.lua");
static RELEASE: LazyLock<Script> = script!("release.lua");
static EVICT: LazyLock<Script> = script!("evict.lua");
static SHOW: LazyLock<Script> = script!("show.lua");
static LOOK: LazyLock<Script> = script!("look.lua");
static ADMIT: LazyLock<Script> = script!("admit.lua");

/// One step at a node: a script with its keys and words. The same for every node.
pub(super) struct Step {
    script: &'static LazyLock<Script>,
    command: Cmd,
}

/// Somebody who waits if the lock is not to be had.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// What nodes call it; nothing: it does not wait.
    pub(super) name: &'a str,
    /// For how long without a word.
    pub(super) lease: Duration,
    /// Since when, by our clock.
    pub(super) since: Duration,
}

/// The time of day: makes values unique, is shown to whoever looks, and says who waits longer. Nobody is
/// granted anything because of it.
#[expect(clippy::disallowed_methods, reason = "no lease is judged by it")]
pub(super) fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// One node.
pub(super) struct Link {
    /// Where it is, for people.
    pub(super) address: String,
    pub(super) commands: Commands,
    /// The last request failed, or had no answer.
    pub(super) fails: AtomicBool,
    /// Keeps the connection for messages alive.
    _listener: Arc<Listener>,
}

/// All nodes, and what this client knows of them.
pub(super) struct Nodes {
    pub(super) links: Vec<Link>,
    pub(super) prefix: String,
    pub(super) requests: Arc<Register>,
    /// What our own channel is called.
    pub(super) party: String,
    /// The largest counter that any node has told, or that we have proposed.
    pub(super) counter: AtomicU64,
    /// How long a lease may be that nobody remembers, in ms.
    pub(super) longest: AtomicU64,
    /// Somebody looks after nodes that do not vote.
    pub(super) attended: AtomicBool,
    /// Values that are being undone, and by how many tasks.
    given_up: Mutex<HashMap<String, usize>>,
    /// When the last value was made: no two are alike.
    last_value: AtomicU64,
}

/// The answers that are still to come, from every node that was asked.
pub(super) type Answers = FuturesUnordered<
    std::pin::Pin<Box<dyn Future<Output = (usize, Result<Value>)> + Send + 'static>>,
>;

impl Nodes {
    /// Nothing is sent yet. Must be called inside a tokio runtime.
    pub(super) fn new(options: &RedLockOptions, unknown: Duration) -> Result<Arc<Self>> {
        let requests = Arc::new(Register::new());
        let party = format!("{:016x}", owner::random());
        let link = |url: &String| {
            let address = url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest);
            let address = address.rsplit_once("//").map_or(address, |(_, rest)| rest);
            let address = address.split('/').next().unwrap_or_default().to_owned();
            let client = connect::client(url, &options.tls, &format!("redis://{address}"))?;
            let commands = Commands::to_one(client.clone(), requests.runtime().clone());
            let listener = Listener::start_later(client, &party, Arc::clone(&requests));
            let fails = AtomicBool::new(false);
            Ok(Link { address, commands, fails, _listener: listener })
        };
        let links: Vec<Link> = options.nodes.iter().map(link).collect::<Result<_>>()?;
        let longest = u64::try_from(unknown.as_millis()).unwrap_or(u64::MAX);
        Ok(Arc::new(Self {
            links,
            prefix: options.prefix.clone(),
            requests,
            party,
            counter: AtomicU64::new(0),
            longest: AtomicU64::new(longest),
            attended: AtomicBool::new(false),
            given_up: Mutex::default(),
            last_value: AtomicU64::new(0),
        }))
    }

    pub(super) fn runtime(&self) -> &Handle {
        self.requests.runtime()
    }

    /// The value of a lock: it says everything about itself, and no two are alike, so that undoing one
    /// attempt does not touch the next.
    pub(super) fn value(&self, request: &Request, first: u64) -> String {
        let since = u64::try_from(time_of_day().as_micros()).unwrap_or(0);
        let before = self.last_value.fetch_max(since, Ordering::Relaxed);
        let since = match since > before {
            true => since,
            false => self.last_value.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let Request { owner, id, term, .. } = request;
        format!("{owner}#{id}#{}#{}#{first}#{since}", self.party, term.ttl().as_millis())
    }

    /// The first of so many tokens above every counter that is known: others of this process that ask at
    /// the same time propose others, or all but one would need the second phase.
    pub(super) fn propose(&self, tokens: u32) -> u64 {
        self.counter.fetch_add(u64::from(tokens.max(1)), Ordering::Relaxed) + 1
    }

    /// Who waits, as the nodes remember it.
    pub(super) fn member(&self, request: &Request) -> String {
        format!("{}#{}#{}", request.id, self.party, request.owner)
    }

    /// `more`: what one more key is called, and for which request or value it is.
    fn step(
        &self,
        script: &'static LazyLock<Script>,
        lock: &str,
        more: Option<(&str, &str)>,
    ) -> Step {
        let mut command = evalsha(script, if more.is_some() { 8 } else { 7 });
        let (before, after) = if lock.contains('{') { (":", "") } else { ("{", "}") };
        let ours = |command: &mut Cmd, what: &str| {
            command.write_arg_fmt(format_args!("lockkeeper_redlock{what}:{before}{lock}{after}"));
        };
        command.arg(lock);
        for what in ["node", "busy"] {
            command.write_arg_fmt(format_args!("lockkeeper_redlock_{what}:{{{}}}", self.prefix));
        }
        ["", "_queue", "_waiters", "_turn"].into_iter().for_each(|what| ours(&mut command, what));
        if let Some((what, id)) = more {
            let key = format_args!("lockkeeper_redlock_{what}:{before}{lock}{after}:{id}");
            command.write_arg_fmt(key);
        }
        Step { script, command }
    }

    pub(super) fn take(
        &self,
        (lock, value, id): (&str, &str, RequestId),
        ttl: Duration,
        (first, last): (u64, u64),
        member: Member<'_>,
    ) -> Step {
        let mut step = self.step(&TAKE, lock, Some(("late", attempt_of(value))));
        step.command.arg(value);
        step.command.write_arg_fmt(id);
        let (lease, since) = (member.lease.as_millis(), member.since.as_millis());
        step.command.arg(ttl.as_millis().to_string()).arg(first).arg(last);
        step.command.arg(member.name).arg(lease.to_string()).arg(since.to_string());
        step
    }

    pub(super) fn raise(&self, lock: &str, value: &str, (first, last): (u64, u64)) -> Step {
        let mut step = self.step(&RAISE, lock, None);
        step.command.arg(value).arg(first).arg(last);
        step
    }

    /// Without a time: looks only.
    pub(super) fn renew(&self, lock: &str, value: &str, ttl: Option<Duration>) -> Step {
        let mut step = self.step(&RENEW, lock, Some(("gone", id_of(value))));
        let ttl = ttl.map(|ttl| ttl.as_millis().to_string()).unwrap_or_default();
        step.command.arg(value).arg(ttl);
        step
    }

    pub(super) fn release(&self, lock: &str, value: &str, member: &str) -> Step {
        let mut step = self.step(&RELEASE, lock, Some(("late", attempt_of(value))));
        step.command.arg(value).arg(member).arg(WAKE);
        step
    }

    /// Takes back an attempt that failed, by somebody who goes on trying: nobody is told to go first.
    pub(super) fn retract(&self, lock: &str, value: &str) -> Step {
        let mut step = self.step(&RELEASE, lock, Some(("late", attempt_of(value))));
        step.command.arg(value).arg("").arg("");
        step
    }

    pub(super) fn evict(&self, lock: &str, value: &str, reason: &str) -> Step {
        let mut step = self.step(&EVICT, lock, Some(("gone", id_of(value))));
        step.command.arg(value).arg(reason).arg(WAKE);
        step
    }

    pub(super) fn show(&self, lock: &str) -> Step {
        self.step(&SHOW, lock, None)
    }

    pub(super) fn look(&self, what: Looking) -> Step {
        let mut step = self.step(&LOOK, &self.prefix, None);
        step.command.arg(what as u8);
        step
    }

    pub(super) fn admit(&self, run: &str, wait: Duration, counter: u64, floor: bool) -> Step {
        let mut step = self.step(&ADMIT, &self.prefix, None);
        let wait = wait.as_millis() + 1;
        step.command.arg(run).arg(wait.to_string()).arg(counter).arg(u8::from(floor));
        step
    }

    /// Runs a step at one node.
    pub(super) async fn at(&self, node: usize, step: &Step) -> Result<Value> {
        let link = &self.links[node];
        let answer = link.commands.run(step.script, &step.command).await;
        link.fails.store(answer.is_err(), Ordering::Relaxed);
        answer
    }

    /// Runs a step at these nodes, all at the same time.
    pub(super) fn ask(
        self: &Arc<Self>,
        nodes: impl IntoIterator<Item = usize>,
        step: Step,
    ) -> Answers {
        let step = Arc::new(step);
        let ask = |node: usize| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let (nodes, step) = (Arc::clone(self), Arc::clone(&step));
            Box::pin(async move { (node, nodes.at(node, &step).await) })
        };
        nodes.into_iter().map(ask).collect()
    }

    pub(super) fn ask_all(self: &Arc<Self>, step: Step) -> Answers {
        self.ask(0..self.links.len(), step)
    }

    /// Nobody waits for these answers; but a connection that has gone silent is to be noticed, and a
    /// node that does not vote, however late it says so.
    pub(super) fn leave(self: &Arc<Self>, mut answers: Answers) {
        if answers.is_empty() {
            return;
        }
        let nodes = Arc::clone(self);
        self.runtime().spawn(async move {
            while let Some((_, answer)) = answers.next().await {
                if matches!(&answer, Ok(Value::Array(words)) if words.first() == Some(&Value::Int(-1)))
                {
                    attend(&nodes);
                }
            }
        });
    }

    /// Gives a lock back at these nodes, as often as it takes, for as long as it may be there.
    pub(super) fn undo(
        self: &Arc<Self>,
        nodes: Vec<usize>,
        value: &str,
        step: Step,
        ttl: Duration,
    ) -> tokio::task::JoinHandle<()> {
        let given_up = GivenUp::new(self, value);
        let (all, until) = (Arc::clone(self), Instant::now() + ttl);
        let undoing = UNDOING.begin();
        self.runtime().spawn(async move {
            let _given_up = (given_up, undoing);
            let (mut left, step) = (nodes, &step);
            let mut pause = RETRY;
            loop {
                let undoing = left.iter().map(async |node| (*node, all.at(*node, step).await));
                let undone = futures_util::future::join_all(undoing).await;
                left = undone
                    .into_iter()
                    .filter(|(_, done)| done.is_err())
                    .map(|(at, _)| at)
                    .collect();
                if left.is_empty() || Instant::now() >= until {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        })
    }

    /// Whether a lock under this value is being undone: then it is not ours, whatever the nodes say.
    pub(super) fn is_given_up(&self, value: &str) -> bool {
        self.given_up.lock().contains_key(value)
    }

    /// What each node said, for people.
    pub(super) fn unavailable<'a>(
        &self,
        what: &str,
        said: impl Iterator<Item = Option<std::borrow::Cow<'a, str>>>,
    ) -> Error {
        let said = std::iter::zip(&self.links, said).map(|(link, said)| {
            let said = said.unwrap_or("not waited for".into());
            format!("{}: {said}", link.address)
        });
        let said = said.collect::<Vec<_>>().join("; ");
        let context = format!("no majority of {} nodes for {what} ({said})", self.links.len());
        Error::Unavailable { backend: "redlock", context, source: None }
    }
}

/// A value that is being undone, for as long as this lives.
struct GivenUp {
    nodes: Arc<Nodes>,
    value: String,
}

impl GivenUp {
    fn new(nodes: &Arc<Nodes>, value: &str) -> Self {
        *nodes.given_up.lock().entry(value.to_owned()).or_default() += 1;
        Self { nodes: Arc::clone(nodes), value: value.to_owned() }
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        let mut given_up = self.nodes.given_up.lock();
        if let Some(tasks) = given_up.get_mut(&self.value) {
            *tasks -= 1;
            if *tasks == 0 {
                given_up.remove(&self.value);
            }
        }
    }
}

/// What looking at a node may change.
#[derive(Clone, Copy)]
pub(super) enum Looking {
    /// One that neither votes nor waits is told to wait.
    Mark = 1,
    /// One that was never one of us votes at once.
    Found = 2,
    Only = 0,
}

/// Between two attempts to reach a node that fails.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The request in the value of a lock of ours; nothing in that of others.
pub(super) fn id_of(value: &str) -> &str {
    value.rsplit('#').nth(4).unwrap_or_default()
}

/// What tells the value of one attempt from all others: the client, and when it was made.
fn attempt_of(value: &str) -> &str {
    value.match_indices('#').rev().nth(3).map_or("", |(at, _)| &value[at + 1..])
}

/// Who took a lock: of ours, the owner; of others, the value if it can be read.
pub(super) fn owner_of(value: &str) -> &str {
    if crate::backend::redis::layout::is_our_field(value) {
        return value.rsplitn(6, '#').last().unwrap_or(value);
    }
    let readable = value.len() <= 64 && value.chars().all(|c| c.is_ascii_graphic());
    if readable { value } else { "somebody" }
}

/// An error in few words, with its cause.
pub(super) fn why(error: &Error) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    match error {
        Error::Unavailable { context, .. } => format!("{context}{}", source.unwrap_or_default()),
        other => other.to_string(),
    }
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref::<Vec<u8>>(value)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    redis::from_redis_value_ref(value).unwrap_or(0)
}

fn millis(value: &Value) -> Duration {
    Duration::from_millis(number(value))
}

/// How a node says that it does not vote.
pub(super) fn absence(why: &Value, left: &Value) -> Absence {
    match text(why).as_str() {
        "blank" => Absence::Blank,
        "restarted" => Absence::Restarted,
        _ => match left {
            Value::Int(left) if *left >= 0 => Absence::Waiting(Some(millis(&Value::Int(*left)))),
            _ => Absence::Waiting(None),
        },
    }
}

/// The answer of `take.lua`.
pub(super) fn vote(answer: Result<Value>) -> Vote {
    let answer = match answer {
        Ok(Value::Array(words)) => words,
        Ok(other) => return Vote::Silent(format!("an answer that makes no sense: {other:?}")),
        Err(error) => return Vote::Silent(why(&error)),
    };
    match answer.as_slice() {
        [Value::Int(1), counter, accepted] => {
            Vote::Yes { counter: number(counter), accepted: number(accepted) == 1 }
        }
        [Value::Int(2), value, token, left] => {
            Vote::Mine { value: text(value), token: number(token), left: millis(left) }
        }
        [Value::Int(0), by, left] => Vote::Held { by: text(by), left: millis(left) },
        [Value::Int(-1), why, left] => Vote::Absent(absence(why, left)),
        _ => Vote::Silent(format!("an answer that makes no sense: {answer:?}")),
    }
}

/// The answer of `look.lua`, with the run of the node.
pub(super) fn view(answer: &Value) -> (View, String) {
    let Value::Array(words) = answer else { return (View::Unknown, String::new()) };
    let [stands, waited, counter, busy, run] = words.as_slice() else {
        return (View::Unknown, String::new());
    };
    let memory = Memory { counter: number(counter), busy: millis(busy) };
    let view = match text(stands).as_str() {
        "voting" => View::Voting(memory),
        "marked" => View::Marked { waited: millis(waited), memory },
        "admitted" => View::Admitted,
        _ => View::Unmarked(memory),
    };
    (view, text(run))
}

/// The answer of `show.lua`.
pub(super) struct Shown {
    pub(super) value: String,
    pub(super) left: Duration,
    pub(super) token: u64,
    /// Owners.
    pub(super) waiters: Vec<String>,
}

impl Shown {
    pub(super) fn read(answer: &Value) -> Option<Self> {
        let Value::Array(words) = answer else { return None };
        let [value, left, token, waiters @ ..] = words.as_slice() else { return None };
        let owner = |member: &Value| text(member).splitn(3, '#').last().unwrap_or("").to_owned();
        let waiters = waiters.iter().map(owner).collect();
        Some(Self { value: text(value), left: millis(left), token: number(token), waiters })
    }
}
