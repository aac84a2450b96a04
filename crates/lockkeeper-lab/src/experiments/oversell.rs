//! Many buyers press the button of a shop, and more is sold than there is.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::bench::{Bench, set_nx};
use crate::checker::Stock;
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::{PATIENCE, within};
use crate::http::{Caller, Service};
use crate::outcome::{Outcome, Tally};
use crate::servers::Program;
use crate::timeline::{Event, Kind, Span, State, Timeline};

/// How many buyers there are, each with a connection to one of the two instances.
const BUYERS: usize = 16;
/// How often each presses the button.
const PRESSES: usize = 20;
/// What there is: less than what is asked for.
const PIECES: u64 = 200;
/// How long the database takes to answer.
const DATABASE: Duration = Duration::from_millis(1);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "oversell",
    title: "A shop without a lock sells the same piece twice",
    about: "A sale reads how many pieces are left, and writes one less. Two sales at the same time read the \
            same number, write the same number, and have sold one piece twice. A mutex of the language \
            prevents that within one process, and shops have more than one: here two instances of a service \
            behind real HTTP, and 16 buyers who press the button as fast as they are answered.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "no-lock",
            title: "No lock",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(sale(bench, Choice::Nothing)),
        },
        Variant {
            name: "process-mutex",
            title: "A mutex in each of the two instances",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(sale(bench, Choice::Process)),
        },
        Variant {
            name: "setnx",
            title: "SETNX, asked for again until it is free, and DEL",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sale(bench, Choice::SetNx)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(sale(bench, Choice::Lockkeeper)),
        },
    ],
};

/// Which lock the service is built with.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Nothing,
    Process,
    SetNx,
    Lockkeeper,
}

/// What an instance locks with.
#[derive(Clone)]
enum Lock {
    Nothing,
    Process(Arc<tokio::sync::Mutex<()>>),
    SetNx(MultiplexedConnection, String),
    Lockkeeper(lockkeeper::Mutex),
}

/// A sale, as the checker saw it.
#[derive(Clone, Debug)]
struct Sale {
    instance: usize,
    locked: Instant,
    read: Instant,
    left: u64,
    wrote: Instant,
    unlocked: Instant,
}

/// What all instances share: the database, and the account of the checker.
struct Shop {
    stock: Stock,
    sales: Mutex<Vec<Sale>>,
}

async fn sale(bench: &Bench, choice: Choice) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let shop = Arc::new(Shop { stock: Stock::of(PIECES), sales: Mutex::default() });
    let mut services = Vec::new();
    for instance in 0..2 {
        let lock = match choice {
            Choice::Nothing => Lock::Nothing,
            Choice::Process => Lock::Process(Arc::default()),
            Choice::SetNx => Lock::SetNx(redis.connect().await?, bench.key("stock")),
            Choice::Lockkeeper => Lock::Lockkeeper(redis.locks().await?.mutex(bench.key("stock"))),
        };
        let shop = Arc::clone(&shop);
        let service = Service::start(move |_| press(Arc::clone(&shop), lock.clone(), instance));
        services.push(service.await?);
    }
    let mut tally = Tally::new();
    let start = Instant::now();
    let mut buyers = JoinSet::new();
    for buyer in 0..BUYERS {
        buyers.spawn(buys(services[buyer % services.len()].address()));
    }
    let bound = "all buyers being answered";
    while let Some(took) = within(2 * PATIENCE, bound, buyers.join_next()).await? {
        let gone = |_| Error::Other("a buyer panicked".into());
        tally.operations(took.map_err(gone)??);
    }
    tally.within(Instant::now().since(start));
    let sales = shop.sales.lock().clone();
    let (sold, left) = (shop.stock.sold(), shop.stock.read());
    tally.run_of(shop.stock.oversold(), || {
        let mut line = shown(&sales, start);
        // Nobody believes to hold what is not there.
        line.spans.retain(|_| !matches!(choice, Choice::Nothing));
        line
    });
    let oversold = shop.stock.oversold();
    Ok(tally.end(|line| tell(line, oversold, sold, left)))
}

fn tell(line: &Timeline, oversold: u64, sold: u64, left: u64) -> String {
    let sum = format!("Of {PIECES} pieces {sold} were sold and {left} are left");
    match line.violation() {
        Some(seen) => format!(
            "{sum}: {oversold} sales are missing from the shelf. The first was at {}: {}.",
            crate::timeline::millis(seen.at_us),
            seen.text
        ),
        None => format!(
            "{sum}, to {BUYERS} buyers who asked {} times; shown are the first two sales.",
            BUYERS * PRESSES
        ),
    }
}

/// Presses the button again and again; how long each answer took.
async fn buys(address: std::net::SocketAddr) -> Result<Vec<Duration>> {
    let mut caller = Caller::connect(address).await?;
    let mut took = Vec::new();
    for _ in 0..PRESSES {
        let since = Instant::now();
        let (status, text) = caller.post("/deduct_stock").await?;
        if status == 500 {
            return Err(Error::Other(text));
        }
        took.push(Instant::now().since(since));
    }
    Ok(took)
}

/// What the service does when the button is pressed.
async fn press(shop: Arc<Shop>, lock: Lock, instance: usize) -> (u16, String) {
    match deduct(&shop, lock, instance).await {
        Ok(true) => (200, "sold".into()),
        Ok(false) => (409, "sold out".into()),
        Err(error) => (500, error.to_string()),
    }
}

/// Under the lock, whichever it is.
async fn deduct(shop: &Shop, lock: Lock, instance: usize) -> Result<bool> {
    match lock {
        Lock::Nothing => {
            let sale = read_and_write(shop, instance).await;
            Ok(keep(shop, sale))
        }
        Lock::Process(mutex) => {
            let guard = mutex.lock().await;
            let sale = read_and_write(shop, instance).await;
            drop(guard);
            Ok(keep(shop, sale))
        }
        Lock::SetNx(mut connection, key) => {
            let since = Instant::now();
            while !set_nx(&mut connection, &key, "1", None).await? {
                if Instant::now().since(since) > PATIENCE {
                    return Err(Error::Late("the lock".into()));
                }
                tokio::time::sleep(DATABASE).await;
            }
            let sale = read_and_write(shop, instance).await;
            connection.del::<_, ()>(&key).await?;
            Ok(keep(shop, sale))
        }
        Lock::Lockkeeper(mutex) => {
            let guard = mutex.lock().await?;
            let sale = guard.protect(read_and_write(shop, instance)).await?;
            guard.release().await?;
            Ok(keep(shop, sale))
        }
    }
}

/// A sale: read, one less, write. The database takes its time for both.
async fn read_and_write(shop: &Shop, instance: usize) -> Option<Sale> {
    let locked = Instant::now();
    tokio::time::sleep(DATABASE).await;
    let (read, left) = (Instant::now(), shop.stock.read());
    if left == 0 {
        return None;
    }
    tokio::time::sleep(DATABASE).await;
    shop.stock.sell(left - 1);
    let wrote = Instant::now();
    Some(Sale { instance, locked, read, left, wrote, unlocked: wrote })
}

/// Writes a sale down for the checker; whether there was one.
fn keep(shop: &Shop, sale: Option<Sale>) -> bool {
    let Some(sale) = sale else { return false };
    shop.sales.lock().push(Sale { unlocked: Instant::now(), ..sale });
    true
}

/// The first two sales of one piece, or the first two.
fn shown(sales: &[Sale], start: Instant) -> Timeline {
    let mut sales = sales.to_vec();
    sales.sort_by_key(|sale| sale.wrote);
    let twice = sales.iter().enumerate().find_map(|(at, second)| {
        let first = sales[..at].iter().find(|first| first.left == second.left)?;
        Some([first.clone(), second.clone()])
    });
    let broken = twice.is_some();
    let two = twice.map_or_else(|| sales.into_iter().take(2).collect(), Vec::from);
    let micros = |at: Instant| u64::try_from(at.since(start).as_micros()).unwrap_or(u64::MAX);
    let mut line = Timeline::default();
    for (sale, buyer) in two.iter().zip(["buyer 1", "buyer 2"]) {
        let actor = format!("{buyer} (instance {})", sale.instance + 1);
        let mut add = |at, kind, text: String| {
            line.events.push(Event { at_us: micros(at), actor: actor.clone(), kind, text });
        };
        add(sale.read, Kind::Read, format!("reads: {} left", sale.left));
        add(sale.wrote, Kind::Wrote, format!("sells, writes {}", sale.left - 1));
        line.spans.push(Span {
            actor: actor.clone(),
            state: State::Holds,
            from_us: micros(sale.locked),
            to_us: micros(sale.unlocked),
        });
        line.actors.push(actor);
    }
    line.events.sort_by_key(|event| event.at_us);
    if let (true, Some(last)) = (broken, line.events.last().cloned()) {
        let text = format!("piece {} is sold twice", two[0].left);
        line.events.push(Event { kind: Kind::Violated, text, ..last });
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(left: u64, at: u64) -> Sale {
        let at = |more| Instant::from_nanos((at + more) * 1000);
        let (locked, read, wrote, unlocked) = (at(0), at(1), at(2), at(3));
        Sale { instance: 0, locked, read, left, wrote, unlocked }
    }

    #[test]
    fn what_is_shown_is_the_first_piece_that_was_sold_twice() {
        let sales = [sale(9, 0), sale(8, 10), sale(7, 20), sale(8, 30), sale(7, 40)];
        let line = shown(&sales, Instant::from_nanos(0));
        assert_eq!(
            line.violation().map(|event| event.text.as_str()),
            Some("piece 8 is sold twice")
        );
        assert_eq!(line.violation().map(|event| event.at_us), Some(32));
        let line = shown(&sales[..3], Instant::from_nanos(0));
        assert_eq!(line.violation(), None);
        assert_eq!(line.actors.len(), 2);
    }
}
