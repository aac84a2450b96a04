//! The referee sees what is wrong, and only that.

use async_trait::async_trait;

use super::*;
use crate::conformance::judge::accepted;
use crate::party::Ours;

const ALL: Skills = Skills {
    reentrant: true,
    bounded: true,
    counts: false,
    tries: true,
    ours: true,
    here: true,
    mutex: false,
};

/// Answers by rote; without an answer it waits for ever.
struct Rote(Option<Answer>);

#[async_trait]
impl Party for Rote {
    async fn ask(&mut self, _: Ask) -> Answer {
        match self.0.clone() {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

fn crowd(locks: &Locks) -> Crowd {
    Crowd::new(locks, &"x".parse().unwrap(), Duration::from_millis(100))
}

async fn rote(answers: [Option<Answer>; 2], asks: [Ask; 2]) {
    let mut crowd = crowd(&Locks::memory());
    for answer in answers {
        crowd.seat("rote", ALL, Rote(answer));
    }
    for (seat, ask) in asks.into_iter().enumerate() {
        crowd.step(Seat(seat), ask).await;
    }
    crowd.finish().await;
}

const TRY: Ask = Ask::Try(Way::Mutex);

#[tokio::test]
#[should_panic(expected = "rote#1 has the lock against the rule")]
async fn two_holders_are_seen() {
    rote([Some(Answer::Has(1)), Some(Answer::Has(2))], [TRY, TRY]).await;
}

#[tokio::test]
#[should_panic(expected = "rote#1 is refused what is free")]
async fn a_lock_that_nobody_gets_is_seen() {
    rote([Some(Answer::Busy), Some(Answer::Busy)], [Ask::Check, TRY]).await;
}

#[tokio::test]
#[should_panic(expected = "rote#0 is not woken within")]
async fn one_that_is_not_woken_is_seen() {
    rote([None, None], [Ask::Lock(Way::Mutex), TRY]).await;
}

#[tokio::test]
#[should_panic(expected = "rote#1 came back without the lock")]
async fn a_wait_without_end_that_ends_is_seen() {
    let lock = Ask::Lock(Way::Mutex);
    rote([Some(Answer::Has(1)), Some(Answer::Busy)], [TRY, lock]).await;
}

#[tokio::test]
#[should_panic(expected = "rote#1 holds it 0 times, says 1")]
async fn a_wrong_count_is_seen() {
    let count = Ask::Count(Way::Mutex);
    rote([Some(Answer::Has(1)), Some(Answer::Count(1))], [TRY, count]).await;
}

#[tokio::test]
#[should_panic(expected = "rote#1 has the lock against the rule")]
async fn a_hold_that_ends_before_its_lease_is_seen() {
    let mut crowd = crowd(&Locks::memory());
    let one = crowd.seat("rote", ALL, Rote(Some(Answer::Has(1))));
    let other = crowd.seat("rote", ALL, Rote(Some(Answer::Has(2))));
    crowd.step(one, TRY).await;
    crowd.crash(&[one], Instant::now() + LONG, LONG).await;
    crowd.step(other, TRY).await;
}

#[tokio::test]
async fn what_every_backend_does_is_right() {
    for ways in [
        &[Way::Mutex, Way::Fair][..],
        &[Way::Read, Way::Write, Way::FairRead, Way::FairWrite],
        &[Way::Permit(2)],
    ] {
        let locks = Locks::memory();
        let mut crowd = crowd(&locks);
        for _ in 0..2 {
            crowd.seat("plain", Skills { reentrant: false, ..ALL }, Ours::new(locks.clone(), "x"));
            let owned = locks.owned_by(&locks.new_owner());
            // An owner that reads twice, once by a downgrade, is more than the referee can tell apart.
            let reentrant = ways.contains(&Way::Mutex);
            crowd.seat("owned", Skills { reentrant, ..ALL }, Ours::new(owned, "x"));
        }
        let mut random = Random::seeded();
        for _ in 0..1000 {
            crowd.wander(&mut random, ways).await;
        }
        crowd.finish().await;
        accepted(crowd.verdict(ways[0].is_permit().then_some(2)));
    }
}
