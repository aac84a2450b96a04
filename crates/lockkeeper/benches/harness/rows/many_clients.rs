//! Row 5: many clients on one name, in one process; what the server has to do for each hand-over.

use std::sync::Arc;
use std::time::Duration;

use super::{Result, nanos, prepare, sleep_until, start};
use crate::harness::book::Book;
use crate::harness::contender::{Contender, Role};
use crate::harness::figure::Figure;
use crate::harness::process::{Ask, Ended};
use crate::harness::server::Crowd;
use crate::harness::{Plan, clock};

pub(crate) const GRANTS: Figure = Figure::new(5, 8, "grants, {n} clients", "1/s");
const FAILED: Figure =
    Figure::new(5, 9, "calls that gave up or failed, {n} clients", "1/s").alone();
/// How long the server is looked at closely.
const LOOK: Duration = Duration::from_millis(250);
/// A crowd takes its time to get in line: so long for each, in ns.
const GET_IN_LINE: u64 = 1_000_000;

pub(super) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    for one in plan.contenders(5) {
        let crowds = plan.bench.crowds.iter().copied();
        for clients in crowds.filter(|count| *count <= one.clients_max) {
            if plan.quick && clients > 10 && one.role != Role::Ours {
                continue;
            }
            book.say(&format!("row 5: {}, {clients} clients", one.name));
            if let Err(what) = see(plan, url, one, clients, book).await {
                book.fault(one, 5, &format!("{clients} clients: {what}"));
            }
        }
    }
}

async fn see(plan: &Plan, url: &str, one: &Contender, clients: u32, book: &mut Book) -> Result<()> {
    let Some(mut process) = start(plan, url, one, None, book).await else { return Ok(()) };
    process.ask(&format!("connect {clients}")).await?;
    prepare(book).await;
    let from = clock::now() + nanos(plan.warm_up) + u64::from(clients) * GET_IN_LINE;
    let middle = from + nanos(2 * plan.window);
    let until = middle + nanos(LOOK);
    process.begin("bench", Ask { tasks: clients, names: 1, from, until, log: true }).await?;
    sleep_until(from).await;
    let (before, from) = (book.server.sample().await, clock::now());
    sleep_until(middle).await;
    let (after, middle) = (book.server.sample().await, clock::now());
    let closely = book.server.look_closely(LOOK).await;
    let Ended { failed, mut turns, .. } = process.end().await?;
    turns.sort_unstable_by_key(|turn| turn.granted);
    turns.retain(|turn| (from..middle).contains(&turn.granted));
    let passes = turns.windows(2).filter(|pair| pair[0].who != pair[1].who).count();
    if passes == 0 {
        return Err(format!("no hand-over; {} grants, {failed} calls failed", turns.len()));
    }
    let seconds = (middle - from) as f64 / 1e9;
    // Of one that has only just begun to compile, the commands say something and the pace does not.
    if !one.compiles() {
        book.note(GRANTS.of(clients), one, turns.len() as f64 / seconds);
    }
    book.note(FAILED.of(clients), one, failed as f64 / seconds);
    let (counts, grants, passes) = (after.since(&before), turns.len() as f64, passes as f64);
    let crowd = Crowd { counts, grants, passes, closely };
    let server = Arc::clone(&book.server);
    server.crowd(crowd, &mut |figure, value| book.note(figure.of(clients), one, value))
}
