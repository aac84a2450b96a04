//! Two writers change the database and then set the cache, in the other order.

use lockkeeper_cache::Strategy;

use crate::bench::set_nx;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::recipe::Recipe;
use crate::servers::Program;
use crate::stage::{ByHand, NEW, NEWER, Stage, Stop, Stops, play};
use crate::timeline::{Kind, Timeline};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "update-then-set",
    title: "Two writers set the cache in another order than the database",
    about: "Who writes the database and then the cache makes two writes that do not belong together. Between \
            the two another writer may do both: the cache then ends with the value of the first, the database \
            with that of the second, and every reader gets the wrong one until somebody writes again. To set \
            the cache first only turns it round.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "update-then-set",
            title: "UPDATE, then SET",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateSet,
                    |stage| Box::pin(update_then_set(stage)),
                    late_set,
                ))
            },
        },
        Variant {
            name: "set-then-update",
            title: "SET, then UPDATE",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::SetUpdate,
                    |stage| Box::pin(set_then_update(stage)),
                    late_update,
                ))
            },
        },
        Variant {
            name: "mutex",
            title: "UPDATE and SET under a lock",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateSetLocked,
                    |stage| Box::pin(locked(stage)),
                    one_by_one,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: writers invalidate, and nobody sets what it wrote",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(lockkeeper(stage)),
                    invalidated,
                ))
            },
        },
    ],
};

async fn update_then_set(stage: &Stage) -> Result<()> {
    let (mut one, mut two) = (stage.by_hand("writer 1"), stage.by_hand("writer 2"));
    one.update(NEW);
    // The critical point: the other one is quicker.
    two.update(NEWER);
    two.set(NEWER, None).await?;
    two.done(NEWER);
    one.set(NEW, None).await?;
    one.done(NEW);
    stage.late_readers().await
}

fn late_set(line: &Timeline) -> String {
    format!(
        "Both writers changed the database, writer 2 last, at {}; but writer 1 came to set the cache only \
         after writer 2 was done. The cache kept {NEW}, and the database had {NEWER}.",
        line.when("writer 2", Kind::Wrote)
    )
}

async fn set_then_update(stage: &Stage) -> Result<()> {
    let (mut one, mut two) = (stage.by_hand("writer 1"), stage.by_hand("writer 2"));
    one.set(NEW, None).await?;
    two.set(NEWER, None).await?;
    two.update(NEWER);
    two.done(NEWER);
    one.update(NEW);
    one.done(NEW);
    stage.late_readers().await
}

fn late_update(line: &Timeline) -> String {
    format!(
        "Writer 1 set the cache at {}, writer 2 right after it; then writer 2 changed the database first, and \
         writer 1 last. The cache kept {NEWER}, and the database had {NEW}.",
        line.when("writer 1", Kind::Wrote)
    )
}

/// A lock which nobody loses here.
async fn lock(writer: &mut ByHand<'_>, key: &str) -> Result<bool> {
    let got = set_nx(&mut writer.connection, key, writer.actor.name(), None).await?;
    if got {
        writer.actor.did(Kind::Took, "takes the lock");
        writer.actor.believes();
    } else {
        writer.actor.did(Kind::Refused, "the lock is taken");
    }
    Ok(got)
}

async fn unlock(writer: &mut ByHand<'_>, key: &str) -> Result<()> {
    writer.actor.believes_no_more();
    redis::cmd("DEL").arg(key).query_async::<()>(&mut writer.connection).await?;
    writer.actor.did(Kind::Released, "gives it back");
    Ok(())
}

async fn locked(stage: &Stage) -> Result<()> {
    let (mut one, mut two) = (stage.by_hand("writer 1"), stage.by_hand("writer 2"));
    let key = format!("{}:lock", stage.key);
    lock(&mut one, &key).await?;
    one.update(NEW);
    if lock(&mut two, &key).await? {
        stage.scene.violation(&two.actor, "writer 2 got a lock that writer 1 has");
    }
    one.set(NEW, None).await?;
    unlock(&mut one, &key).await?;
    one.done(NEW);
    lock(&mut two, &key).await?;
    two.update(NEWER);
    two.set(NEWER, None).await?;
    unlock(&mut two, &key).await?;
    two.done(NEWER);
    stage.late_readers().await
}

fn one_by_one(line: &Timeline) -> String {
    format!(
        "Writer 2 wanted to write between the two steps of writer 1, and had to wait until writer 1 gave the \
         lock back at {}. It holds as long as no lock is lost, and all writers of a key stand in line.",
        line.when("writer 1", Kind::Released)
    )
}

async fn lockkeeper(stage: &Stage) -> Result<()> {
    let committed = Stop::after("the commit of writer 1");
    let stops = Stops { committed: Some(committed.clone()), ..Stops::default() };
    let one = stage.table("writer 1", stops).await?;
    let two = stage.table("writer 2", Stops::default()).await?;
    // Cached before, so that there is something that could be left behind.
    two.read().await?;
    let writing = one.begin_write(NEW);
    committed.reached().await?;
    two.write(NEWER).await?;
    committed.let_go();
    writing.end().await?;
    stage.late_readers_of_table().await
}

fn invalidated(line: &Timeline) -> String {
    format!(
        "Writer 1 was held up after its commit at {}, while writer 2 did all of its write. What writer 1 then \
         had left to do was to invalidate, which is right in any order: the next reader loaded {NEWER}.",
        line.when("writer 1", Kind::Wrote)
    )
}
