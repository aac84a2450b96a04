//! What the tests have in common: a directory for locks, running programs, and waiting for events.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockkeeper::clock::Instant;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// How long something may take that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A child that says `ready`, waits for a line or the end of its input, and exits with 0.
pub(crate) const HOLD: [&str; 3] = ["sh", "-c", "echo ready; read line; exit 0"];

/// Waits until the question has an answer.
#[allow(clippy::disallowed_methods, reason = "a process, not a runtime: some facts have no event")]
pub(crate) fn eventually<T>(what: &str, mut question: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + SOON;
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process does anything any more.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    is_living(&stat)
}

/// The same, from a line of its `/proc/PID/stat`.
pub(crate) fn is_living(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Locks in a directory that goes away with the test.
pub(crate) struct Store {
    pub(crate) directory: TempDir,
}

/// How a program ended and what it wrote.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().expect("a temporary directory") }
    }

    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.directory.path().join("locks").display())
    }

    /// `lockkeeper` with these arguments, without a terminal. Signals that the test runner ignores
    /// are not ignored.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.command_under(&["env", "--default-signal"], words)
    }

    /// The same, under another program.
    pub(crate) fn command_under(&self, under: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.args(under).arg(BINARY).args(words);
        command.env("LOCKKEEPER_URL", self.url()).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, words: &[&str]) -> Running {
        Running::new(self.command(words).stdin(Stdio::piped()))
    }

    /// Runs it to its end.
    pub(crate) fn output(&self, words: &[&str]) -> Output {
        Running::new(&mut self.command(words)).output()
    }

    /// Holds the lock until told to end.
    pub(crate) fn hold(&self, options: &[&str], name: &str) -> Running {
        let words = [&["run"], options, &[name], &HOLD[..]].concat();
        let running = self.start(&words);
        assert_eq!(running.line(), "ready");
        running
    }

    /// What `show --json` says.
    pub(crate) fn show(&self, name: &str) -> Value {
        let shown = self.output(&["show", name, "--json"]);
        assert_eq!(shown.code, 0, "{shown:?}");
        serde_json::from_str(&shown.out).expect("JSON")
    }

    /// Waits until so many wait for the lock.
    pub(crate) fn until_waiting(&self, name: &str, count: usize) {
        eventually("so many wait", || {
            let waiters = self.show(name)["waiters"].as_array().map(Vec::len);
            (waiters == Some(count)).then_some(())
        });
    }
}

/// A program that runs. Killed with the test.
pub(crate) struct Running {
    child: Child,
    pub(crate) input: Option<ChildStdin>,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    pub(crate) fn new(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("starts");
        let out = lines(child.stdout.take().expect("piped"));
        let err = lines(child.stderr.take().expect("piped"));
        Self { input: child.stdin.take(), child, out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id()).ok();
        pid.and_then(Pid::from_raw).expect("a process has a number")
    }

    /// The next line on standard output.
    pub(crate) fn line(&self) -> String {
        self.out.recv_timeout(SOON).unwrap_or_else(|error| {
            panic!("no line: {error}; stderr: {:?}", self.err.try_iter().collect::<Vec<_>>())
        })
    }

    /// Waits for a line on standard error that contains this.
    pub(crate) fn error_line(&self, part: &str) -> String {
        loop {
            let line = self.err.recv_timeout(SOON).expect(part);
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("signal");
    }

    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("piped");
        writeln!(input, "{line}").expect("somebody listens");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("ours").is_some()
    }

    pub(crate) fn code(&mut self) -> i32 {
        let child = &mut self.child;
        let status = eventually("it ends", || child.try_wait().expect("ours"));
        status.code().unwrap_or(-1)
    }

    /// Ends its input and waits for its end.
    pub(crate) fn output(mut self) -> Output {
        self.input = None;
        let code = self.code();
        let rest = |lines: &Receiver<String>| {
            let mut text = String::new();
            while let Ok(line) = lines.recv_timeout(SOON) {
                text = text + &line + "\n";
            }
            text
        };
        Output { code, out: rest(&self.out), err: rest(&self.err) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let read = BufReader::new(stream).lines().map_while(Result::ok);
        // A test that has ended does not listen.
        read.for_each(|line| drop(send.send(line)));
    });
    lines
}
