//! Cache and database under a read-write lock, and what becomes of it when the lock expires.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::Strategy;

use crate::bench::gone;
use crate::client::{Client, pause};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::Gate;
use crate::recipe::Recipe;
use crate::recipe::read_write::{READ, UNLOCK, WRITE, ask};
use crate::servers::Program;
use crate::stage::{ByHand, NEW, OLD, Stage, StandsStill, Stops, play, play_times};
use crate::timeline::{Kind, State, Timeline};

/// How long a lock by hand lives.
const TTL: Duration = Duration::from_millis(30);
/// How long one of Lockkeeper does: renewed in time also on a busy machine.
const RENEWED: Duration = Duration::from_millis(300);
/// So often the reader tries again if it was not.
const TRIES: u32 = 10;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "read-write-lock",
    title: "Cache and database under a read-write lock that expires",
    about: "A read-write lock around database and cache makes one step of the two: readers share it, a writer \
            has it alone, and a slow reader keeps the writer waiting. But a lock with a time to live ends \
            while its holder stands still: then the writer gets in, and the reader, when it goes on, fills \
            the old value as if there were no lock. To look at the lock before the fill helps against a pause \
            before the look. Against one between the look and the fill nothing helps that the reader does: the \
            store itself has to refuse, as it does with leases. Where a lock holds, every read pays for it.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "no-lock",
            title: "UPDATE, then DEL, without a lock",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDelete,
                    |stage| Box::pin(no_lock(stage)),
                    unguarded,
                ))
            },
        },
        Variant {
            name: "read-write-lock",
            title: "Under a read-write lock",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::UpdateDeleteReadWriteLocked,
                    |stage| Box::pin(locked(stage)),
                    guarded,
                ))
            },
        },
        Variant {
            name: "lock-expires",
            title: "The same; the lock expires while the reader stands still",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play_times(
                    bench,
                    5,
                    Recipe::UpdateDeleteReadWriteLocked,
                    |stage| Box::pin(expired(stage)),
                    expired_story,
                ))
            },
        },
        Variant {
            name: "paused-after-the-look",
            title: "Lockkeeper's read-write lock: a pause between its look and its SET",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| {
                Box::pin(play_times(
                    bench,
                    1,
                    Recipe::Table(Strategy::ReadWriteLock),
                    |stage| Box::pin(looked_too_early(stage)),
                    too_early,
                ))
            },
        },
        Variant {
            name: "lockkeeper-lock",
            title: "Lockkeeper's read-write lock: a pause in the load, before it looks",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play_times(
                    bench,
                    2,
                    Recipe::Table(Strategy::ReadWriteLock),
                    |stage| Box::pin(lock_is_checked(stage)),
                    checked,
                ))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper's fill leases: no lock, and the same reader",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| {
                Box::pin(play(
                    bench,
                    Recipe::Table(Strategy::Strong),
                    |stage| Box::pin(leases(stage)),
                    leased,
                ))
            },
        },
    ],
};

async fn lock(who: &mut ByHand<'_>, script: &str, key: &str, ttl: Duration) -> Result<bool> {
    let what = if script == READ { "shared" } else { "exclusive" };
    let name = who.actor.name().to_owned();
    let got = ask(&mut who.connection, script, key, &name, ttl).await?;
    if got {
        who.actor.did(Kind::Took, format!("{what} lock for {} ms", ttl.as_millis()));
        who.actor.believes();
    } else {
        who.actor.did(Kind::Refused, "the lock is taken");
    }
    Ok(got)
}

async fn unlock(who: &mut ByHand<'_>, key: &str) -> Result<()> {
    who.actor.believes_no_more();
    let name = who.actor.name().to_owned();
    let had = ask(&mut who.connection, UNLOCK, key, &name, TTL).await?;
    let text = if had { "gives it back" } else { "its lock is gone" };
    who.actor.did(Kind::Released, text);
    Ok(())
}

async fn no_lock(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    reader.get().await?;
    let old = reader.select();
    writer.update(NEW);
    writer.delete().await?;
    writer.done(NEW);
    reader.set(old, None).await?;
    stage.late_readers().await
}

fn unguarded(line: &Timeline) -> String {
    format!(
        "The writer did all of its work between the reader's SELECT and its SET at {}, which put {OLD} back.",
        line.when("reader", Kind::Wrote)
    )
}

/// Nobody stands still, so it lives for long enough.
const LONG: Duration = Duration::from_secs(30);

async fn locked(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    let key = format!("{}:lock", stage.key);
    lock(&mut reader, READ, &key, LONG).await?;
    reader.get().await?;
    let old = reader.select();
    if lock(&mut writer, WRITE, &key, LONG).await? {
        stage.scene.violation(&writer.actor, "the writer got a lock that a reader has");
    }
    reader.set(old, None).await?;
    unlock(&mut reader, &key).await?;
    lock(&mut writer, WRITE, &key, LONG).await?;
    writer.update(NEW);
    writer.delete().await?;
    unlock(&mut writer, &key).await?;
    writer.done(NEW);
    let mut late = stage.by_hand("late reader");
    lock(&mut late, READ, &key, LONG).await?;
    late.read().await?;
    unlock(&mut late, &key).await?;
    stage.all_is_quiet().await
}

fn guarded(line: &Timeline) -> String {
    format!(
        "The writer was refused while the reader had the lock, and began when that was given back at {}: first the \
         fill, then the write and its delete. It holds as long as nobody loses a lock.",
        line.when("reader", Kind::Released)
    )
}

async fn expired(stage: &Stage) -> Result<()> {
    let (mut reader, mut writer) = (stage.by_hand("reader"), stage.by_hand("writer"));
    let mut server = stage.by_hand("Redis");
    let key = format!("{}:lock", stage.key);
    lock(&mut reader, READ, &key, TTL).await?;
    reader.get().await?;
    let old = reader.select();
    // The critical point: it stands still until its lock is gone.
    reader.actor.begins(State::Paused);
    gone(&mut server.connection, &key).await?;
    server.actor.did(Kind::Expired, "the lock expires");
    lock(&mut writer, WRITE, &key, LONG).await?;
    writer.update(NEW);
    writer.delete().await?;
    unlock(&mut writer, &key).await?;
    writer.done(NEW);
    reader.actor.ends(State::Paused);
    reader.set(old, None).await?;
    unlock(&mut reader, &key).await?;
    stage.late_readers().await
}

fn expired_story(line: &Timeline) -> String {
    format!(
        "The reader had the lock, read {OLD} and stood still. At {} its lock expired, and the writer got it at {} and \
         wrote {NEW}. The reader went on, believed to have the lock, and set {OLD} at {}.",
        line.when("Redis", Kind::Expired),
        line.when("writer", Kind::Took),
        line.when("reader", Kind::Wrote),
    )
}

/// Where the reader stands still, which has loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Before it looks whether it has the lock.
    BeforeTheLook,
    /// After that, before the `SET`.
    BeforeTheSet,
}

/// A reader in a process of its own stands still after its load, while a writer writes.
async fn paused_reader(stage: &Stage, strategy: Strategy, pauses: Pause) -> Result<()> {
    let reached = Gate::new("the pause of the reader");
    let (still, go_on) = pause();
    let still = StandsStill::new(reached.clone(), still);
    let in_load = (pauses == Pause::BeforeTheLook).then(|| Arc::clone(&still));
    let stops = Stops { stands_still: in_load, ..Stops::default() };
    let (away, url, actor) = (stage.away(), stage.url().to_owned(), stage.scene.actor("reader"));
    let reader = Client::start(move || async move {
        let locks = Locks::connect(&url).await?.ttl(RENEWED);
        let before_set = Arc::clone(&still);
        // A cache asks for the tags of a key just before it is set. The key has none.
        let tags = move |_: &String| {
            if !before_set.is_over() {
                actor.did(Kind::Noted, "has looked: the lock is held");
            }
            // Who waits for it says that it is late.
            let _ = before_set.here(&actor);
            Vec::new()
        };
        let settings = |table: lockkeeper_cache::Builder| match pauses {
            Pause::BeforeTheLook => table.locks(locks),
            Pause::BeforeTheSet => table.locks(locks).tags(tags),
        };
        let reader = away.table_with("reader", stops, strategy, settings).await?;
        // A machine that is slow enough loses the lock before it is got, or looked at.
        let mut read = reader.read().await;
        for _ in 0..TRIES {
            if read.is_ok() && still.is_over() {
                break;
            }
            read = reader.read().await;
        }
        read
    })?;
    let reading = async { reader.end().await };
    tokio::pin!(reading);
    tokio::select! {
        reached = reached.pass() => reached?,
        ended = &mut reading => {
            let early = |_| Err(Error::Other("the reader was done and never stood still".into()));
            return ended.and_then(early);
        }
    }
    let locks = Locks::connect(stage.url()).await?;
    let settings = |table: lockkeeper_cache::Builder| table.locks(locks);
    let writer = stage.table_with("writer", Stops::default(), strategy, settings).await?;
    // It waits until the lock of the reader is gone, where there is one.
    writer.write(NEW).await?;
    go_on.now();
    reading.await?;
    let locks = Locks::connect(stage.url()).await?;
    let settings = |table: lockkeeper_cache::Builder| table.locks(locks);
    let late = stage.table_with("late reader", Stops::default(), strategy, settings).await?;
    stage.late_reads(&late).await
}

async fn looked_too_early(stage: &Stage) -> Result<()> {
    paused_reader(stage, Strategy::ReadWriteLock, Pause::BeforeTheSet).await
}

fn too_early(line: &Timeline) -> String {
    format!(
        "The reader had loaded {OLD}, looked, and had the lock. Then it stood still from {} to {}; its lock ran out, and \
         the writer wrote {NEW} at {}. All that was left to do for the reader was to set {OLD}, and it did. No lock \
         closes this gap, however good it is.",
        line.when("reader", Kind::Paused),
        line.when("reader", Kind::Resumed),
        line.when("writer", Kind::Wrote),
    )
}

async fn lock_is_checked(stage: &Stage) -> Result<()> {
    paused_reader(stage, Strategy::ReadWriteLock, Pause::BeforeTheLook).await
}

fn checked(line: &Timeline) -> String {
    format!(
        "The reader stood still at {}, with all that renews its lock, until the lock ran out and the writer had \
         written {NEW} at {}. When it went on it looked, found that it had lost the lock, and set nothing. This \
         holds for a pause before that look, and not for one after it: see paused-after-the-look.",
        line.when("reader", Kind::Paused),
        line.when("writer", Kind::Wrote),
    )
}

async fn leases(stage: &Stage) -> Result<()> {
    paused_reader(stage, Strategy::default(), Pause::BeforeTheLook).await
}

fn leased(line: &Timeline) -> String {
    format!(
        "The reader stood still from {} to {}. The writer waited for nobody: its write, committed at {}, took the \
         reader's lease away at the store itself, so there is no moment at which a check could come too early.",
        line.when("reader", Kind::Paused),
        line.when("reader", Kind::Resumed),
        line.when("writer", Kind::Wrote),
    )
}
