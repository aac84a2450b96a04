//! The entry is deleted first; before the database is changed, a reader fills it again.

use std::time::Duration;

use lockkeeper_cache::Strategy;

use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::recipe::Recipe;
use crate::servers::Program;
use crate::stage::{NEW, OLD, Stage, Stop, Stops, play};
use crate::timeline::{Kind, Timeline};

/// How long the writer waits before it deletes once more.
const DELAY: Duration = Duration::from_millis(10);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "delete-then-update",
    title: "A reader fills the cache again between the delete and the update",
    about: "Who deletes the entry before the change of the database invites the next reader to put the old \
            value back: it finds nothing, reads the database, which is not changed yet, and sets that. When \
            the change is committed nobody deletes any more.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "delete-then-update",
            title: "DEL, then UPDATE",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::DeleteUpdate,
                    |stage| Box::pin(delete_first(stage)),
                    refilled,
                ))
            },
        },
        Variant {
            name: "double-delete",
            title: "DEL, UPDATE, wait, DEL",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::DoubleDelete(DELAY),
                    |stage| Box::pin(delete_twice(stage)),
                    deleted_again,
                ))
            },
        },
        Variant {
            name: "update-then-delete",
            title: "UPDATE, then DEL, in the same order of reads",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(delete_last(stage)),
                    other_order,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: while a write is announced nothing is filled",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(lockkeeper(stage)),
                    announced,
                ))
            },
        },
    ],
};

/// The old value is cached.
async fn warm(stage: &Stage) -> Result<()> {
    stage.by_hand("reader").read().await?;
    Ok(())
}

async fn delete_first(stage: &Stage) -> Result<()> {
    warm(stage).await?;
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    // The critical point.
    reader.read().await?;
    writer.update(NEW);
    writer.done(NEW);
    stage.late_readers().await
}

fn refilled(line: &Timeline) -> String {
    format!(
        "The writer deleted the entry at {} and changed the database at {}. In between the reader found nothing, \
         read {OLD} and set it; readers got {OLD} from then on.",
        line.when("writer", Kind::Deleted),
        line.when("writer", Kind::Wrote),
    )
}

async fn delete_twice(stage: &Stage) -> Result<()> {
    warm(stage).await?;
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    reader.read().await?;
    writer.update(NEW);
    tokio::time::sleep(DELAY).await;
    writer.delete().await?;
    writer.done(NEW);
    stage.late_readers().await
}

fn deleted_again(line: &Timeline) -> String {
    format!(
        "The reader filled {OLD} between the first delete at {} and the update; the second delete, {} ms after \
         the update, took it away. Every write waits for so long, and a slower reader gets through: see \
         delayed-double-delete.",
        line.when("writer", Kind::Deleted),
        DELAY.as_millis(),
    )
}

async fn delete_last(stage: &Stage) -> Result<()> {
    warm(stage).await?;
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.update(NEW);
    reader.read().await?;
    writer.delete().await?;
    writer.done(NEW);
    stage.late_readers().await
}

fn other_order(line: &Timeline) -> String {
    format!(
        "The reader came between the update at {} and the delete at {}: it got {OLD}, but nobody had been told of \
         {NEW} yet, and what it got was deleted. In another order this breaks as well: see update-then-delete.",
        line.when("writer", Kind::Wrote),
        line.when("writer", Kind::Deleted),
    )
}

async fn lockkeeper(stage: &Stage) -> Result<()> {
    let announced = Stop::after("the announcement of the write");
    let stops = Stops { announced: Some(announced.clone()), ..Stops::default() };
    let reader = stage.table("reader", Stops::default()).await?;
    let writer = stage.table("writer", stops).await?;
    reader.read().await?;
    let writing = writer.begin_write(NEW);
    announced.reached().await?;
    writer.actor.did(Kind::Noted, "has announced its write");
    reader.read().await?;
    announced.let_go();
    writing.end().await?;
    stage.late_readers_of_table().await
}

fn announced(line: &Timeline) -> String {
    format!(
        "The write was announced at {}, which took the entry away as the first delete does. The reader that came \
         before the commit was served from the database, and filled nothing; after the commit at {} readers got \
         {NEW}.",
        line.when("writer", Kind::Noted),
        line.when("writer", Kind::Wrote),
    )
}
