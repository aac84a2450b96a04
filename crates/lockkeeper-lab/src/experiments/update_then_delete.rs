//! A reader that was slow fills the cache with what it read before the last write.

use std::time::Duration;

use lockkeeper_cache::Strategy;

use crate::bench::set_nx;
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
    name: "update-then-delete",
    title: "A slow reader fills the cache with the old value after it was deleted",
    about: "The usual recipe: who writes changes the database and deletes the entry; who reads and finds \
            none reads the database and sets it. A reader that read the database just before the write, and \
            sets the cache just after the delete, puts the old value there for good. It takes a delay at one \
            place, and nobody is told.",
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
                    |stage| Box::pin(for_ever(stage)),
                    filled_late,
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
                    |stage| Box::pin(for_a_time(stage)),
                    healed,
                ))
            },
        },
        Variant {
            name: "mutex",
            title: "Reads and writes of a key under one lock",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDeleteLocked,
                    |stage| Box::pin(locked(stage)),
                    waited,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: a fill needs a lease, and a write takes it away",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(lockkeeper(stage)),
                    dropped,
                ))
            },
        },
    ],
};

async fn late_fill(stage: &Stage, ttl: Option<Duration>) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    reader.get().await?;
    let old = reader.select();
    // The critical point: the whole write happens here.
    writer.update(NEW);
    writer.delete().await?;
    writer.done(NEW);
    reader.set(old, ttl).await?;
    stage.by_hand("late reader").read().await?;
    Ok(())
}

async fn for_ever(stage: &Stage) -> Result<()> {
    late_fill(stage, None).await?;
    stage.all_is_quiet().await
}

fn filled_late(line: &Timeline) -> String {
    format!(
        "The reader found nothing and read {OLD} from the database. Before it set that, the writer wrote {NEW} \
         at {} and deleted the entry at {}. Then the reader set {OLD}, and there it stayed.",
        line.when("writer", Kind::Wrote),
        line.when("writer", Kind::Deleted),
    )
}

async fn for_a_time(stage: &Stage) -> Result<()> {
    late_fill(stage, Some(TTL)).await?;
    stage.entry_ends().await?;
    stage.all_is_quiet().await
}

fn healed(line: &Timeline) -> String {
    format!(
        "The reader set {OLD} at {}, after {NEW} was written, and until the entry ended at {} readers got the \
         old value. It was to live for {} s, and the lab did not wait for that. An end makes the harm shorter; it does not \
         prevent it.",
        line.when("reader", Kind::Wrote),
        line.when("Redis", Kind::Expired),
        TTL.as_secs(),
    )
}

async fn locked(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    let key = format!("{}:lock", stage.key);
    set_nx(&mut reader.connection, &key, "reader", None).await?;
    reader.actor.did(Kind::Took, "takes the lock");
    reader.actor.believes();
    reader.get().await?;
    let old = reader.select();
    if set_nx(&mut writer.connection, &key, "writer", None).await? {
        stage.scene.violation(&writer.actor, "the writer got a lock that the reader has");
    }
    writer.actor.did(Kind::Refused, "the lock is taken");
    reader.set(old, None).await?;
    reader.actor.believes_no_more();
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut reader.connection).await?;
    reader.actor.did(Kind::Released, "gives it back");
    set_nx(&mut writer.connection, &key, "writer", None).await?;
    writer.actor.did(Kind::Took, "takes the lock");
    writer.actor.believes();
    writer.update(NEW);
    writer.delete().await?;
    writer.actor.believes_no_more();
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut writer.connection).await?;
    writer.actor.did(Kind::Released, "gives it back");
    writer.done(NEW);
    stage.late_readers().await
}

fn waited(line: &Timeline) -> String {
    format!(
        "The writer could not begin before the reader gave the lock back at {}, so its delete came after the \
         fill. It holds as long as no lock is lost; all reads of the key stand in line, hits too.",
        line.when("reader", Kind::Released)
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
    loaded.let_go();
    reading.end().await?;
    reader.has_filled().await?;
    stage.late_readers_of_table().await
}

fn dropped(line: &Timeline) -> String {
    format!(
        "The reader loaded {OLD} at {} and was held up until the write was over. By then the write had taken its \
         lease away, so what it filled was dropped, and the next reader loaded {NEW}.",
        line.when("reader", Kind::Read)
    )
}
