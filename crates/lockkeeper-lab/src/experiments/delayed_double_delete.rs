//! The entry is deleted before the change and once more a while after it. How long is a while?

use std::time::Duration;

use lockkeeper_cache::Strategy;

use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::recipe::Recipe;
use crate::servers::Program;
use crate::stage::{NEW, OLD, Stage, Stop, Stops, play};
use crate::timeline::{Kind, State, Timeline};

/// How long after the change the second delete comes.
const DELAY: Duration = Duration::from_millis(10);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "delayed-double-delete",
    title: "The second delete comes too early, too late, or not at all",
    about: "Delayed double delete removes what slow readers filled, with a second delete a while after the \
            change. No delay is right: a reader that is held up for longer fills after it. If the writer \
            waits, every write takes that long; if it does not, readers get the old value until then; and a \
            writer that dies in between never deletes.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "delay-too-short",
            title: "DEL, UPDATE, wait, DEL; a reader is slower than that",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::DoubleDelete(DELAY),
                    |stage| Box::pin(too_short(stage)),
                    slower,
                ))
            },
        },
        Variant {
            name: "delay-long-enough",
            title: "The same; the reader is quicker",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::DoubleDelete(DELAY),
                    |stage| Box::pin(long_enough(stage)),
                    quicker,
                ))
            },
        },
        Variant {
            name: "in-the-background",
            title: "The same, and the writer does not wait for the second delete",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::DeleteUpdate,
                    |stage| Box::pin(background(stage)),
                    meanwhile,
                ))
            },
        },
        Variant {
            name: "second-delete-lost",
            title: "The same, and the writer dies before it",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(bench, Recipe::DeleteUpdate, |stage| Box::pin(lost(stage)), never))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: no delay; a fill without a lease is dropped",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(lockkeeper(stage)),
                    no_delay,
                ))
            },
        },
    ],
};

async fn too_short(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    reader.get().await?;
    let old = reader.select();
    reader.actor.begins(State::Paused);
    writer.update(NEW);
    tokio::time::sleep(DELAY).await;
    writer.delete().await?;
    writer.done(NEW);
    // The critical point: it was held up for longer than the writer waited.
    reader.actor.ends(State::Paused);
    reader.set(old, None).await?;
    stage.late_readers().await
}

fn slower(line: &Timeline) -> String {
    format!(
        "The reader read {OLD} before the change, and set it at {}, after the second delete. The writer had waited \
         for {} ms in vain, and the cache kept {OLD}.",
        line.when("reader", Kind::Wrote),
        DELAY.as_millis(),
    )
}

async fn long_enough(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    reader.get().await?;
    let old = reader.select();
    writer.update(NEW);
    reader.set(old, None).await?;
    tokio::time::sleep(DELAY).await;
    writer.delete().await?;
    writer.done(NEW);
    stage.late_readers().await
}

fn quicker(line: &Timeline) -> String {
    format!(
        "The reader set {OLD} at {}, while the writer still waited, and the second delete took it away. That the \
         reader was quicker was luck, and the write took {} ms longer for it.",
        line.when("reader", Kind::Wrote),
        DELAY.as_millis(),
    )
}

async fn background(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    reader.get().await?;
    let old = reader.select();
    writer.update(NEW);
    writer.done(NEW);
    reader.set(old, None).await?;
    stage.by_hand("late reader").read().await?;
    tokio::time::sleep(DELAY).await;
    writer.delete().await?;
    stage.all_is_quiet().await
}

fn meanwhile(line: &Timeline) -> String {
    format!(
        "The writer was done at {}, and the second delete came {} ms later. In between the reader set {OLD}, and who \
         read then got it although {NEW} was written.",
        line.when("writer", Kind::Noted),
        DELAY.as_millis(),
    )
}

async fn lost(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    writer.delete().await?;
    reader.get().await?;
    let old = reader.select();
    writer.update(NEW);
    writer.done(NEW);
    reader.set(old, None).await?;
    writer.actor.did(Kind::Crashed, "dies before the second delete");
    stage.late_readers().await
}

fn never(line: &Timeline) -> String {
    format!(
        "The writer was done at {} and died at {}, before its second delete. What the reader set stayed for good.",
        line.when("writer", Kind::Noted),
        line.when("writer", Kind::Crashed),
    )
}

async fn lockkeeper(stage: &Stage) -> Result<()> {
    let loaded = Stop::after("the load of the reader");
    let stops = Stops { loaded: Some(loaded.clone()), ..Stops::default() };
    let reader = stage.table("reader", stops).await?;
    let writer = stage.table("writer", Stops::default()).await?;
    let reading = reader.begin_read();
    loaded.reached().await?;
    writer.write(NEW).await?;
    // As slow as the first one.
    tokio::time::sleep(DELAY).await;
    loaded.let_go();
    reading.end().await?;
    reader.has_filled().await?;
    stage.late_readers_of_table().await
}

fn no_delay(line: &Timeline) -> String {
    format!(
        "The reader loaded {OLD} at {}, and was held up for more than {} ms after the write was done at {}. Its lease \
         was gone by then, so nothing was filled, and the writer had not waited for anybody.",
        line.when("reader", Kind::Read),
        DELAY.as_millis(),
        line.when("writer", Kind::Noted),
    )
}
