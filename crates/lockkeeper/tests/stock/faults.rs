//! Answers that are lost, and callers that do not wait for theirs.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper::backend::Cells;
use lockkeeper::backend::memory::Memory;
use lockkeeper::{Locks, StripedStock};
use testkit::faulty::{Faults, Faulty, Mode};
use testkit::wait::{eventually, soon};

/// A stock of 20 in two segments, behind a store that can be told to fail; and past that.
async fn stock() -> (StripedStock, StripedStock, Arc<Faults>) {
    let memory = Memory::private();
    let (faulty, faults) = Faulty::new(Arc::<Memory>::clone(&memory));
    let (here, past) = (Locks::new(faulty).stock("s", 2), Locks::new(memory).stock("s", 2));
    past.restock(20).await.unwrap();
    assert_eq!(here.remaining().await.unwrap(), 20);
    (here, past, faults)
}

#[tokio::test]
async fn a_lost_answer_takes_once() {
    let (here, past, faults) = stock().await;
    // One segment, then both.
    for (portion, left) in [(3, 17), (12, 5)] {
        faults.swap.set(Mode::LoseReply);
        assert!(soon("it finds out", here.take(portion)).await.unwrap());
        faults.swap.set(Mode::Pass);
        assert_eq!(past.remaining().await.unwrap(), left);
    }
    faults.swap.set(Mode::LoseReply);
    soon("restocked", here.restock(4)).await.unwrap();
    assert_eq!(past.remaining().await.unwrap(), 9);
}

#[tokio::test]
async fn a_lost_answer_is_found_out_though_others_have_written_since() {
    let (here, past, faults) = stock().await;
    // Both the answer and what is asked next.
    faults.swap.set(Mode::LoseReply);
    faults.read.set(Mode::Hang);
    let taking = tokio::spawn(async move { here.take(1).await });
    eventually("it looks what came of it", async || faults.read.begun() == 2).await;
    for _ in 0..5 {
        assert!(past.take(1).await.unwrap());
    }
    faults.swap.set(Mode::Pass);
    faults.read.set(Mode::Pass);
    assert!(soon("told", taking).await.unwrap().unwrap());
    assert_eq!(past.remaining().await.unwrap(), 14);
}

/// As from a database whose replica is about to become the primary: it refuses what it is asked, and that
/// is no word about what was taken.
#[tokio::test]
async fn a_lost_answer_is_found_out_though_the_store_refuses_meanwhile() {
    let (here, past, faults) = stock().await;
    faults.swap.set(Mode::LoseReply);
    faults.refuses_reads.store(true, Ordering::Relaxed);
    let taking = tokio::spawn(async move { here.take(3).await });
    eventually("it looks what came of it", async || faults.read.begun() >= 2).await;
    assert_eq!(past.remaining().await.unwrap(), 17);
    faults.swap.set(Mode::Pass);
    faults.refuses_reads.store(false, Ordering::Relaxed);
    assert!(soon("told", taking).await.unwrap().unwrap());
    assert_eq!(past.remaining().await.unwrap(), 17);
}

#[tokio::test]
async fn a_request_that_did_not_arrive_is_sent_again() {
    let (here, past, faults) = stock().await;
    faults.swap.set(Mode::Fail);
    let taking = tokio::spawn(async move { here.take(12).await });
    eventually("it was tried", async || faults.swap.begun() >= 2).await;
    assert_eq!(past.remaining().await.unwrap(), 20);
    faults.swap.set(Mode::Pass);
    assert!(soon("taken", taking).await.unwrap().unwrap());
    assert_eq!(past.remaining().await.unwrap(), 8);
}

/// Finding out that it did not arrive must not look like somebody else's.
#[tokio::test]
async fn a_first_restocking_that_did_not_arrive_is_still_the_first() {
    let memory = Memory::private();
    let (faulty, faults) = Faulty::new(Arc::<Memory>::clone(&memory));
    let (here, past) = (Locks::new(faulty).stock("s", 2), Locks::new(memory).stock("s", 2));
    faults.swap.set(Mode::Fail);
    let restocking = tokio::spawn(async move { here.restock_first(20).await });
    eventually("it was tried", async || faults.swap.begun() >= 2).await;
    faults.swap.set(Mode::Pass);
    assert!(soon("restocked", restocking).await.unwrap().unwrap());
    assert_eq!(past.remaining().await.unwrap(), 20);
    assert!(!past.restock_first(20).await.unwrap());
}

#[tokio::test]
async fn what_was_taken_for_nobody_is_put_back() {
    let (here, past, faults) = stock().await;
    for portion in [1, 12] {
        let done = faults.swap.done();
        faults.swap.set(Mode::HoldReply);
        let taker = here.clone();
        let taking = tokio::spawn(async move { taker.take(portion).await });
        eventually("it is done at the store", async || faults.swap.done() > done).await;
        assert_eq!(past.remaining().await.unwrap(), 20 - portion);
        taking.abort();
        assert!(taking.await.unwrap_err().is_cancelled());
        faults.swap.set(Mode::Pass);
        faults.swap.deliver();
        eventually("it is put back", async || past.remaining().await.unwrap() == 20).await;
    }
}

/// Others are always faster in one of three segments: it is content with two at a time.
#[tokio::test]
async fn who_cannot_have_all_segments_at_once_gathers_them() {
    let memory = Memory::private();
    let (faulty, faults) = Faulty::new(Arc::<Memory>::clone(&memory));
    let (here, past) = (Locks::new(faulty).stock("s", 8), Locks::new(memory).stock("s", 8));
    past.restock(40).await.unwrap();
    faults.most_cells.store(2, Ordering::Relaxed);
    assert!(soon("gathered", here.take(33)).await.unwrap());
    assert_eq!(past.remaining().await.unwrap(), 7);
    assert!(!soon("there is not so much", here.take(8)).await.unwrap());
    assert!(past.take(7).await.unwrap());
    assert_eq!(past.segments().await.unwrap(), [0; 8]);
}

/// Who goes away in the middle of it leaves nothing where others cannot have it.
#[tokio::test]
async fn what_was_gathered_is_there_for_all() {
    let memory = Memory::private();
    let (faulty, faults) = Faulty::new(Arc::<Memory>::clone(&memory));
    let (here, past) = (Locks::new(faulty).stock("s", 4), Locks::new(memory).stock("s", 4));
    past.restock(20).await.unwrap();
    faults.most_cells.store(2, Ordering::Relaxed);
    // As if it was killed after the first of its steps.
    faults.last_of_several.store(true, Ordering::Relaxed);
    let taking = tokio::spawn(async move { here.take(18).await });
    eventually("it has begun", async || past.segments().await.unwrap().len() == 5).await;
    assert_eq!(past.remaining().await.unwrap(), 20);
    assert!(past.take(20).await.unwrap());
    assert_eq!(past.segments().await.unwrap(), [0; 4]);
    assert!(!soon("it is told", taking).await.unwrap().unwrap());
}

/// A future that is neither polled nor dropped must not stop the others for ever.
#[tokio::test]
async fn who_waits_for_a_task_that_stands_still_is_told() {
    let (here, past, faults) = stock().await;
    faults.swap.set(Mode::HoldReply);
    let mut held = Box::pin(here.take(12));
    // Until it waits for its answer.
    while faults.swap.done() == 0 {
        let look =
            |context: &mut Context<'_>| Poll::Ready(held.as_mut().poll(context).is_pending());
        assert!(poll_fn(look).await);
    }
    let error = here.take(7).await.unwrap_err();
    assert!(matches!(error, lockkeeper::Error::Unavailable { .. }), "{error}");
    assert_eq!(past.remaining().await.unwrap(), 8, "the other has taken, and this one has not");
    faults.swap.set(Mode::Pass);
    faults.swap.deliver();
    drop(held);
    eventually("it is put back", async || past.remaining().await.unwrap() == 20).await;
}

#[tokio::test]
async fn dropped_anywhere_it_leaves_nothing() {
    let (here, past, _faults) = stock().await;
    for time in 0..200 {
        let taking = here.take(1 + time % 15);
        // Whoever is told that it was taken puts it back.
        if let Ok(taken) = tokio::time::timeout(Duration::from_micros(time), taking).await
            && taken.unwrap()
        {
            here.restock(1 + time % 15).await.unwrap();
        }
    }
    eventually("all of it is there", async || past.remaining().await.unwrap() == 20).await;
}

/// As it would be sent by a process that was stopped in the middle, and wakes up.
#[tokio::test]
async fn a_write_that_comes_late_is_refused() {
    let memory = Memory::private();
    let stock = Locks::new(Arc::<Memory>::clone(&memory)).stock("s", 2);
    stock.restock(20).await.unwrap();
    let name = "s".parse().unwrap();
    let seen = Cells::read(&*memory, &name, 2).await.unwrap();
    assert!(stock.take(20).await.unwrap());
    let late = |cell: usize| lockkeeper::backend::Write {
        cell,
        version: seen[cell].version,
        value: seen[cell].value.clone(),
    };
    for writes in [vec![late(0)], vec![late(0), late(1)]] {
        assert!(!memory.swap(&name, &writes).await.unwrap());
    }
    assert_eq!(stock.remaining().await.unwrap(), 0);
}
