//! What keeps a late fill out, and what only seems to.

use std::time::Duration;

use lockkeeper_cache::Strategy;

use crate::bench::Bench;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::recipe::Recipe;
use crate::servers::{Program, Server};
use crate::stage::{NEW, OLD, Stage, Stop, Stops, play};
use crate::timeline::{Kind, Timeline};

/// How long a lease lives where it is to end.
const LEASE: Duration = Duration::from_millis(50);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fill-lease",
    title: "A late fill against conditions on the SET, and against leases",
    about: "The root of it: reading the database and filling the cache are not one step. A \
            condition on the SET looks like a remedy, but after a delete there is nothing left to compare \
            with. A lease is that something: a reader gets one when it finds nothing, a write takes it away, \
            and the store takes no fill without it, also when the lease has ended or the store was restarted.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "set",
            title: "The reader sets",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(late(stage, How::Set)),
                    set,
                ))
            },
        },
        Variant {
            name: "set-nx",
            title: "The reader sets only if nothing is there",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(late(stage, How::IfAbsent)),
                    set_nx,
                ))
            },
        },
        Variant {
            name: "compare-versions",
            title: "The reader sets only over an older version",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(late(stage, How::IfNewer)),
                    newer,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: the lease is taken away by the write",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(taken(stage)),
                    taken_story,
                ))
            },
        },
        Variant {
            name: "lockkeeper-lease-ends",
            title: "Lockkeeper: the lease ends, another reader fills, then comes the write",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(ends(stage)),
                    ends_story,
                ))
            },
        },
        Variant {
            name: "lockkeeper-cache-restarts",
            title: "Lockkeeper: the cache is restarted empty and has forgotten all leases",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(restarted(bench)),
        },
    ],
};

/// How the reader fills.
#[derive(Clone, Copy)]
enum How {
    Set,
    IfAbsent,
    IfNewer,
}

/// Sets the value unless the one that is there is as new: values grow with their versions here.
const IF_NEWER: &str = "local there = redis.call('GET', KEYS[1])
if there and tonumber(there) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1";

async fn late(stage: &Stage, how: How) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    reader.get().await?;
    let old = reader.select();
    writer.update(NEW);
    writer.delete().await?;
    writer.done(NEW);
    match how {
        How::Set => reader.set(old, None).await?,
        How::IfAbsent => {
            let mut set = redis::cmd("SET");
            set.arg(&stage.key).arg(old).arg("NX");
            let done: Option<String> = set.query_async(&mut reader.connection).await?;
            let answer = done.unwrap_or_else(|| "nil".into());
            reader.actor.did(Kind::Wrote, format!("SET {old} NX → {answer}"));
        }
        How::IfNewer => {
            let script = redis::Script::new(IF_NEWER);
            let mut call = script.key(&stage.key);
            let done: u64 = call.arg(old).invoke_async(&mut reader.connection).await?;
            reader.actor.did(Kind::Wrote, format!("sets {old} if newer → {done}"));
        }
    }
    stage.late_readers().await
}

fn set(line: &Timeline) -> String {
    format!(
        "The entry was deleted at {}, and set again to {OLD} at {} by a reader that had read before.",
        line.when("writer", Kind::Deleted),
        line.when("reader", Kind::Wrote),
    )
}

fn set_nx(line: &Timeline) -> String {
    format!(
        "The delete at {} left nothing there, so NX let {OLD} in at {}.",
        line.when("writer", Kind::Deleted),
        line.when("reader", Kind::Wrote),
    )
}

fn newer(line: &Timeline) -> String {
    format!(
        "With the entry, deleted at {}, its version was gone too: there was nothing that {OLD} could have been older \
         than when it was set at {}.",
        line.when("writer", Kind::Deleted),
        line.when("reader", Kind::Wrote),
    )
}

async fn taken(stage: &Stage) -> Result<()> {
    let loaded = Stop::after("the load of the reader");
    let stops = Stops { loaded: Some(loaded.clone()), ..Stops::default() };
    let reader = stage.table("reader", stops).await?;
    let writer = stage.table("writer", Stops::default()).await?;
    let reading = reader.begin_read();
    loaded.reached().await?;
    writer.write(NEW).await?;
    loaded.let_go();
    reading.end().await?;
    reader.has_filled().await?;
    stage.late_readers_of_table().await
}

fn taken_story(line: &Timeline) -> String {
    format!(
        "The reader had a lease and loaded {OLD} at {}. The write, done at {}, took the lease away, and at {} the \
         reader knew that the store had dropped its fill.",
        line.when("reader", Kind::Read),
        line.when("writer", Kind::Noted),
        line.when("reader", Kind::Noted),
    )
}

async fn ends(stage: &Stage) -> Result<()> {
    let loaded = Stop::after("the load of the reader");
    let stops = Stops { loaded: Some(loaded.clone()), ..Stops::default() };
    let short = |table: lockkeeper_cache::Builder| table.lease(LEASE);
    let reader = stage.table_with("reader", stops, Strategy::default(), short).await?;
    let reading = reader.begin_read();
    loaded.reached().await?;
    // It waits for the reader until that one's lease has ended, and then loads itself.
    let other = stage.table("other reader", Stops::default()).await?;
    other.read().await?;
    let writer = stage.table("writer", Stops::default()).await?;
    writer.write(NEW).await?;
    loaded.let_go();
    reading.end().await?;
    reader.has_filled().await?;
    stage.late_readers_of_table().await
}

fn ends_story(line: &Timeline) -> String {
    format!(
        "The reader loaded {OLD} at {} and was held up. Its lease of {} ms ended, the other reader loaded at {} and \
         filled, the writer wrote {NEW} at {}; what the first one had to fill came last and was dropped.",
        line.when("reader", Kind::Read),
        LEASE.as_millis(),
        line.when("other reader", Kind::Read),
        line.when("writer", Kind::Wrote),
    )
}

/// On a server of its own, which is killed.
async fn restarted(bench: &Bench) -> Result<Outcome> {
    let mut tally = Tally::new();
    let mut server = Server::redis(&[]).await?;
    for run in 0..3 {
        let stage = Stage::at(&server.url(), bench.key(&format!("price:{run}"))).await?;
        restarted_once(&stage, &mut server).await?;
        stage.end(&mut tally);
    }
    Ok(tally.end(|line| {
        format!(
            "The reader loaded {OLD} at {}; at {} the cache was killed, and it came back with nothing. The writer \
             wrote {NEW} at {}. The lease of the reader was of a server that is no more, and nothing of what it loaded came into the cache.",
            line.when("reader", Kind::Read),
            line.when("Redis", Kind::Crashed),
            line.when("writer", Kind::Wrote),
        )
    }))
}

async fn restarted_once(stage: &Stage, server: &mut Server) -> Result<()> {
    let loaded = Stop::after("the load of the reader");
    let stops = Stops { loaded: Some(loaded.clone()), ..Stops::default() };
    let reader = stage.table("reader", stops).await?;
    let redis = stage.scene.actor("Redis");
    let reading = reader.begin_read();
    loaded.reached().await?;
    server.kill()?;
    redis.did(Kind::Crashed, "is killed");
    server.start_again().await?;
    redis.did(Kind::Resumed, "is back, and empty");
    let writer = stage.table("writer", Stops::default()).await?;
    writer.write(NEW).await?;
    loaded.let_go();
    reading.end().await?;
    stage.late_readers_of_table().await
}
