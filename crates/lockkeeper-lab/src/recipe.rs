//! What a write and the read after it cost when nobody is in the way, by each recipe. An order that is forced says
//! nothing about speed, so it is measured apart.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper_cache::Strategy;

use crate::bench::{Redis, set_nx};
use crate::error::Result;
use crate::outcome::Tally;
use crate::stage::{ByHand, KEY, OLD, Stage, Stops, failed};

/// So often is it written and read.
const TIMES: u64 = 50;

/// A way to write a row and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// `UPDATE`, `SET`.
    UpdateSet,
    /// `SET`, `UPDATE`.
    SetUpdate,
    /// `UPDATE`, `DEL`.
    UpdateDelete,
    /// `DEL`, `UPDATE`.
    DeleteUpdate,
    /// `DEL`, `UPDATE`, a pause, `DEL`.
    DoubleDelete(Duration),
    /// `UPDATE`, `SET` under a lock; reads without.
    UpdateSetLocked,
    /// `UPDATE`, `DEL` under a lock; reads under it too.
    UpdateDeleteLocked,
    /// Through Lockkeeper.
    Table(Strategy),
}

impl Recipe {
    /// Measures it on a key of its own.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn measure(self, redis: &Redis, key: String, tally: &mut Tally) -> Result<()> {
        let stage = Stage::new(redis, key).await?;
        if let Self::Table(strategy) = self {
            return table(&stage, strategy, tally).await;
        }
        let (mut hand, lock) = (stage.by_hand("hand"), format!("{}:lock", stage.key));
        let start = Instant::now();
        for value in OLD + 1..=OLD + TIMES {
            let since = Instant::now();
            self.write(&mut hand, &lock, value).await?;
            let locked = self == Self::UpdateDeleteLocked;
            if locked {
                set_nx(&mut hand.connection, &lock, "1", None).await?;
            }
            hand.read().await?;
            if locked {
                unlock(&mut hand, &lock).await?;
            }
            tally.operation(Instant::now().since(since));
        }
        tally.within(Instant::now().since(start));
        Ok(())
    }

    async fn write(self, hand: &mut ByHand<'_>, lock: &str, value: u64) -> Result<()> {
        let locked = matches!(self, Self::UpdateSetLocked | Self::UpdateDeleteLocked);
        if locked {
            set_nx(&mut hand.connection, lock, "1", None).await?;
        }
        match self {
            Self::UpdateSet | Self::UpdateSetLocked => {
                hand.update(value);
                hand.set(value, None).await?;
            }
            Self::SetUpdate => {
                hand.set(value, None).await?;
                hand.update(value);
            }
            Self::UpdateDelete | Self::UpdateDeleteLocked => {
                hand.update(value);
                hand.delete().await?;
            }
            Self::DeleteUpdate => {
                hand.delete().await?;
                hand.update(value);
            }
            Self::DoubleDelete(delay) => {
                hand.delete().await?;
                hand.update(value);
                tokio::time::sleep(delay).await;
                hand.delete().await?;
            }
            Self::Table(_) => {}
        }
        if locked {
            unlock(hand, lock).await?;
        }
        Ok(())
    }
}

async fn unlock(hand: &mut ByHand<'_>, lock: &str) -> Result<()> {
    redis::cmd("DEL").arg(lock).query_async::<()>(&mut hand.connection).await?;
    Ok(())
}

async fn table(stage: &Stage, strategy: Strategy, tally: &mut Tally) -> Result<()> {
    let locks = Locks::connect(stage.url()).await?;
    let settings = |table: lockkeeper_cache::Builder| table.locks(locks);
    let process = stage.table_with("process", Stops::default(), strategy, settings).await?;
    let (table, key) = (&process.table, KEY.to_owned());
    let start = Instant::now();
    for value in OLD + 1..=OLD + TIMES {
        let since = Instant::now();
        table.write(&key, Some(value)).await.map_err(failed)?;
        table.read(&key).await.map_err(failed)?;
        tally.operation(Instant::now().since(since));
    }
    tally.within(Instant::now().since(start));
    Ok(())
}
