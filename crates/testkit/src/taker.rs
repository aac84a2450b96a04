//! Another process that takes locks, to be killed, stopped and overtaken.
//!
//! Cargo tells the path of a binary only to tests of the same package, so the test binary is its own
//! taker: [`Taker::spawn`] runs [`std::env::current_exe`] again with `TESTKIT_TAKER` set to the URL
//! and asks libtest for the one test `taker_main`, which then calls [`main`] and never returns to
//! the other tests. The [`conformance!`](crate::conformance!) macro declares that test. Without the
//! variable it does nothing and passes.
//!
//! # Protocol
//!
//! One command per line on standard input, one answer per command on standard output, marked with
//! [`MARK`] because libtest writes there too. An answer is `ok …` or `err …`.
//!
//! | command | answer |
//! | --- | --- |
//! | `lock NAME [ttl=MILLIS] [lease=MILLIS]` (also `try`, `fair`, `read`, `write`, `permit NAME N`) | `ok TOKEN`, `ok none` |
//! | `release` | gives back the youngest lock |
//! | `token` | `ok TOKEN` of the youngest lock |
//! | `wait-lost` | `ok CAUSE` |
//! | `fenced-write FILE VALUE` | `ok accepted` or `ok refused`, as a late writer that does not ask whether it is lost |
//! | `rounds NAME N DIR` | takes and releases so often, with a judge; `ok VIOLATIONS` |
//! | `release-on-signal` | `ok told` |
//! | `drain NAME SEGMENTS MOST FILE` | takes up to so many of a stock at a time until nothing is left, and writes down what; `ok SUM` |
//! | `churn NAME SEGMENTS MOST ROUNDS FILE` | takes and puts back, so many times; `ok TIMES` |
//! | `exit` | ends without releasing |

pub mod child;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::sync::mpsc;

use crate::signal;
use crate::wait::LONG;

/// Marks the lines of the protocol.
pub const MARK: &str = "@taker ";

const VARIABLE: &str = "TESTKIT_TAKER";

/// Becomes the taker if this process was started as one; else does nothing.
pub fn main() {
    if let Ok(url) = std::env::var(VARIABLE) {
        child::run(&url);
        std::process::exit(0);
    }
}

/// The other process; killed when dropped.
#[derive(Debug)]
pub struct Taker {
    child: Child,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Taker {
    /// Starts one that is connected to the URL.
    ///
    /// # Panics
    ///
    /// When it cannot be started or cannot connect.
    pub async fn spawn(url: &str) -> Self {
        let mut taker = Self::start(url, None);
        assert_eq!(taker.answer().await, "ok ready");
        taker
    }

    /// Starts one as another user, and gives its answer to being connected.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn spawn_as(url: &str, uid: u32) -> (Self, String) {
        let mut taker = Self::start(url, Some(uid));
        let answer = taker.answer().await;
        (taker, answer)
    }

    /// Starts one without waiting for it: its first answer is that it is connected.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(url: &str, uid: Option<u32>) -> Self {
        let mut command = match uid {
            // What whoever runs the tests ignores, as a shell does in the background, is not to be ignored by it.
            None => {
                let mut command = Command::new("env");
                let program = format!("/proc/{}/exe", std::process::id());
                command.arg("--default-signal").arg(program);
                command
            }
            // Not by its path: another user may not be allowed into the folders that lead there.
            Some(uid) => {
                let mut command = Command::new("/proc/self/exe");
                command.uid(uid).gid(uid).current_dir("/");
                command
            }
        };
        command
            .args(["taker_main", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, url)
            .env_remove("RUST_TEST_THREADS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the test binary can be run again");
        let output = child.stdout.take().expect("piped");
        let (tell, answers) = mpsc::unbounded_channel();
        // A thread, because the pipe must be read even while the runtime is busy.
        std::thread::spawn(move || {
            for line in std::io::BufRead::lines(std::io::BufReader::new(output)) {
                let Ok(line) = line else { return };
                // libtest writes `test taker_main ... ` before the first answer, without an end.
                if let Some((_, answer)) = line.split_once(MARK)
                    && tell.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, answers }
    }

    /// Sends a command without waiting for the answer.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn send(&mut self, command: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{command}").expect("the taker listens");
        input.flush().unwrap();
    }

    /// The next answer.
    ///
    /// # Panics
    ///
    /// When none comes in time.
    pub async fn answer(&mut self) -> String {
        self.answer_within(LONG).await
    }

    /// The next answer, for commands that take their time.
    ///
    /// # Panics
    ///
    /// When none comes in time.
    pub async fn answer_within(&mut self, time: Duration) -> String {
        match tokio::time::timeout(time, self.answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("the taker is gone"),
            Err(_) => panic!("the taker does not answer within {time:?}"),
        }
    }

    /// Whether an answer is there already.
    pub fn answered(&mut self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    /// Sends a command and awaits its answer, which must be `ok`.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub async fn ask(&mut self, command: &str) -> String {
        self.send(command);
        let answer = self.answer().await;
        match answer.strip_prefix("ok ") {
            Some(answer) => answer.to_owned(),
            None => panic!("{command}: {answer}"),
        }
    }

    /// Sends a command whose answer is a token.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub async fn token(&mut self, command: &str) -> u64 {
        self.ask(command).await.parse().expect("a token")
    }

    /// Awaits the token of a command that was sent before.
    ///
    /// # Panics
    ///
    /// When the answer is not one.
    pub async fn granted(&mut self) -> u64 {
        let answer = self.answer().await;
        let token = answer.strip_prefix("ok ").and_then(|token| token.parse().ok());
        token.unwrap_or_else(|| panic!("not granted: {answer}"))
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

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How it ends, by itself.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn ends_within(&mut self, time: Duration) -> ExitStatus {
        // Its standard output ends with it.
        let end = async { while self.answers.recv().await.is_some() {} };
        tokio::time::timeout(time, end).await.expect("it does not end");
        self.child.wait().unwrap()
    }

    /// Stops it with SIGSTOP.
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

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
