//! A writer dies after its commit and before it deletes the entry.

use std::time::Duration;

use lockkeeper_cache::Strategy;

use crate::client::Client;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::recipe::Recipe;
use crate::servers::Program;
use crate::stage::{NEW, OLD, Stage, Stop, Stops, play};
use crate::timeline::{Kind, Timeline};

/// How long a value is kept where it has a time.
const TTL: Duration = Duration::from_secs(60);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "writer-dies",
    title: "A writer dies between its commit and the delete",
    about: "The delete after a commit may never come: the process ends, the network fails. The database has the \
            new value, the cache the old one, and nobody is left who knows. A time to live ends that some time. \
            Leases alone do not help, because nobody fills; a write that is announced before its commit does: \
            while nobody has said how it ended, the key is read from the database.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "update-then-delete",
            title: "UPDATE, then DEL",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(by_hand(stage, None)),
                    stays,
                ))
            },
        },
        Variant {
            name: "time-to-live",
            title: "The same, and entries end",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(by_hand(stage, Some(TTL))),
                    ends,
                ))
            },
        },
        Variant {
            name: "fill-lease",
            title: "Fill leases alone",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::FillLease),
                    |stage| Box::pin(dies(stage, Strategy::FillLease)),
                    unannounced,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: the write is announced before its commit",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(dies(stage, Strategy::Strong)),
                    announced,
                ))
            },
        },
    ],
};

async fn by_hand(stage: &Stage, ttl: Option<Duration>) -> Result<()> {
    let (mut reader, writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    reader.get().await?;
    let old = reader.select();
    reader.set(old, ttl).await?;
    writer.update(NEW);
    writer.actor.did(Kind::Crashed, "dies before the DEL");
    stage.late_readers().await?;
    if ttl.is_some() {
        stage.entry_ends().await?;
        stage.late_readers().await?;
    }
    Ok(())
}

fn stays(line: &Timeline) -> String {
    format!(
        "The writer committed {NEW} at {} and died. The entry had no end, and the cache kept {OLD}.",
        line.when("writer", Kind::Wrote)
    )
}

fn ends(line: &Timeline) -> String {
    format!(
        "The writer committed {NEW} at {} and died. Readers got {OLD} until the entry ended at {}; it \
         was to live for {} s, and the lab did not wait for that.",
        line.when("writer", Kind::Wrote),
        line.when("Redis", Kind::Expired),
        TTL.as_secs(),
    )
}

/// A writer in a process of its own, which ends after its commit.
async fn dies(stage: &Stage, strategy: Strategy) -> Result<()> {
    let settings = |table: lockkeeper_cache::Builder| table;
    let reader = stage.table_with("reader", Stops::default(), strategy, settings).await?;
    reader.read().await?;
    let (away, committed) = (stage.away(), Stop::after("the commit of the writer"));
    let stops = Stops { committed: Some(committed.clone()), ..Stops::default() };
    let writer = Client::start(move || async move {
        let writer = away.table_with("writer", stops, strategy, |table| table).await?;
        // Whatever of it still runs ends with the process.
        drop(writer.begin_write(NEW));
        committed.reached().await?;
        writer.actor.did(Kind::Crashed, "dies after its commit");
        std::mem::forget(writer);
        Ok(())
    })?;
    writer.end().await?;
    let late = stage.table_with("late reader", Stops::default(), strategy, settings).await?;
    stage.late_reads(&late).await
}

fn unannounced(line: &Timeline) -> String {
    format!(
        "The writer committed {NEW} at {} and died. It had told nobody, there was no fill that a lease could have \
         kept out, and readers got {OLD} from the cache.",
        line.when("writer", Kind::Wrote)
    )
}

fn announced(line: &Timeline) -> String {
    format!(
        "The write was announced, so the entry was gone when the writer committed {NEW} at {} and died. Readers got \
         {NEW} from the database. (An announcement that nobody ends is over after 30 s if nothing else is set, and only then \
         is the key cached again. The lab did not wait for that.)",
        line.when("writer", Kind::Wrote)
    )
}
