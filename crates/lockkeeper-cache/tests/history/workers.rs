//! The processes that work.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_cache::Strategy;
use testkit::random::Random;
use testkit::staleness::Log;
use testkit::wait::eventually;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::worker::{self, HOLD, Task};

/// Of which strategies writers are killed between the commit and what comes after it, in turn: the default, and the one
/// that differs from it in what becomes of that.
const COMMITTED: [Strategy; 2] = [Strategy::Strong, Strategy::FillLease];

fn spawn(task: &Task) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_in_a_process_of_its_own", "--nocapture"])
        .env(worker::VARIABLE, serde_json::to_string(task).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until a worker is so.
async fn is(task: &Task, what: &str) {
    let file = task.log.with_extension(what);
    eventually(what, async || file.exists()).await;
}

fn tell(worker: &mut Child, line: &str) {
    writeln!(worker.stdin.as_mut().unwrap(), "{line}").unwrap();
}

/// Who works. Their input ends with us, and so do they.
pub(crate) struct Workers {
    alive: Vec<(Task, Child)>,
    /// Where those wrote who were killed.
    left: Vec<PathBuf>,
    /// The number of the last one.
    started: u32,
}

impl Workers {
    /// All begin at the same time, when all are ready.
    pub(crate) async fn start(tasks: Vec<Task>) -> Self {
        let with_child = |task: Task| {
            let child = spawn(&task);
            (task, child)
        };
        let mut alive: Vec<_> = tasks.into_iter().map(with_child).collect();
        for (task, _) in &alive {
            is(task, "ready").await;
        }
        alive.iter_mut().for_each(|(_, worker)| tell(worker, "go"));
        let started = u32::try_from(alive.len()).unwrap();
        Self { alive, left: Vec::new(), started }
    }

    /// For about this time: kills one after the other and starts another in its place; in turn at a random moment, in
    /// the middle of all that it does, and when it has committed something and done nothing more.
    pub(crate) async fn kill(&mut self, time: Duration, random: &mut Random, log: &Log) {
        let kills = 4 + 2 * u32::try_from(time.as_secs()).unwrap();
        let mut committed = COMMITTED.iter().cycle();
        for number in 0..kills {
            sleep(random.duration(time * 2 / kills)).await;
            let at = random.below(self.alive.len() as u64);
            let (task, worker) = &mut self.alive[usize::try_from(at).unwrap()];
            is(task, "ready").await;
            if number % 2 == 1 {
                let case = committed.next().unwrap();
                tell(worker, &format!("{HOLD}{case}/"));
                is(task, "held").await;
            }
            worker.kill().unwrap();
            worker.wait().unwrap();
            log.dead(task.process);
            self.left.push(task.log.clone());
            self.started += 1;
            task.process = self.started;
            task.log.set_file_name(self.started.to_string());
            task.seed = random.below(u64::MAX);
            *worker = spawn(task);
            tell(worker, "go");
        }
    }

    /// Lets them come to their end; where they and those before them wrote.
    pub(crate) async fn end(mut self) -> Vec<PathBuf> {
        self.alive.iter_mut().for_each(|(_, worker)| tell(worker, "stop"));
        let mut logs = self.left;
        for (task, worker) in self.alive {
            let worker = Mutex::new(worker);
            let ended = async || worker.lock().await.try_wait().unwrap();
            eventually("a worker ends", async || ended().await.is_some()).await;
            assert!(ended().await.unwrap().success());
            logs.push(task.log);
        }
        logs
    }
}
