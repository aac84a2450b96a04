//! RedLock, and a client that stands still for longer than its lock lives.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;

use super::home_made_redlock::{Five, RedLock};
use super::keeper::{Fence, Keeper, compare, patiently};
use super::late_writer::{Contender, Pause, run, told};
use super::shop::Shop;
use crate::bench::Bench;
use crate::client::{Client, pause};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::{Gate, PATIENCE, within};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::{Program, Server};
use crate::timeline::{Kind, State};

/// How long the lock lives.
const TTL: Duration = Duration::from_millis(400);
/// Which nodes both clients reach.
const ALL: &str = "ABCDE";

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "redlock-paused-client",
    title: "RedLock: the lock ends at all nodes while its client stands still",
    about: "Five nodes do not help a client that stands still after it was granted the lock: its keys expire at \
            all of them, and another client is granted the lock. RedLock's defence is its second look at the \
            clock, which finds a pause during the acquisition; a client that looks at the clock once more before it \
            writes finds one at work, with RedLock as with Lockkeeper, whose guard and protect() do that look \
            for their user. A pause after the last look goes unseen, with every lock service there is; then \
            only the resource can refuse the late write, by a token that grows, which RedLock does not have. \
            What counts here is the piece that is sold twice.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: false,
    variants: &[
        Variant {
            name: "redlock",
            title: "RedLock, paused at work, does not look",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(paused_at_work(bench, Pause::AndNeverLooks)),
        },
        Variant {
            name: "second-look",
            title: "RedLock, paused while it asks the nodes: T2 − T1 shows it",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(paused_while_asking(bench)),
        },
        Variant {
            name: "looks-after-the-pause",
            title: "RedLock, paused at work, looks at the clock before it writes",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(paused_at_work(bench, Pause::ThenLooks)),
        },
        Variant {
            name: "look-before-write",
            title: "RedLock, looks at the clock before it writes, and is paused between the two",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(paused_at_work(bench, Pause::AfterLooking)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: paused at work, looks before it writes",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench, Pause::ThenLooks, Fence::None)),
        },
        Variant {
            name: "lockkeeper-fenced",
            title: "Lockkeeper: paused after it looked; the token is refused",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench, Pause::AfterLooking, Fence::Token)),
        },
    ],
};

const WHY: &str = "Its keys expired at all five nodes";

async fn paused_at_work(bench: &Bench, pauses: Pause) -> Result<Outcome> {
    let five = Five::start(&[]).await?;
    let (urls, key) = (five.urls(), bench.key("lock"));
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let make = move |who| {
        let (urls, key) = (urls.clone(), key.clone());
        async move { RedLock::connect(&urls, ALL, &key, who, TTL).await }
    };
    run(&scene, pauses, make).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, WHY)))
}

async fn kept(bench: &Bench, pauses: Pause, fence: Fence) -> Result<Outcome> {
    let five = Five::start(&[]).await?;
    let shop = Server::redis(&[]).await?;
    let (url, name, shop_url) = (five.url(ALL), bench.key("lock"), shop.url());
    let lock = name.clone();
    patiently(|| Locks::init(&url)).await?;
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let make = move |_| {
        let (url, name, shop) = (url.clone(), name.clone(), shop_url.clone());
        async move { Keeper::connect(&url, TTL, &name, fence, Some(&shop)).await }
    };
    let sold = run(&scene, pauses, make).await?;
    compare(&sold, fence, &lock, &shop.url(), shop.address()).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, WHY)))
}

/// Client 1 stands still after the nodes have answered, before it looks at the clock again.
async fn paused_while_asking(bench: &Bench) -> Result<Outcome> {
    let five = Five::start(&[]).await?;
    let (urls, key) = (five.urls(), bench.key("lock"));
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    let shop = Shop::new(&scene);
    let stands = Gate::new("the pause of client 1");
    let (stand_still, go_on) = pause();
    let mut second = RedLock::connect(&urls, ALL, &key, "client 2", TTL).await?;
    let its_stands = stands.clone();
    let first = Client::start(move || async move {
        let mut lock = RedLock::connect(&urls, ALL, &key, "client 1", TTL).await?;
        let since = Instant::now();
        let grant = lock.try_lock(|| stand(&one, &its_stands, stand_still)).await?;
        let took = Instant::now().since(since).as_millis();
        match grant {
            Some(_) => Err(Error::Other("it did not notice that it stood still".into())),
            None => {
                let text = format!("T2 − T1 = {took} ms: not granted");
                one.did(Kind::Refused, text);
                Ok(())
            }
        }
    })?;
    stands.pass().await?;
    two.begins(State::Waits);
    let took = within(PATIENCE, "the turn of client 2", second.take()).await??;
    two.ends(State::Waits);
    two.did(Kind::Took, took);
    two.begins(State::Holds);
    let left = shop.look(&two);
    shop.sold(&two, left - 1);
    second.give_back().await?;
    two.ends(State::Holds);
    two.did(Kind::Released, "gives it back");
    go_on.now();
    first.end().await?;
    tally.run(&scene);
    Ok(tally.end(|line| {
        format!(
            "Client 1 stood still from {} on, after all nodes had said yes. Client 2 got the lock at {} and \
             sold a piece. Client 1 went on at {}, looked at its clock, and knew that it had been too slow.",
            line.when("client 1", Kind::Paused),
            line.when("client 2", Kind::Took),
            line.when("client 1", Kind::Resumed),
        )
    }))
}

fn stand(one: &Actor, stands: &Gate, stand_still: crate::client::StandStill) -> Result<()> {
    one.did(Kind::Paused, "SET lock NX PX at all five, then stands still");
    one.begins(State::Paused);
    stands.open();
    stand_still.now()?;
    one.ends(State::Paused);
    one.did(Kind::Resumed, "goes on");
    Ok(())
}
