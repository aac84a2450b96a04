use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use proptest::prelude::*;
use testkit::wait::{eventually, soon};

use super::*;
use crate::filter::{Plan, rebuild};

fn plan(keys: u64) -> Plan {
    Plan::new(Shape::for_keys(keys, 0.01).unwrap()).settle(Duration::ZERO)
}

fn users(
    ids: std::ops::Range<u32>,
) -> impl futures_util::Stream<Item = Result<String, Infallible>> {
    stream::iter(ids.map(|id| Ok(format!("user:{id}"))))
}

fn is_absent(filter: &LocalFilter, id: u32) -> bool {
    filter.look_at(format!("user:{id}").as_bytes()) == Verdict::Absent
}

#[tokio::test]
async fn says_maybe_until_it_is_loaded_and_then_what_is_there() {
    let filter = LocalFilter::new();
    filter.put(b"user:1");
    assert!((0..100).all(|id| !is_absent(&filter, id)), "nothing is known yet");
    let loaded = rebuild(&filter, plan(1000), || users(0..1000), |_| {}).await.unwrap();
    assert_eq!(loaded.keys, 1000);
    assert!((0..1000).all(|id| !is_absent(&filter, id)));
    assert!((1000..1100).any(|id| is_absent(&filter, id)));
    filter.forget();
    assert!((1000..1100).all(|id| !is_absent(&filter, id)));
}

#[tokio::test]
async fn is_wrong_about_no_more_than_was_asked_for() {
    let filter = LocalFilter::new();
    let loaded = rebuild(&filter, plan(50_000), || users(0..50_000), |_| {}).await.unwrap();
    let wrong = (50_000..150_000).filter(|id| !is_absent(&filter, *id)).count();
    assert!((800..1200).contains(&wrong), "{wrong} of 100000");
    assert!((0.009..0.011).contains(&loaded.error_rate), "{}", loaded.error_rate);
}

#[tokio::test]
async fn tells_how_far_it_is() {
    let mut told = Vec::new();
    let filter = LocalFilter::new();
    let tell = |progress: crate::filter::Progress| told.push(progress.keys);
    rebuild(&filter, plan(3000), || users(0..3000), tell).await.unwrap();
    assert_eq!(told, [1024, 2048, 3000]);
}

#[tokio::test]
async fn a_source_that_fails_leaves_the_old_one() {
    let filter = LocalFilter::new();
    rebuild(&filter, plan(1000), || users(0..10), |_| {}).await.unwrap();
    let fails = || stream::iter([Ok("user:20"), Err("the table is locked")]);
    let failed = rebuild(&filter, plan(1000), fails, |_| {}).await;
    assert!(matches!(failed, Err(FilterError::Source(_))), "{failed:?}");
    assert!(!is_absent(&filter, 5) && is_absent(&filter, 20));
    assert!(filter.0.read().built.is_none(), "given up");
}

/// The source waits in its middle; what is inserted meanwhile is in the old and in the new.
#[tokio::test]
async fn inserts_go_to_both_while_it_is_rebuilt_and_deleted_keys_are_forgotten() {
    let filter = LocalFilter::new();
    rebuild(&filter, plan(1000), || users(0..10), |_| {}).await.unwrap();
    let (inside, go_on) = (tokio::sync::oneshot::channel(), tokio::sync::oneshot::channel());
    let source = move || {
        let waits = stream::once(async move {
            inside.0.send(()).unwrap();
            go_on.1.await.unwrap();
            Ok("user:11".to_owned())
        });
        waits.boxed()
    };
    // Another size than before.
    let rebuilt = filter.clone();
    let task = tokio::spawn(async move {
        let source = || source().map(|key: Result<_, Infallible>| key);
        rebuild(&rebuilt, plan(5000), source, |_| {}).await
    });
    soon("the source is read", inside.1).await.unwrap();
    filter.put(b"user:12");
    assert!(!is_absent(&filter, 12) && !is_absent(&filter, 5) && is_absent(&filter, 11));
    go_on.0.send(()).unwrap();
    soon("the rebuild", task).await.unwrap().unwrap();
    assert!(!is_absent(&filter, 12) && !is_absent(&filter, 11));
    assert!(is_absent(&filter, 5), "it was deleted");
}

#[tokio::test]
async fn who_begins_later_is_the_one() {
    let filter = LocalFilter::new();
    let shape = plan(100).shape;
    let mut first = filter.begin(shape).await.unwrap();
    let second = filter.begin(shape).await.unwrap();
    assert!(matches!(first.keep().await, Err(FilterError::Gone)));
    assert!(matches!(first.finish().await, Err(FilterError::Gone)));
    second.finish().await.unwrap();
    assert!(is_absent(&filter, 1));
}

/// The new filter is begun before the source is asked, and settles first.
#[tokio::test(start_paused = true)]
async fn the_source_is_read_after_the_time_to_settle() {
    let (filter, start) = (LocalFilter::new(), tokio::time::Instant::now());
    let begun = filter.clone();
    let source = || {
        assert!(begun.0.read().built.is_some());
        assert!(start.elapsed() >= Duration::from_secs(7));
        users(0..1)
    };
    let slow = plan(100).settle(Duration::from_secs(7));
    rebuild(&filter, slow, source, |_| {}).await.unwrap();
}

/// Threads insert and look while it is rebuilt again and again: what was inserted is never absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_that_was_inserted_is_ever_absent() {
    let (filter, done) = (LocalFilter::new(), Arc::new(AtomicBool::new(false)));
    let rows = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut writers = Vec::new();
    for writer in 0..3_u32 {
        let (filter, done, rows) = (filter.clone(), Arc::clone(&done), Arc::clone(&rows));
        writers.push(tokio::spawn(async move {
            for written in 0..20_000 {
                let key = format!("{writer}:{written}");
                // The order of a write without time to settle: again after the commit.
                filter.put(key.as_bytes());
                rows.lock().push(key.clone());
                filter.put(key.as_bytes());
                assert_ne!(filter.look_at(key.as_bytes()), Verdict::Absent, "{key}");
                if done.load(Ordering::Relaxed) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    eventually("somebody writes", async || !rows.lock().is_empty()).await;
    for _ in 0..30 {
        let table = || stream::iter(rows.lock().clone().into_iter().map(Ok::<_, Infallible>));
        rebuild(&filter, plan(60_000), table, |_| {}).await.unwrap();
        for key in rows.lock().iter().rev().skip(3).take(100) {
            assert_ne!(filter.look_at(key.as_bytes()), Verdict::Absent, "{key}");
        }
    }
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let absent =
        rows.lock().iter().filter(|key| filter.look_at(key.as_bytes()) == Verdict::Absent).count();
    assert_eq!(absent, 0);
}

proptest! {
    /// In Redis a bit is the highest of its byte first.
    #[test]
    fn the_bitmap_has_the_bits_where_redis_has_them(words in 1_u64..50, key: Vec<u8>) {
        let shape = Shape::of(words * 64, 7).unwrap();
        let filter = shape.empty();
        filter.insert_hash(hash(&key));
        let mut expected = vec![0_u8; usize::try_from(words * 8).unwrap()];
        for position in shape.positions(&key) {
            expected[usize::try_from(position / 8).unwrap()] |= 0x80 >> (position % 8);
        }
        prop_assert_eq!(bitmap(&filter).collect::<Vec<_>>(), expected);
    }
}
