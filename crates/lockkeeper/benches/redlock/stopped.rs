//! Row 6: the pair of row 1 while one of the nodes is stopped.

use std::collections::HashMap;
use std::time::Duration;

use testkit::redlock::Nodes;

use crate::harness::Plan;
use crate::harness::book::Book;
use crate::harness::figure::Figure;
use crate::harness::process::Process;
use crate::harness::rows::one_process::{pair, start_alone};
use crate::harness::rows::{Result, prepare};
use crate::stats::Stats;

const STOPPED: Figure = Figure::new(6, 0, "lock + release, one node stopped, p50", "µs");
const ALL: Figure = Figure::new(6, 1, "just before, all nodes up, p50", "µs");
pub(crate) const TO_ALL: Figure = Figure::new(6, 2, "one stopped to all up", "×").alone();

/// After a node goes on: how long those who sent to it meanwhile may take to see that.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn measure(
    plan: &Plan,
    url: &str,
    book: &mut Book,
    (nodes, stats): (&Nodes, &Stats),
) {
    let contenders = plan.contenders(6);
    let mut processes: HashMap<&str, Process> = HashMap::new();
    for &one in &contenders {
        if let Some(process) = start_alone(plan, url, (one, 6), book).await {
            processes.insert(one.id, process);
        }
    }
    for round in 1..=plan.rounds {
        for &one in &contenders {
            let Some(process) = processes.get_mut(one.id) else { continue };
            book.say(&format!("row 6, round {round}: {}", one.name));
            match both(plan, process, book, (nodes, stats)).await {
                Ok((all, stopped)) => {
                    book.note(ALL, one, all);
                    book.note(STOPPED, one, stopped);
                    book.note(TO_ALL, one, stopped / all);
                }
                Err(what) => {
                    processes.remove(one.id);
                    book.fault(one, 6, &what);
                }
            }
        }
    }
}

/// The pair with all nodes, and right after that with the last of them stopped.
async fn both(
    plan: &Plan,
    process: &mut Process,
    book: &mut Book,
    (nodes, stats): (&Nodes, &Stats),
) -> Result<(f64, f64)> {
    let all = pair(plan, process, book).await?;
    let last = nodes.servers.last().unwrap();
    last.pause();
    stats.last_stopped(true);
    let stopped = pair(plan, process, book).await;
    last.resume();
    stats.last_stopped(false);
    // What was sent to it meanwhile is carried out now, and cleared away before the next comes.
    prepare(book).await;
    tokio::time::sleep(PAUSE).await;
    Ok((all, stopped?))
}
