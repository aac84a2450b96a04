//! What the experiments with a client that stands still have in common: it goes on, and writes.
//!
//! Client 1 takes the lock, reads, and stands still, with everything that renews its lock. Client 2 waits
//! until the store gives it the lock, sells a piece and gives the lock back. Then client 1 goes on. That it
//! stood still harms nobody, so it is its write that counts, and whether the shelf agrees.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::shop::Shop;
use crate::client::{Client, pause};
use crate::error::{Error, Result};
use crate::gate::{PATIENCE, within};
use crate::scene::{Actor, Scene};
use crate::timeline::{Kind, State, Timeline};

/// So often a client may lose the lock before it has looked, or written.
const TRIES: u32 = 10;

/// Where client 1 stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// At work; it does not look afterwards whether it still holds the lock.
    AndNeverLooks,
    /// At work; it looks afterwards.
    ThenLooks,
    /// After it has looked, just before it writes.
    AfterLooking,
}

/// A client's way to take a lock and to write under it.
pub(super) trait Contender: Send {
    /// Takes the lock, and waits for it; what was done, in words.
    fn take(&mut self) -> impl Future<Output = Result<String>> + Send;
    /// Whether it believes to hold it.
    fn holds(&mut self) -> impl Future<Output = Result<bool>> + Send;
    /// Asks the resource for a write of this text; nothing if it may, else why not.
    fn write(&mut self, value: &str) -> impl Future<Output = Result<Option<String>>> + Send;
    /// Gives the lock back, as far as it is its own.
    fn give_back(self) -> impl Future<Output = Result<()>> + Send;
}

/// One run; what was sold in it. `make` connects a client.
pub(super) async fn run<C, M, F>(scene: &Scene, pauses: Pause, make: M) -> Result<Arc<Shop>>
where
    C: Contender,
    M: Fn(&'static str) -> F + Send + Sync + 'static,
    F: Future<Output = Result<C>> + Send,
{
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    let (shop, make) = (Arc::new(Shop::new(scene)), Arc::new(make));
    let (stand_still, go_on) = pause();
    let (stands, stood) = oneshot::channel();
    let (its_shop, its_make) = (Arc::clone(&shop), Arc::clone(&make));
    let first = Client::start(move || async move {
        let mut lock = its_make("client 1").await?;
        let mut left = begin(&one, &its_shop, &mut lock).await?;
        if pauses == Pause::AfterLooking {
            left = looked(&one, &its_shop, &mut lock, left).await?;
        }
        one.did(Kind::Paused, "stands still");
        one.begins(State::Paused);
        // Nobody waits for it any more.
        let _ = stands.send(());
        stand_still.now()?;
        one.ends(State::Paused);
        one.did(Kind::Resumed, "goes on");
        end(&one, &its_shop, &mut lock, left, pauses).await
    })?;
    let early = |_| Error::Other("client 1 ended before it stood still".into());
    if let Err(error) = within(PATIENCE, "the pause of client 1", stood).await?.map_err(early) {
        first.end().await?;
        return Err(error);
    }
    sell(&two, &shop, make("client 2").await?).await?;
    go_on.now();
    first.end().await?;
    Ok(shop)
}

fn holding(actor: &Actor, took: String) {
    actor.did(Kind::Took, took);
    actor.begins(State::Holds);
}

async fn begin<C: Contender>(one: &Actor, shop: &Shop, lock: &mut C) -> Result<u64> {
    let took = lock.take().await?;
    holding(one, took);
    Ok(shop.look(one))
}

/// What client 2 does. Should it be too slow itself, it is refused, and takes the lock again.
async fn sell<C: Contender>(two: &Actor, shop: &Shop, mut lock: C) -> Result<()> {
    for _ in 0..TRIES {
        two.begins(State::Waits);
        let took = within(PATIENCE, "the turn of client 2", lock.take()).await??;
        two.ends(State::Waits);
        holding(two, took);
        let left = shop.look(two);
        let refused = lock.write(&Shop::note(left - 1, two)).await?;
        if let Some(why) = refused {
            two.did(Kind::Refused, why);
            two.ends(State::Holds);
            continue;
        }
        shop.sold(two, left - 1);
        lock.give_back().await?;
        two.did(Kind::Released, "gives it back");
        two.ends(State::Holds);
        return Ok(());
    }
    Err(Error::Late("a write of client 2 while it held the lock".into()))
}

/// Looks whether the lock is held. On a machine that is busy with other things it may be lost by then, and
/// there would be nothing to show: it is taken again.
async fn looked<C: Contender>(
    one: &Actor,
    shop: &Shop,
    lock: &mut C,
    mut left: u64,
) -> Result<u64> {
    for _ in 0..TRIES {
        if lock.holds().await? {
            one.did(Kind::Noted, "looks: the lock is held");
            return Ok(left);
        }
        one.ends(State::Holds);
        one.did(Kind::Expired, "looks: the lock is lost already, takes it again");
        left = begin(one, shop, lock).await?;
    }
    Err(Error::Late("to look while the lock is held".into()))
}

/// What client 1 does after it stood still.
async fn end<C: Contender>(
    one: &Actor,
    shop: &Shop,
    lock: &mut C,
    left: u64,
    pauses: Pause,
) -> Result<()> {
    if pauses == Pause::ThenLooks && !lock.holds().await? {
        one.ends(State::Holds);
        one.did(Kind::Refused, "looks: the lock is lost, writes nothing");
        return Ok(());
    }
    match lock.write(&Shop::note(left - 1, one)).await? {
        None => shop.sold(one, left - 1),
        Some(why) => one.did(Kind::Refused, why),
    }
    one.ends(State::Holds);
    Ok(())
}

/// The story of a run; `why` is what the store did meanwhile.
pub(super) fn told(line: &Timeline, why: &str) -> String {
    let when = |actor, kind| line.when(actor, kind);
    let stood = format!(
        "Client 1 took the lock at {}, read the stock and stood still from {} on. {why}; client 2 got the \
         lock at {} and sold a piece.",
        when("client 1", Kind::Took),
        when("client 1", Kind::Paused),
        when("client 2", Kind::Took),
    );
    let wrote = line.first("client 1", Kind::Wrote).is_some();
    let end = if wrote {
        format!(
            "Client 1 went on at {} as if nothing had happened: at {} it sold the same piece again.",
            when("client 1", Kind::Resumed),
            when("client 1", Kind::Wrote),
        )
    } else {
        let refusal = line
            .events
            .iter()
            .rfind(|event| event.kind == Kind::Refused && event.actor == "client 1");
        let refusal = refusal.map_or("nothing", |event| &*event.text);
        format!("Client 1 went on at {}: {refusal}.", when("client 1", Kind::Resumed))
    };
    format!("{stood} {end}")
}
