//! A contender in a process of its own.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::contender::Contender;
use super::processors::Processors;

/// How long a program may take to start, to connect, or to end a turn.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel counts the time of a process in ticks of this many per second.
pub(crate) const TICKS: f64 = 100.0;

/// A process that takes commands; killed when dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    pub(crate) version: String,
}

/// One turn: who had it, and when it was asked for, granted and done, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) who: usize,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) done: u64,
}

/// What became of turns that were asked for.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How many were done in time.
    pub(crate) count: u64,
    /// How many calls ended without the lock or in an error.
    pub(crate) failed: u64,
    pub(crate) turns: Vec<Turn>,
}

/// Turns that are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) tasks: u32,
    pub(crate) names: u32,
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) log: bool,
}

impl Process {
    /// Starts a contender, on any processor or apart from the server, and waits until it is connected.
    pub(crate) async fn start(
        one: &Contender,
        url: &str,
        lease: Duration,
        apart: Option<&Processors>,
    ) -> Result<Self, String> {
        let mut command = one.command()?;
        if let Some(processors) = apart {
            command = processors.apart(&command);
        }
        command.args([url, one.id, &lease.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, input, output, version: String::new() };
        process.version = process.answer().await?;
        Ok(process)
    }

    async fn send(&mut self, command: &str) -> Result<(), String> {
        let sent = self.input.write_all(format!("{command}\n").as_bytes()).await;
        sent.map_err(|error| format!("{command}: {error}"))
    }

    /// The next line of the protocol; others are noise.
    async fn answer(&mut self) -> Result<String, String> {
        let reading = async {
            while let Ok(Some(line)) = self.output.next_line().await {
                if let Some(answer) = line.strip_prefix("@ ok") {
                    return Ok(answer.trim().to_owned());
                }
            }
            Err("it ended".to_owned())
        };
        let late = |_| format!("no answer within {PATIENCE:?}");
        tokio::time::timeout(PATIENCE, reading).await.map_err(late)?
    }

    /// Sends a command and awaits its answer.
    pub(crate) async fn ask(&mut self, command: &str) -> Result<String, String> {
        self.send(command).await?;
        self.answer().await
    }

    /// Begins to take turns.
    pub(crate) async fn begin(&mut self, prefix: &str, ask: Ask) -> Result<(), String> {
        let Ask { tasks, names, from, until, log } = ask;
        let log = u8::from(log);
        self.send(&format!("turns {prefix} {tasks} {names} {from} {until} {log}")).await
    }

    /// What became of the turns.
    pub(crate) async fn end(&mut self) -> Result<Ended, String> {
        let answer = self.answer().await?;
        let numbers: Vec<u64> = answer.split(' ').map(|word| word.parse().unwrap()).collect();
        let turn = |words: &[u64]| Turn {
            who: usize::try_from(words[0]).unwrap(),
            asked: words[1],
            granted: words[2],
            done: words[3],
        };
        let &[count, failed, ref rest @ ..] = numbers.as_slice() else {
            return Err(format!("not an answer: {answer}"));
        };
        Ok(Ended { count, failed, turns: rest.chunks_exact(4).map(turn).collect() })
    }

    /// The time that its threads have had a processor.
    pub(crate) fn cpu(&self) -> Duration {
        cpu(self.pid())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }
}

/// The time that the threads of a process have had a processor.
pub(crate) fn cpu(process: u32) -> Duration {
    let stat = about(process, "stat");
    // The second field is a name in parentheses, which may have blanks.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    Duration::from_secs_f64(ticks / TICKS)
}

/// The memory of a process in bytes, without what is swapped out.
pub(crate) fn memory(process: u32) -> u64 {
    let status = about(process, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// What the kernel says about a process.
fn about(process: u32, what: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/{what}")).unwrap_or_default()
}
