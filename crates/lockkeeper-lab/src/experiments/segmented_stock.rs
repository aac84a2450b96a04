//! One lock for a whole stock, and one for each of its segments.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper::clock::Instant;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::bench::{Bench, Redis, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, Timeline};

/// 200 pieces in 10 segments.
const PIECES: u64 = 200;
const SEGMENTS: u64 = 10;
/// So many buyers take one piece after the other until all are gone.
const BUYERS: u64 = 10;
/// What a sale takes besides: an order is written, under the lock if there is one.
const WORK: Duration = Duration::from_millis(1);
/// So often do two want five of six at the same time, where nothing forces the order.
const ROUNDS: u32 = 50;
/// What a request wants at once.
const MANY: u64 = 5;
/// How long who finds a lock taken waits before it asks again.
const AGAIN: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(30);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "segmented-stock",
    title: "One lock for the stock, or one for each segment of it",
    about: "One lock makes all buyers wait for each other. So the stock is cut into segments, with a lock \
            each: 200 pieces are 10 times 20, and ten can buy at once. A request for five pieces has to be split \
            when a segment has fewer, and that is left to the reader. Who asks its own segment alone is told \
            that all is sold while others are full; who gathers from one segment after the other can meet \
            another who does the same, and both give up although there was enough for one. Such a refusal is \
            what is counted here, and any piece that is sold twice. A script that takes from all segments in one \
            step needs no lock, and is not broken; that is what Lockkeeper's stock is. For the throughput ten \
            buyers then take 200 pieces one by one, with an order of 1 ms each: under the lock where there is \
            one, after the piece is taken where there is none, so those two figures are not of locks.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "own-segment",
            title: "A lock for each segment, each buyer at its own",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Way::OwnSegment)),
        },
        Variant {
            name: "gathered",
            title: "A lock for each segment, requests gathered from several",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Way::Gathered)),
        },
        Variant {
            name: "single-lock",
            title: "One lock for all",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Way::Single)),
        },
        Variant {
            name: "script",
            title: "No lock: a script takes from all segments in one step",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(scripted(bench)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: a stock in segments, no lock, each request in one step",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// Where buyers look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OwnSegment,
    Gathered,
    Single,
}

impl Way {
    fn segments(self) -> u64 {
        if self == Self::Single { 1 } else { SEGMENTS }
    }
}

/// The stock: a number in Redis for each segment, and a lock for each.
struct Segments<'a> {
    connection: MultiplexedConnection,
    bench: &'a Bench,
}

impl Segments<'_> {
    fn key(&self, segment: u64) -> String {
        self.bench.key(&format!("segment {segment}"))
    }

    /// Takes up to `amount` from a segment under its lock, or nothing if `all` of it is not there; how much.
    async fn take(&mut self, segment: u64, amount: u64, all: bool, who: &str) -> Result<u64> {
        let key = self.key(segment);
        let lock = format!("{key}:lock");
        while !set_nx(&mut self.connection, &lock, who, Some(TTL)).await? {
            tokio::time::sleep(AGAIN).await;
        }
        let there: u64 = self.connection.get(&key).await?;
        let taken = if all && there < amount { 0 } else { there.min(amount) };
        if taken > 0 {
            tokio::time::sleep(WORK).await;
            self.connection.set::<_, _, ()>(&key, there - taken).await?;
        }
        self.connection.del::<_, ()>(&lock).await?;
        Ok(taken)
    }

    /// Puts back what was taken in vain.
    async fn put(&mut self, segment: u64, amount: u64) -> Result<()> {
        Ok(self.connection.incr(self.key(segment), amount).await?)
    }

    /// What is there in all, by the checker: nobody is at it meanwhile.
    async fn left(&mut self, segments: u64) -> Result<u64> {
        let keys: Vec<String> = (0..segments).map(|segment| self.key(segment)).collect();
        let left: Vec<u64> = self.connection.mget(keys).await?;
        Ok(left.into_iter().sum())
    }

    async fn fill(&mut self, amounts: &[u64]) -> Result<()> {
        let amounts = (0..).zip(amounts).map(|(segment, amount)| (self.key(segment), *amount));
        let amounts: Vec<(String, u64)> = amounts.collect();
        Ok(self.connection.mset(&amounts).await?)
    }
}

/// Says that somebody was refused, and whether it should have been.
fn refused(scene: &Scene, who: &Actor, left: u64) {
    who.did(Kind::Refused, "is told: sold out");
    if left >= MANY {
        let text = format!("{} was refused {MANY} pieces, and {left} are there", who.name());
        scene.violation(who, text);
    }
}

async fn home_made(bench: &Bench, way: Way) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut stock = Segments { connection: redis.connect().await?, bench };
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let [one, two] = ["buyer 1", "buyer 2"].map(|name| scene.actor(name));
    match way {
        Way::OwnSegment => own_segment(&scene, &one, &mut stock).await?,
        Way::Gathered => gathered(&scene, [&one, &two], &mut stock).await?,
        Way::Single => single(&scene, [&one, &two], &mut stock).await?,
    }
    let segments = way.segments();
    stock.fill(&vec![PIECES / segments; usize::try_from(segments).unwrap_or(1)]).await?;
    let since = Instant::now();
    let buying = (0..BUYERS).map(|buyer| buy_all(&redis, bench, buyer, segments));
    let sold: Vec<Vec<Duration>> = try_join_all(buying).await?;
    tally.within(Instant::now().since(since));
    let left = stock.left(segments).await?;
    check(&scene, sold.iter().map(Vec::len).sum(), left);
    tally.operations(sold.concat());
    tally.run(&scene);
    Ok(tally.end(|line| told(line, way)))
}

/// Every piece is sold once, or something is wrong.
fn check(scene: &Scene, sold: usize, left: u64) {
    let sold = u64::try_from(sold).unwrap_or(u64::MAX);
    if sold + left != PIECES {
        let checker = scene.actor("checker");
        let text = format!("{sold} of {PIECES} were sold, and {left} are left");
        scene.violation(&checker, text);
    }
}

/// Segment 0 has three left, and the others are full.
async fn own_segment(scene: &Scene, one: &Actor, stock: &mut Segments<'_>) -> Result<()> {
    let mut amounts = [PIECES / SEGMENTS; 10];
    amounts[0] = 3;
    stock.fill(&amounts).await?;
    one.did(Kind::Read, format!("wants {MANY}; its segment has 3"));
    if stock.take(0, MANY, true, one.name()).await? == 0 {
        let left = stock.left(SEGMENTS).await?;
        refused(scene, one, left);
    }
    Ok(())
}

/// Two segments have three each, the others none; each buyer begins at another one.
async fn gathered(scene: &Scene, who: [&Actor; 2], stock: &mut Segments<'_>) -> Result<()> {
    let mut amounts = [0; 10];
    amounts[..2].fill(3);
    stock.fill(&amounts).await?;
    let mut taken = [0; 2];
    // The critical point: each has the first part of its request before anybody asks for the rest.
    for ((segment, actor), taken) in (0..).zip(who).zip(&mut taken) {
        *taken = stock.take(segment, MANY, false, actor.name()).await?;
        actor.did(Kind::Took, format!("takes {taken} from segment {segment}"));
    }
    for ((segment, actor), taken) in (0..).zip(who).zip(taken) {
        let more = stock.take(1 - segment, MANY - taken, true, actor.name()).await?;
        actor.did(Kind::Read, format!("takes {more} from segment {}", 1 - segment));
        if taken + more == MANY {
            return Err(Error::Other("a buyer got what was not there".into()));
        }
    }
    for ((segment, actor), taken) in (0..).zip(who).zip(taken) {
        stock.put(segment, taken).await?;
        actor.did(Kind::Released, format!("puts {taken} back"));
    }
    let left = stock.left(SEGMENTS).await?;
    // One of them had to get it.
    refused(scene, who[0], 0);
    refused(scene, who[1], left);
    Ok(())
}

/// The same six pieces in one heap.
async fn single(scene: &Scene, who: [&Actor; 2], stock: &mut Segments<'_>) -> Result<()> {
    stock.fill(&[6]).await?;
    for actor in who {
        if stock.take(0, MANY, true, actor.name()).await? == MANY {
            actor.did(Kind::Took, format!("takes {MANY}"));
        } else {
            let left = stock.left(1).await?;
            refused(scene, actor, left);
        }
    }
    Ok(())
}

/// Takes one piece after the other, from its own segment first and then from those after it.
async fn buy_all(redis: &Redis, bench: &Bench, buyer: u64, segments: u64) -> Result<Vec<Duration>> {
    let mut stock = Segments { connection: redis.connect().await?, bench };
    let (name, mut took) = (format!("buyer {}", buyer + 1), Vec::new());
    let (mut since, mut empty) = (Instant::now(), 0);
    while empty < segments {
        let segment = (buyer + empty) % segments;
        if stock.take(segment, 1, true, &name).await? == 1 {
            took.push(Instant::now().since(since));
            since = Instant::now();
        } else {
            empty += 1;
        }
    }
    Ok(took)
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let segments = usize::try_from(SEGMENTS).unwrap_or(1);
    let processes = [redis.locks().await?, redis.locks().await?];
    for round in 0..ROUNDS {
        let scene = Scene::new();
        let six = bench.key(&format!("six-{round}"));
        let [one, two] = [0, 1].map(|at: usize| processes[at].stock(&six, segments));
        // A few in each of several segments, as above.
        one.restock(6).await?;
        let (first, second) = tokio::try_join!(one.take(MANY), two.take(MANY))?;
        let left = one.remaining().await?;
        at_once(&scene, [first, second], left);
        tally.run(&scene);
    }
    let all = bench.key("all");
    redis.locks().await?.stock(&all, segments).restock(PIECES).await?;
    let mut stocks = Vec::new();
    for _ in 0..BUYERS {
        stocks.push(redis.locks().await?.stock(&all, segments));
    }
    let since = Instant::now();
    let buying = stocks.iter().map(|stock| async {
        let (mut took, mut since) = (Vec::new(), Instant::now());
        while stock.take(1).await? {
            // The order, for which nobody has to wait.
            tokio::time::sleep(WORK).await;
            took.push(Instant::now().since(since));
            since = Instant::now();
        }
        Ok::<_, Error>(took)
    });
    let sold: Vec<Vec<Duration>> = try_join_all(buying).await?;
    tally.within(Instant::now().since(since));
    check(&scene, sold.iter().map(Vec::len).sum(), stocks[0].remaining().await?);
    tally.operations(sold.concat());
    tally.run(&scene);
    Ok(tally.end(told_at_once))
}

/// Two have asked for five of six at the same time: one of them has them, and one piece is left.
fn at_once(scene: &Scene, got: [bool; 2], left: u64) {
    let took = got.iter().filter(|got| **got).count();
    for (name, got) in ["buyer 1", "buyer 2"].into_iter().zip(got) {
        let actor = scene.actor(name);
        if got {
            actor.did(Kind::Took, format!("takes {MANY}"));
        } else {
            // Of two who are refused, one had to be: there was not enough for both.
            let left = if took == 0 && name == "buyer 1" { 0 } else { left };
            refused(scene, &actor, left);
        }
    }
    let taken = if took == 0 { 0 } else { MANY };
    if took > 1 || taken + left != 6 {
        let text = format!("{took} of two took {MANY} of 6, and {left} are left");
        scene.violation(&scene.actor("checker"), text);
    }
}

fn told_at_once(line: &Timeline) -> String {
    let one = line.first("buyer 1", Kind::Took).is_some();
    let (got, not) = if one { ("Buyer 1", "buyer 2") } else { ("Buyer 2", "buyer 1") };
    format!(
        "Six pieces were there, and two buyers asked for five at the same time. {got} took them in one step over the \
         segments; {not} was refused, as one was left. So it was in {ROUNDS} rounds. Then {BUYERS} buyers took \
         {PIECES} pieces, each once."
    )
}

/// Takes all of an amount from the segments from the first on, or nothing.
const TAKE: &str = "
    local wanted, there = tonumber(ARGV[1]), {}
    local sum = 0
    for at, key in ipairs(KEYS) do
        there[at] = tonumber(redis.call('GET', key))
        sum = sum + there[at]
    end
    if sum < wanted then return 0 end
    for at, key in ipairs(KEYS) do
        local taken = math.min(there[at], wanted)
        if taken > 0 then redis.call('DECRBY', key, taken) end
        wanted = wanted - taken
    end
    return 1";

/// Takes by the script; whether all of it was there.
async fn take(script: &redis::Script, stock: &mut Segments<'_>, amount: u64) -> Result<bool> {
    let mut call = script.prepare_invoke();
    for segment in 0..SEGMENTS {
        call.key(stock.key(segment));
    }
    Ok(call.arg(amount).invoke_async(&mut stock.connection).await?)
}

/// The same by a script of one's own.
async fn scripted(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let (scene, mut tally, script) = (Scene::new(), Tally::new(), redis::Script::new(TAKE));
    let mut stock = Segments { connection: redis.connect().await?, bench };
    let mut other = Segments { connection: redis.connect().await?, bench };
    for _ in 0..ROUNDS {
        let scene = Scene::new();
        let mut amounts = [0; 10];
        amounts[..2].fill(3);
        stock.fill(&amounts).await?;
        let got =
            tokio::try_join!(take(&script, &mut stock, MANY), take(&script, &mut other, MANY))?;
        let left = stock.left(SEGMENTS).await?;
        at_once(&scene, got.into(), left);
        tally.run(&scene);
    }
    stock.fill(&[PIECES / SEGMENTS; 10]).await?;
    let mut stocks = Vec::new();
    for _ in 0..BUYERS {
        stocks.push(Segments { connection: redis.connect().await?, bench });
    }
    let since = Instant::now();
    let buying = stocks.iter_mut().map(|stock| async {
        let (mut took, mut since) = (Vec::new(), Instant::now());
        while take(&script, stock, 1).await? {
            // The order, for which nobody has to wait.
            tokio::time::sleep(WORK).await;
            took.push(Instant::now().since(since));
            since = Instant::now();
        }
        Ok::<_, Error>(took)
    });
    let sold: Vec<Vec<Duration>> = try_join_all(buying).await?;
    tally.within(Instant::now().since(since));
    check(&scene, sold.iter().map(Vec::len).sum(), stock.left(SEGMENTS).await?);
    tally.operations(sold.concat());
    tally.run(&scene);
    Ok(tally.end(told_at_once))
}

fn told(line: &Timeline, way: Way) -> String {
    let first = match way {
        Way::OwnSegment => format!(
            "Buyer 1 wanted five pieces. Its segment had three, so it was told at {} that all is sold; the \
             other segments were full.",
            line.when("buyer 1", Kind::Refused)
        ),
        Way::Gathered => format!(
            "Two segments had three pieces each, and two buyers wanted five. Buyer 1 took three of the one at {}, \
             buyer 2 three of the other at {}; neither found the rest, both put theirs back, and nobody got \
             anything.",
            line.when("buyer 1", Kind::Took),
            line.when("buyer 2", Kind::Took),
        ),
        Way::Single => format!(
            "Six pieces were there. Buyer 1 took five at {}; buyer 2 was refused at {}, when one was left.",
            line.when("buyer 1", Kind::Took),
            line.when("buyer 2", Kind::Refused),
        ),
    };
    let locks = way.segments();
    let locks = if locks == 1 { "one lock".into() } else { format!("{locks} locks") };
    format!("{first} Then {BUYERS} buyers took {PIECES} pieces one by one, under {locks}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_if_there_was_enough() {
        let scene = Scene::new();
        let one = scene.actor("one");
        refused(&scene, &one, MANY - 1);
        assert_eq!(scene.violations(), 0);
        refused(&scene, &one, MANY);
        assert_eq!(scene.violations(), 1);
    }

    #[test]
    fn of_two_who_want_five_of_six_one_gets_them() {
        let count = |got, left| {
            let scene = Scene::new();
            at_once(&scene, got, left);
            scene.violations()
        };
        assert_eq!(count([true, false], 1), 0);
        assert_eq!(count([false, true], 1), 0);
        assert_eq!(count([false, false], 6), 1, "nobody got anything");
        assert_eq!(count([true, true], 0), 1, "ten of six");
        assert_eq!(count([true, false], 2), 1, "a piece too many");
    }

    #[test]
    fn every_piece_is_sold_once_or_left() {
        let scene = Scene::new();
        check(&scene, 190, 10);
        assert_eq!(scene.violations(), 0);
        check(&scene, 201, 0);
        check(&scene, 199, 0);
        assert_eq!(scene.violations(), 2);
    }
}
