//! What a write and the read after it cost when nobody is in the way, by each recipe.

pub mod read_write;

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::Strategy;

use self::read_write::{READ, UNLOCK, WRITE, ask};
use crate::bench::{Redis, set_nx};
use crate::error::{Error, Result};
use crate::load::{self, Client};
use crate::outcome::Tally;
use crate::stage::{ByHand, KEY, OLD, Stage, Stops, failed};

/// So often does each client write and read it.
const TIMES: usize = 20;
/// How long a read-write lock lives, which nobody loses here.
const LIFE: Duration = Duration::from_secs(30);

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
    /// The same under a [read-write lock](read_write).
    UpdateDeleteReadWriteLocked,
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
        let key = &key;
        let work = |mut client: Client| async move {
            let stage = Stage::new(redis, format!("{key}-{}", client.number)).await?;
            if let Self::Table(strategy) = self {
                return table(&stage, strategy, client).await;
            }
            let (mut hand, lock) = (stage.by_hand("hand"), format!("{}:lock", stage.key));
            let mut value = OLD;
            while client.again(TIMES).await {
                value += 1;
                self.lock(&mut hand, &lock, WRITE).await?;
                self.write(&mut hand, value).await?;
                self.unlock(&mut hand, &lock, WRITE).await?;
                self.lock(&mut hand, &lock, READ).await?;
                hand.read().await?;
                self.unlock(&mut hand, &lock, READ).await?;
            }
            Ok(client.took())
        };
        load::measure(tally, work).await
    }

    /// Takes its lock, if it has one, to [read](READ) or to [write](WRITE).
    async fn lock(self, hand: &mut ByHand<'_>, lock: &str, to: &str) -> Result<()> {
        let got = match self {
            Self::UpdateDeleteReadWriteLocked => {
                ask(&mut hand.connection, to, lock, "hand", LIFE).await?
            }
            _ if self.has_mutex(to) => set_nx(&mut hand.connection, lock, "1", None).await?,
            _ => true,
        };
        if got { Ok(()) } else { Err(Error::Other("a lock that nobody has was refused".into())) }
    }

    /// Gives it back.
    async fn unlock(self, hand: &mut ByHand<'_>, lock: &str, to: &str) -> Result<()> {
        if self == Self::UpdateDeleteReadWriteLocked {
            ask(&mut hand.connection, UNLOCK, lock, "hand", LIFE).await?;
        } else if self.has_mutex(to) {
            redis::cmd("DEL").arg(lock).query_async::<()>(&mut hand.connection).await?;
        }
        Ok(())
    }

    fn has_mutex(self, to: &str) -> bool {
        match self {
            Self::UpdateSetLocked => to == WRITE,
            Self::UpdateDeleteLocked => true,
            _ => false,
        }
    }

    async fn write(self, hand: &mut ByHand<'_>, value: u64) -> Result<()> {
        match self {
            Self::UpdateSet | Self::UpdateSetLocked => {
                hand.update(value);
                hand.set(value, None).await?;
            }
            Self::SetUpdate => {
                hand.set(value, None).await?;
                hand.update(value);
            }
            Self::UpdateDelete | Self::UpdateDeleteLocked | Self::UpdateDeleteReadWriteLocked => {
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
        Ok(())
    }
}

async fn table(stage: &Stage, strategy: Strategy, mut client: Client) -> Result<Vec<Duration>> {
    let locks = Locks::connect(stage.url()).await?;
    let settings = |table: lockkeeper_cache::Builder| table.locks(locks);
    let process = stage.table_with("process", Stops::default(), strategy, settings).await?;
    let (table, key, mut value) = (&process.table, KEY.to_owned(), OLD);
    while client.again(TIMES).await {
        value += 1;
        table.write(&key, Some(value)).await.map_err(failed)?;
        table.read(&key).await.map_err(failed)?;
    }
    Ok(client.took())
}
