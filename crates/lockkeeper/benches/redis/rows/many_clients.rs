//! Row 5: many clients on one name, in one process; what the server has to do for each hand-over.

use std::time::Duration;

use super::{Result, nanos, prepare, sleep_until, start};
use crate::book::{Book, Figure};
use crate::contender::{Contender, Role};
use crate::process::{Ask, Ended};
use crate::{Plan, clock};

const CLIENTS: [u32; 3] = [10, 100, 1000];
/// How long all commands are looked at, to tell apart those that clients sent.
const LOOK: Duration = Duration::from_millis(250);
/// A crowd takes its time to get in line: so long for each, in ns.
const GET_IN_LINE: u64 = 1_000_000;

pub(super) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    for one in plan.contenders(5) {
        for clients in CLIENTS.into_iter().filter(|count| *count <= one.clients_max) {
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
    let (before, from) = (book.stats.sample().await, clock::now());
    sleep_until(middle).await;
    let (after, middle) = (book.stats.sample().await, clock::now());
    let sent_part = book.stats.sent_part(LOOK).await;
    let Ended { failed, mut turns, .. } = process.end().await?;
    turns.sort_unstable_by_key(|turn| turn.granted);
    turns.retain(|turn| (from..middle).contains(&turn.granted));
    let passes = turns.windows(2).filter(|pair| pair[0].who != pair[1].who).count();
    if passes == 0 {
        return Err(format!("no hand-over; {} grants, {failed} calls failed", turns.len()));
    }
    let commands = (after.commands - before.commands) as f64;
    let seconds = (middle - from) as f64 / 1e9;
    book.note(Figure::InAll(clients), one, commands / passes as f64);
    // Of one that has only just begun to compile, the commands say something and the pace does not.
    if !one.compiles() {
        book.note(Figure::Grants(clients), one, turns.len() as f64 / seconds);
    }
    book.note(Figure::CrowdFailed(clients), one, failed as f64 / seconds);
    let sent_part = sent_part.ok_or("too few commands to tell which part was sent")?;
    book.note(Figure::Sent(clients), one, commands * sent_part / passes as f64);
    book.note(Figure::SentPerGrant(clients), one, commands * sent_part / turns.len() as f64);
    Ok(())
}
