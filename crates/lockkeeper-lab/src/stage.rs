//! What the experiments on caches are played on: a row of a database, a cache in front of it, and those who read and
//! write the two, by hand or through Lockkeeper.

mod stops;

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Loaded, Loader, Order, Source, Strategy, Table,
};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;

pub use self::stops::{StandsStill, Stop, Stops};
use crate::bench::{Bench, Redis, connect, gone};
use crate::error::{Error, Result};
use crate::gate::{PATIENCE, within};
use crate::outcome::{Outcome, Tally};
use crate::recipe::Recipe;
use crate::row::Row;
use crate::scene::{Actor, Scene};
use crate::timeline::{Kind, State, Timeline};

/// What the row has at first.
pub const OLD: u64 = 20;
/// What is written over it.
pub const NEW: u64 = 30;
/// And over that, by another one.
pub const NEWER: u64 = 40;

/// The key, through Lockkeeper.
pub const KEY: &str = "price";

/// How often each program is run.
const RUNS: u32 = 10;

/// One run of a program: a row, its cache, and who takes part.
#[derive(Debug)]
pub struct Stage {
    /// What happens.
    pub scene: Scene,
    /// The database, and the checker.
    pub row: Row,
    /// What is cached, by hand or by Lockkeeper.
    pub key: String,
    url: String,
    connection: MultiplexedConnection,
}

/// A program on a stage.
pub type Program = for<'a> fn(&'a Stage) -> Playing<'a>;

/// A program that is played.
pub type Playing<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// Plays a program some times, each time on a stage of its own, and measures the recipe that it follows.
///
/// # Errors
///
/// When it cannot be played to its end.
pub async fn play(
    bench: &Bench,
    recipe: Recipe,
    program: Program,
    story: impl FnOnce(&Timeline) -> String + Send,
) -> Result<Outcome> {
    play_times(bench, RUNS, recipe, program, story).await
}

/// The same, so often.
///
/// # Errors
///
/// As for [`play`].
pub async fn play_times(
    bench: &Bench,
    runs: u32,
    recipe: Recipe,
    program: Program,
    story: impl FnOnce(&Timeline) -> String + Send,
) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    for run in 0..runs {
        let stage = Stage::new(&redis, bench.key(&format!("{KEY}:{run}"))).await?;
        program(&stage).await?;
        stage.end(&mut tally);
    }
    recipe.measure(&redis, bench.key("speed"), &mut tally).await?;
    Ok(tally.end(story))
}

impl Stage {
    /// With an empty cache under this key.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn new(redis: &Redis, key: String) -> Result<Self> {
        Self::at(redis.url(), key).await
    }

    /// The same at a server of one's own.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn at(url: &str, key: String) -> Result<Self> {
        Ok(Self {
            scene: Scene::new(),
            row: Row::new(OLD),
            key,
            url: url.to_owned(),
            connection: connect(url).await?,
        })
    }

    /// The run is over. It counts once, however many have noticed that it went wrong: one stale value may be seen by a
    /// reader and, when all is quiet, still be there.
    pub fn end(&self, tally: &mut Tally) {
        tally.run_of(self.scene.violations().min(1), || self.scene.end());
    }

    /// Where the cache is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Somebody who uses the cache by hand.
    pub fn by_hand(&self, name: &str) -> ByHand<'_> {
        ByHand { stage: self, actor: self.scene.actor(name), connection: self.connection.clone() }
    }

    /// Nobody does anything any more: does the cache, used by hand, have what the database has?
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn all_is_quiet(&self) -> Result<()> {
        let cached: Option<u64> = self.connection.clone().get(&self.key).await?;
        let (has, _) = self.row.read();
        if let Some(cached) = cached.filter(|cached| *cached != has) {
            let text = format!("all is quiet: the cache keeps {cached}, the database has {has}");
            self.is_left(&self.scene.actor("checker"), text);
        }
        Ok(())
    }

    /// What is left when all is quiet. If somebody has seen it before it is no other violation, and only told.
    fn is_left(&self, who: &Actor, text: String) {
        if self.scene.violations() == 0 {
            self.scene.violation(who, text);
        } else {
            who.did(Kind::Noted, text);
        }
    }

    /// Two who come when everything is over, and read what is left.
    ///
    /// # Errors
    ///
    /// When they cannot read.
    pub async fn late_readers(&self) -> Result<()> {
        self.by_hand("late reader").read().await?;
        self.all_is_quiet().await
    }

    /// The entry ends. Its time is brought forward, so that nobody has to wait, and a slow machine is not too late.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn entry_ends(&self) -> Result<()> {
        let mut connection = self.connection.clone();
        connection.pexpire::<_, ()>(&self.key, 1).await?;
        gone(&mut connection, &self.key).await?;
        self.scene.actor("Redis").did(Kind::Expired, "the entry ends (brought forward)");
        Ok(())
    }

    /// The same through Lockkeeper: one that may have to load, and one that gets what is cached.
    ///
    /// # Errors
    ///
    /// When they cannot read.
    pub async fn late_readers_of_table(&self) -> Result<()> {
        self.late_reads(&self.table("late reader", Stops::default()).await?).await
    }

    /// The same by this one.
    ///
    /// # Errors
    ///
    /// When it cannot read.
    pub async fn late_reads(&self, late: &Process) -> Result<()> {
        for _ in 0..2 {
            let value = late.read().await?;
            let (has, _) = self.row.read();
            if value != has {
                let text = format!("all is quiet: readers get {value}, the database has {has}");
                self.is_left(&late.actor, text);
            }
        }
        Ok(())
    }

    /// For those who take part from a process of their own.
    pub fn away(&self) -> Away {
        Away {
            scene: self.scene.clone(),
            row: self.row.clone(),
            key: self.key.clone(),
            url: self.url.clone(),
        }
    }

    /// A process of its own that has the table through Lockkeeper, by its default strategy.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn table(&self, name: &str, stops: Stops) -> Result<Process> {
        self.table_with(name, stops, Strategy::default(), |builder| builder).await
    }

    /// The same by another strategy and with other settings.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or the settings make no sense.
    pub async fn table_with(
        &self,
        name: &str,
        stops: Stops,
        strategy: Strategy,
        settings: impl FnOnce(Builder) -> Builder + Send,
    ) -> Result<Process> {
        self.away().table_with(name, stops, strategy, settings).await
    }
}

/// A stage as others see it who are not on its runtime.
#[derive(Debug)]
pub struct Away {
    scene: Scene,
    row: Row,
    key: String,
    url: String,
}

impl Away {
    /// See [`Stage::table_with`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn table_with(
        self,
        name: &str,
        stops: Stops,
        strategy: Strategy,
        settings: impl FnOnce(Builder) -> Builder + Send,
    ) -> Result<Process> {
        let Self { scene, row, key, url } = self;
        let actor = scene.actor(name);
        let rows = Rows { row: row.clone(), actor: actor.clone(), stops };
        let store = lockkeeper_cache::Redis::connect(&url).await.map_err(failed)?;
        let builder = Cache::builder(store).namespace(key);
        let table = settings(builder).table(strategy, rows).map_err(failed)?;
        Ok(Process { actor, scene, row, table })
    }
}

/// A cache failed in a way that is not what the experiment is about.
pub fn failed(error: impl std::error::Error) -> Error {
    let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Error::Cache(format!("{error}{why}"))
}

/// Somebody who uses the cache by hand: each step alone, in any order.
#[derive(Debug)]
pub struct ByHand<'a> {
    stage: &'a Stage,
    /// Who.
    pub actor: Actor,
    /// The connection.
    pub connection: MultiplexedConnection,
}

impl ByHand<'_> {
    /// `GET`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn get(&mut self) -> Result<Option<u64>> {
        let found: Option<u64> = self.connection.get(&self.stage.key).await?;
        let text = found.map_or_else(|| "nil".to_owned(), |found| found.to_string());
        self.actor.did(Kind::Read, format!("GET → {text}"));
        Ok(found)
    }

    /// Reads the database.
    pub fn select(&self) -> u64 {
        let (value, _) = self.stage.row.read();
        self.actor.did(Kind::Read, format!("SELECT → {value}"));
        value
    }

    /// Commits to the database.
    pub fn update(&self, value: u64) {
        self.stage.row.commit(value);
        self.actor.did(Kind::Wrote, format!("UPDATE to {value}"));
    }

    /// `SET`, for ever or for a time.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn set(&mut self, value: u64, ttl: Option<Duration>) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(&self.stage.key).arg(value);
        let mut text = format!("SET {value}");
        if let Some(ttl) = ttl {
            let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            set.arg("PX").arg(millis);
            text = format!("{text} PX {millis}");
        }
        set.query_async::<()>(&mut self.connection).await?;
        self.actor.did(Kind::Wrote, text);
        Ok(())
    }

    /// `DEL`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn delete(&mut self) -> Result<()> {
        self.connection.del::<_, ()>(&self.stage.key).await?;
        self.actor.did(Kind::Deleted, "DEL");
        Ok(())
    }

    /// Who wanted this to be written is told that it is.
    pub fn done(&self, value: u64) {
        self.stage.row.acknowledge(value);
        self.actor.did(Kind::Noted, format!("is told: {value} is written"));
    }

    /// A whole read, as the recipe has it: the cache, else the database, and then it is set.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn read(&mut self) -> Result<u64> {
        let floor = self.stage.row.begin_read();
        let value = match self.get().await? {
            Some(value) => value,
            None => {
                let value = self.select();
                self.set(value, None).await?;
                value
            }
        };
        judge(&self.stage.scene, &self.actor, self.stage.row.too_old(floor, value), value);
        Ok(value)
    }
}

fn judge(scene: &Scene, actor: &Actor, newer: Option<u64>, value: u64) {
    if let Some(newer) = newer {
        let text = format!("{} got {value} after {newer} was acknowledged", actor.name());
        scene.violation(actor, text);
    }
}

/// The database as one process has it.
struct Rows {
    row: Row,
    actor: Actor,
    stops: Stops,
}

impl Rows {
    async fn at(&self, stop: Option<&Stop>) -> Result<(), BoxError> {
        if let Some(stop) = stop {
            self.actor.begins(State::Paused);
            stop.here().await?;
            self.actor.ends(State::Paused);
        }
        Ok(())
    }
}

#[async_trait]
impl Loader<String, u64> for Rows {
    async fn load(&self, _: &String) -> Result<Loaded<u64>, BoxError> {
        let (value, version) = self.row.read();
        self.actor.did(Kind::Read, format!("loads: SELECT → {value}"));
        self.at(self.stops.loaded.as_ref()).await?;
        if let Some(still) = &self.stops.stands_still {
            still.here(&self.actor)?;
        }
        Ok(Loaded::found(value).version(version))
    }
}

#[async_trait]
impl Database<String, u64> for Rows {
    async fn store(
        &self,
        _: &String,
        value: Option<&u64>,
        _: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.at(self.stops.announced.as_ref()).await?;
        let value = *value.ok_or("nothing is deleted here")?;
        let version = self.row.commit(value);
        self.actor.did(Kind::Wrote, format!("UPDATE to {value}"));
        self.at(self.stops.committed.as_ref()).await?;
        Ok(version)
    }
}

/// A process that has the table through Lockkeeper.
#[derive(Clone, Debug)]
pub struct Process {
    /// Who.
    pub actor: Actor,
    scene: Scene,
    row: Row,
    /// The table.
    pub table: Table<String, u64>,
}

impl Process {
    /// Reads.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub async fn read(&self) -> Result<u64> {
        let floor = self.row.begin_read();
        let read = self.table.read(&KEY.to_owned()).await.map_err(failed)?;
        let value = *read.value.ok_or_else(|| Error::Cache("the row is gone".into()))?;
        let from = match read.source {
            Source::Loaded => "the database",
            _ => "the cache",
        };
        self.actor.did(Kind::Read, format!("read() → {value} from {from}"));
        judge(&self.scene, &self.actor, self.row.too_old(floor, value), value);
        Ok(value)
    }

    /// Writes.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub async fn write(&self, value: u64) -> Result<()> {
        self.table.write(&KEY.to_owned(), Some(value)).await.map_err(failed)?;
        self.row.acknowledge(value);
        self.actor.did(Kind::Noted, format!("write() is done: {value} is written"));
        Ok(())
    }

    /// Waits until its fill has come to the store: what came too late has to be dropped there, and not to be on its way
    /// still when others read. Should it be taken, these see it.
    ///
    /// # Errors
    ///
    /// When none comes in time: there would be nothing to show.
    pub async fn has_filled(&self) -> Result<()> {
        let came = async {
            loop {
                let stats = self.table.cache().stats();
                let dropped = stats.lost_fills + stats.old_fills;
                if dropped + stats.fills > 0 {
                    return dropped;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let dropped = within(PATIENCE, "the fill of a reader", came).await?;
        let text = if dropped > 0 { "its fill was dropped" } else { "its fill was taken" };
        self.actor.did(Kind::Noted, text);
        Ok(())
    }

    /// Begins to read, besides whatever else happens.
    pub fn begin_read(&self) -> Task<u64> {
        let this = self.clone();
        Task(tokio::spawn(async move { this.read().await }))
    }

    /// Begins to write, besides whatever else happens.
    pub fn begin_write(&self, value: u64) -> Task<()> {
        let this = self.clone();
        Task(tokio::spawn(async move { this.write(value).await }))
    }
}

/// Something that goes on.
#[derive(Debug)]
pub struct Task<T>(JoinHandle<Result<T>>);

impl<T> Task<T> {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// Its own.
    pub async fn end(self) -> Result<T> {
        self.0.await.map_err(|error| Error::Other(error.to_string()))?
    }
}
