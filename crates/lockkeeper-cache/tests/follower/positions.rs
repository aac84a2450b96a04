//! Who may save how far it has come.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::entry::Ticket;
use lockkeeper_cache::store::{Claim, Cursor, Positions};
use lockkeeper_cache::{Grouped, Memory, Redis, Store};
use testkit::nodes::ask;
use testkit::server;
use testkit::wait::{LONG, eventually};

use crate::world::connect;

const NOW: Duration = Duration::ZERO;

fn granted(position: Option<&str>, overruled: bool) -> Claim {
    Claim::Granted { position: position.map(str::to_owned), overruled }
}

async fn whoever_claimed_last_saves(store: &dyn Store) {
    let positions = store.positions().unwrap();
    let [one, two] = [Ticket::new(), Ticket::new()];
    let claim = async |ticket, token, patience| {
        positions.claim("f", ticket, token, patience).await.unwrap()
    };
    let save = async |ticket, at| positions.save("f", ticket, at).await.unwrap();
    assert!(!save(one, "0").await, "nobody has claimed it");
    assert_eq!(claim(one, 5, LONG).await, granted(None, false));
    assert!(save(one, "1").await && save(one, "2").await);
    assert_eq!(claim(one, 5, LONG).await, granted(Some("2"), false), "may be sent again");
    assert_eq!(claim(two, 6, LONG).await, granted(Some("2"), false));
    assert!(!save(one, "3").await, "it was replaced");
    assert!(save(two, "4").await);
    // It comes late.
    assert_eq!(claim(one, 5, LONG).await, Claim::Refused);
    assert!(save(two, "5").await, "that has changed nothing");
    // Numbers of 64 bits, not of 53.
    assert_eq!(claim(two, u64::MAX, LONG).await, granted(Some("5"), false));
    assert_eq!(claim(one, u64::MAX - 1, LONG).await, Claim::Refused);
    // The locks have lost their counter, and who had the larger one is dead.
    assert_eq!(claim(one, 1, NOW).await, granted(Some("5"), true));
    assert!(!save(two, "6").await && save(one, "é 6").await);
    assert_eq!(claim(one, 1, LONG).await, granted(Some("é 6"), false));
    let other = positions.claim("g", two, 1, LONG).await.unwrap();
    assert_eq!(other, granted(None, false), "of another name");
    positions.forget("f").await.unwrap();
    assert!(!save(one, "7").await);
    assert_eq!(claim(two, 1, LONG).await, granted(None, false));
}

async fn a_sign_of_life_makes_smaller_tokens_wait(store: &dyn Store) {
    let positions = store.positions().unwrap();
    let [one, two] = [Ticket::new(), Ticket::new()];
    let patience = Duration::from_millis(500);
    positions.claim("s", one, 9, patience).await.unwrap();
    for at in 0..8 {
        tokio::time::sleep(patience / 5).await;
        assert!(positions.save("s", one, &at.to_string()).await.unwrap());
        assert_eq!(positions.claim("s", two, 1, patience).await.unwrap(), Claim::Refused, "{at}");
    }
    eventually("it is taken for dead", async || {
        positions.claim("s", two, 1, patience).await.unwrap() == granted(Some("7"), true)
    })
    .await;
}

#[tokio::test]
async fn whoever_claimed_last_saves_at_a_server() {
    let server = server::redis(&[]).await;
    let store = connect(&server).await;
    whoever_claimed_last_saves(&store).await;
    a_sign_of_life_makes_smaller_tokens_wait(&store).await;
}

#[tokio::test]
async fn whoever_claimed_last_saves_in_memory() {
    let store = Memory::new();
    whoever_claimed_last_saves(&store).await;
    a_sign_of_life_makes_smaller_tokens_wait(&store).await;
    store.clear();
    let claim = store.claim("s", Ticket::new(), 1, LONG).await.unwrap();
    assert_eq!(claim, granted(None, false));
}

#[tokio::test]
async fn whoever_claimed_last_saves_in_a_group() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let memory = || Arc::new(Memory::new()) as Arc<dyn Store>;
    let group = Grouped::new([("a", memory()), ("b", memory())]).unwrap();
    whoever_claimed_last_saves(&group).await;
    let warm: Arc<dyn Store> = Arc::new(Redis::connect_warm(&url).await.unwrap());
    assert!(warm.positions().is_none());
    let group = Grouped::new([("a", memory()), ("b", warm)]).unwrap();
    assert!(group.positions().is_none(), "one is enough");
}

#[tokio::test]
async fn a_record_is_in_no_namespace_and_behind_the_prefix() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}?prefix=app/", server.address());
    let store = Redis::connect(&url).await.unwrap();
    store.claim("f", Ticket::new(), 1, LONG).await.unwrap();
    assert_eq!(ask(server.address(), "TYPE app/!cdc:f").await, "hash");
    assert_eq!(ask(server.address(), "PTTL app/!cdc:f").await, "-1");
    for prefix in ["", "!cdc:", "!cdc"] {
        let page = store.list(prefix, Cursor::default()).await.unwrap();
        assert!(page.keys.is_empty() && page.next.is_none(), "{page:?}");
    }
}

/// What it has may be older than what was done there, and the claim was made to another one.
#[tokio::test]
async fn a_server_that_is_started_again_wants_a_new_claim() {
    let mut server = server::redis(&["--dir", "{dir}", "--dbfilename", "kept.rdb"]).await;
    let store = connect(&server).await;
    let ticket = Ticket::new();
    store.claim("f", ticket, 1, LONG).await.unwrap();
    assert!(store.save("f", ticket, "1").await.unwrap());
    ask(server.address(), "SAVE").await;
    assert!(store.save("f", ticket, "2").await.unwrap());
    server.restart().await;
    let answered = async || store.save("f", ticket, "3").await.is_ok();
    eventually("it answers", answered).await;
    assert!(!store.save("f", ticket, "3").await.unwrap());
    assert_eq!(store.claim("f", ticket, 1, LONG).await.unwrap(), granted(Some("1"), false));
    assert!(store.save("f", ticket, "3").await.unwrap());
}
