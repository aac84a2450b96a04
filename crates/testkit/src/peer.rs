//! Lock libraries of other languages as child processes, to share locks with.
//!
//! The programs are in `interop/`, each a few lines around the unmodified library; `interop/build`
//! builds them. A peer that is not built fails the test: a test that does not run must not look like
//! one that passes.
//!
//! # How it works
//!
//! One command per line, `ID LABEL VERB …`; one answer per command, `@ ID ok …` or `@ ID err …`, in
//! any order; other lines are noise. `interop/README.md` has the verbs. A *label* is an owner of its
//! own (for Redisson a thread): commands of one label run in order, those of different labels at the
//! same time, so a test can block one label and go on with another.
//!
//! ```no_run
//! # async fn example() {
//! use testkit::peer::Peer;
//!
//! let peer = Peer::java("redis://127.0.0.1:6379").await;
//! peer.ask("one", "lock orders").await;
//! let waits = peer.send("two", "lock orders");
//! peer.ask("one", "unlock orders").await;
//! waits.value().await;
//! # }
//! ```
//!
//! # Cost
//!
//! A JVM takes half a second to start and some 100 MB; Node and Python a fifth of a second, Go
//! nothing worth mentioning.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::signal;
use crate::wait::LONG;

/// Marks the lines of the protocol.
const MARK: &str = "@ ";

/// The id of the first line, which says that the peer is connected.
const READY: u64 = 0;

/// Which Redisson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redisson {
    /// The newest.
    Current,
    /// One from before batched renewal and cached scripts.
    Old,
}

/// Who waits for which answer; `None` when there will be no more.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<String>>>>>;

/// Another library in a process of its own; killed when dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
    version: String,
}

impl Peer {
    /// Redisson, the newest, with its own watchdog of 30 seconds.
    ///
    /// # Panics
    ///
    /// When it is not built or cannot connect.
    pub async fn java(url: &str) -> Self {
        Self::redisson(Redisson::Current, url, None).await
    }

    /// An old Redisson.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn java_old(url: &str) -> Self {
        Self::redisson(Redisson::Old, url, None).await
    }

    /// Redisson with another time-out of its watchdog, which is the lease of locks that name none.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn redisson(which: Redisson, url: &str, watchdog: Option<Duration>) -> Self {
        let target = match which {
            Redisson::Current => built("java"),
            Redisson::Old => built("java-old"),
        };
        let classes = format!("{0}/classes:{0}/dependency/*", target.display());
        let mut command = Command::new("java");
        // What makes a short run start quickly on few cores.
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", &classes]);
        command.args(["lockkeeper.interop.Peer", url]);
        command.args(watchdog.map(|time| time.as_millis().to_string()));
        Self::start(command).await
    }

    /// Curator, with this time-out of its session.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn curator(servers: &str, session: Duration) -> Self {
        let target = built("curator");
        let classes = format!("{0}/classes:{0}/dependency/*", target.display());
        let mut command = Command::new("java");
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", &classes]);
        command.args(["lockkeeper.interop.Peer", servers, &session.as_millis().to_string()]);
        Self::start(command).await
    }

    /// kazoo, with this time-out of its session.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn kazoo(servers: &str, session: Duration) -> Self {
        let mut command = Command::new(built("kazoo").join("venv/bin/python"));
        command.arg(interop().join("kazoo/peer.py")).arg(servers);
        command.arg(session.as_millis().to_string());
        Self::start(command).await
    }

    /// The lock of redis-py.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn python(url: &str) -> Self {
        let mut command = Command::new(built("python").join("venv/bin/python"));
        command.arg(interop().join("python/peer.py")).arg(url);
        Self::start(command).await
    }

    /// redsync, on one server or as RedLock on several.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`]; but servers may be down.
    pub async fn go<U: AsRef<str> + Sync>(urls: &[U]) -> Self {
        let mut command = Command::new(built("go").join("peer"));
        command.args(urls.iter().map(AsRef::as_ref));
        Self::start(command).await
    }

    /// node-redlock, on one server or as RedLock on several.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`]; but servers may be down.
    pub async fn node<U: AsRef<str> + Sync>(urls: &[U]) -> Self {
        built("node");
        let mut command = Command::new("node");
        command.arg(interop().join("node/peer.js")).args(urls.iter().map(AsRef::as_ref));
        Self::start(command).await
    }

    /// etcd's own Go package, at these members.
    ///
    /// # Panics
    ///
    /// As [`Peer::java`].
    pub async fn etcd(members: &str) -> Self {
        let mut command = Command::new(built("etcd").join("peer"));
        command.arg(members);
        Self::start(command).await
    }

    async fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}: run interop/build"));
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let (tell, ready) = oneshot::channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::from([(READY, tell)]))));
        let answers = Arc::clone(&waiting);
        // A thread, because the pipe must be read even while the runtime is busy.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                deliver(&line, &answers);
            }
            // Whoever waits now learns that the peer is gone.
            answers.lock().take();
        });
        // A peer from here on: if the wait for it fails, the process ends.
        let mut peer = Self {
            child,
            input: Mutex::new(input),
            waiting,
            next: AtomicU64::new(READY + 1),
            version: String::new(),
        };
        let ready = Pending { what: format!("{command:?}"), answer: ready };
        peer.version = ready.value().await;
        peer
    }

    /// Name and version of the library, and for Redisson the id of the client, which is the first
    /// part of its owners: `redisson 4.7.0 UUID`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Sends a command without waiting for the answer.
    ///
    /// # Panics
    ///
    /// When the peer is gone.
    pub fn send(&self, label: &str, command: &str) -> Pending {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, answer) = oneshot::channel();
        let what = format!("{} [{label}] {command}", self.version);
        match self.waiting.lock().as_mut() {
            Some(waiting) => waiting.insert(id, tell),
            None => panic!("{what}: the peer is gone"),
        };
        // One write, so that commands of different threads do not mix.
        let line = format!("{id} {label} {command}\n");
        let sent = self.input.lock().write_all(line.as_bytes());
        sent.unwrap_or_else(|error| panic!("{what}: the peer is gone: {error}"));
        Pending { what, answer }
    }

    /// Sends a command and awaits its answer, which must be `ok`; gives what follows.
    ///
    /// # Panics
    ///
    /// When it is not, or does not come in time.
    pub async fn ask(&self, label: &str, command: &str) -> String {
        self.send(label, command).value().await
    }

    /// Sends a command whose answer must be an error; gives its name and text.
    ///
    /// # Panics
    ///
    /// When it is not, or does not come in time.
    pub async fn refused(&self, label: &str, command: &str) -> String {
        self.send(label, command).error().await
    }

    /// Has it end itself at once, without releasing anything or closing connections, and waits
    /// until it is gone.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn crash(&mut self) {
        let pending = self.send("-", "crash");
        let what = pending.what;
        match tokio::time::timeout(LONG, pending.answer).await {
            Ok(Err(_)) => {}
            Ok(Ok(answer)) => panic!("{what}: {answer}"),
            Err(_) => panic!("{what}: not within {LONG:?}"),
        }
        self.child.wait().unwrap();
    }

    /// Has it close its connections and end, as a program that is shut down; it releases nothing.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn quit(mut self) {
        self.ask("-", "quit").await;
        self.child.wait().unwrap();
    }

    /// Ends it with SIGKILL and waits until it is gone.
    ///
    /// # Panics
    ///
    /// When that is not possible.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it with SIGSTOP, as a long pause of its garbage collector would.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn stop(&self) {
        signal::stop(&self.child);
    }

    /// Lets it go on.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn go_on(&self) {
        signal::go_on(&self.child);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer that is still to come. Dropping it does not take the command back.
#[derive(Debug)]
#[must_use = "the command may still run"]
pub struct Pending {
    what: String,
    answer: oneshot::Receiver<String>,
}

impl Pending {
    /// Whether the command still waits, for example for a lock.
    pub fn waits(&self) -> bool {
        self.answer.is_empty()
    }

    /// What follows `ok`, or what follows `err`.
    ///
    /// # Errors
    ///
    /// The name and the text of the error, as the library says them.
    ///
    /// # Panics
    ///
    /// When none comes in time, or the peer is gone.
    pub async fn within(self, time: Duration) -> Result<String, String> {
        let what = &self.what;
        let answer = match tokio::time::timeout(time, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => panic!("{what}: the peer is gone"),
            Err(_) => panic!("{what}: no answer within {time:?}"),
        };
        let (kind, text) = answer.split_once(' ').unwrap_or((&answer, ""));
        match kind {
            "ok" => Ok(text.to_owned()),
            "err" => Err(text.to_owned()),
            _ => panic!("{what}: not an answer: {answer}"),
        }
    }

    /// The answer, which must be `ok`; gives what follows.
    ///
    /// # Panics
    ///
    /// When it is not, or does not come within [`LONG`].
    pub async fn value(self) -> String {
        let what = self.what.clone();
        self.within(LONG).await.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// The answer, which must be an error.
    ///
    /// # Panics
    ///
    /// When it is not, or does not come within [`LONG`].
    pub async fn error(self) -> String {
        let what = self.what.clone();
        match self.within(LONG).await {
            Ok(value) => panic!("{what}: not refused, but: ok {value}"),
            Err(error) => error,
        }
    }
}

/// Gives an answer to whoever waits for it; what is not an answer is dropped.
fn deliver(line: &str, waiting: &Waiting) {
    let Some((id, answer)) = line.strip_prefix(MARK).and_then(|line| line.split_once(' ')) else {
        return;
    };
    let Ok(id) = id.parse() else { return };
    let tell = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&id));
    if let Some(tell) = tell {
        // The test may have stopped waiting.
        let _ = tell.send(answer.to_owned());
    }
}

fn interop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop")
}

/// Where the build puts a peer; `INTEROP_TARGET` is a folder for all of them.
fn target(peer: &str) -> PathBuf {
    match (std::env::var_os("INTEROP_TARGET").filter(|folder| !folder.is_empty()), peer) {
        (Some(folder), peer) => Path::new(&folder).join(peer),
        (None, "java-old") => interop().join("java/target/old"),
        (None, peer) => interop().join(peer).join("target"),
    }
}

/// The folder of a peer, if it is built.
fn built(peer: &str) -> PathBuf {
    let folder = target(peer);
    // The build writes this mark last.
    assert!(folder.join("built").exists(), "{peer} is not built: run interop/build");
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that answers by rote.
    fn script(text: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", text]);
        command
    }

    #[test]
    #[should_panic(expected = "run interop/build")]
    fn a_peer_that_is_not_built_fails_and_says_what_to_do() {
        built("no-such-peer");
    }

    #[tokio::test]
    async fn answers_find_their_commands_in_any_order_and_among_noise() {
        let peer = Peer::start(script(
            "echo '@ 0 ok rote 1'; read -r a; read -r b; echo noise; echo '@ 2 err Bad two'
             echo '@ x'; echo '@ 1 ok'; read -r c; echo \"@ 3 ok $a $b\"; read -r d",
        ))
        .await;
        assert_eq!(peer.version(), "rote 1");
        let one = peer.send("l", "first");
        assert!(one.waits());
        assert_eq!(peer.refused("m", "second n=2").await, "Bad two");
        assert_eq!(one.value().await, "");
        assert_eq!(peer.ask("l", "third").await, "1 l first 2 m second n=2");
    }

    #[tokio::test]
    #[should_panic(expected = "the peer is gone")]
    async fn a_command_fails_at_once_when_the_peer_ends() {
        let peer = Peer::start(script("echo '@ 0 ok'; read -r a")).await;
        peer.ask("l", "lock orders").await;
    }

    #[tokio::test]
    #[should_panic(expected = "Refused cannot connect")]
    async fn a_peer_that_cannot_start_fails() {
        Peer::start(script("echo '@ 0 err Refused cannot connect'; read -r a")).await;
    }

    #[tokio::test]
    async fn a_crash_is_awaited() {
        let mut peer = Peer::start(script("echo '@ 0 ok'; read -r a; exit 137")).await;
        peer.crash().await;
    }
}
