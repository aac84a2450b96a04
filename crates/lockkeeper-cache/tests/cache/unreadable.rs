//! What could not be read, and is kept for who wants to know why.

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Builder, Cache, Error, Loaded, Unreadable};
use testkit::resp::Raw;

use crate::harness::{Place, on_each_store};

on_each_store! {
    what_cannot_be_read_is_kept_if_that_was_asked_for
    what_is_of_an_older_program_is_kept_and_what_is_of_a_newer_one_is_not
}

/// An older program, whose values are texts.
async fn fill(builder: Builder, keys: &[u32]) {
    let texts = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(format!("Ada {key}"))));
    let texts = texts.unwrap();
    texts.get_many(keys).await.unwrap();
    texts.idle().await;
}

/// The one whose values are numbers.
fn numbers(builder: Builder) -> Cache<u32, u32> {
    builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap()
}

fn keys(kept: &[Unreadable]) -> Vec<&str> {
    kept.iter().map(|one| one.key.as_str()).collect()
}

async fn what_cannot_be_read_is_kept_if_that_was_asked_for(place: &Place) {
    let before = Instant::now();
    fill(place.builder().await, &[1, 2, 3, 4]).await;
    let silent = numbers(place.builder().await);
    assert_eq!(silent.get(&4).await.unwrap().as_deref(), Some(&4));
    assert!(silent.stats().unreadable > 0 && silent.unreadable().is_empty(), "off by default");
    let cache = numbers(place.builder().await.keep_unreadable(2));
    for key in [1, 2, 3, 3] {
        assert_eq!(cache.get(&key).await.unwrap().as_deref(), Some(&key));
    }
    let kept = cache.unreadable();
    assert_eq!(keys(&kept), ["3", "2"], "the last two, the youngest first");
    let Unreadable { bytes, length, schema, error, ago, .. } = &kept[0];
    assert_eq!((bytes.as_deref(), *length), (Some(&b"\"Ada 3\""[..]), 7));
    assert_eq!(*schema, Some(0));
    assert!(error.contains("expected u32"), "{error}");
    assert!(*ago <= Instant::now().since(before) && *ago <= kept[1].ago, "{kept:?}");
    assert!(!format!("{kept:?} {cache:?}").contains("Ada"), "not for logs");
}

async fn what_is_of_an_older_program_is_kept_and_what_is_of_a_newer_one_is_not(place: &Place) {
    fill(place.builder().await.schema(1), &[1]).await;
    fill(place.builder().await.schema(3), &[2]).await;
    let cache = numbers(place.builder().await.schema(2).keep_unreadable(10));
    cache.get_many(&[1, 2]).await.unwrap();
    let kept = cache.unreadable();
    assert_eq!(keys(&kept), ["1"]);
    assert_eq!((kept[0].schema, kept[0].length), (Some(1), 7));
    assert_eq!(kept[0].error, "it is of schema 1, and ours is 2");
}

#[tokio::test]
async fn of_what_is_not_an_entry_the_key_is_kept() {
    let place = Place::redis().await;
    let cache = numbers(place.builder().await.keep_unreadable(10));
    let Place::Redis(server) = &place else { unreachable!() };
    Raw::connect(server.address()).await.ask("SET cache:1 junk").await;
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
    let kept = cache.unreadable();
    assert_eq!(keys(&kept), ["1"]);
    assert_eq!((kept[0].bytes.as_deref(), kept[0].schema), (None, None));
}
