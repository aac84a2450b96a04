//! Each fault, in the smallest history that has it, and next to it the one that just has not.

use std::time::Duration;

use super::*;
use crate::staleness::{Finding, check, judge};

/// What is wrong with the last operation.
fn last(history: &[Operation]) -> Finding {
    *judge(history).unwrap().last().unwrap()
}

fn broken(history: &[Operation]) -> String {
    judge(history).unwrap_err().what
}

fn clean(tried: bool) -> Finding {
    Finding { tried, ..Finding::default() }
}

#[test]
fn what_was_acknowledged_before_the_read_began_must_be_in_it() {
    let story = |read: (u64, u64), version| {
        last(&[write(1, (0, 10), 1), write(1, (20, 30), 2), reads(2, read, version)])
    };
    assert_eq!(story((31, 40), 2), clean(true));
    let stale = story((35, 40), 1);
    assert!(stale.stale());
    assert_eq!((stale.missed, stale.age), (1, Duration::from_nanos(5)));
    let staler = story((35, 40), 0);
    assert_eq!(
        (staler.missed, staler.age),
        (2, Duration::from_nanos(25)),
        "since the first missed"
    );
    assert_eq!(story((30, 40), 1), clean(true), "equal times prove nothing");
    assert_eq!(story((25, 40), 1), clean(true), "while it is written, both are right");
    assert_eq!(story((25, 40), 2), clean(true));
    assert_eq!(story((5, 40), 0), clean(false), "nothing had been acknowledged");
}

#[test]
fn keys_have_nothing_to_do_with_each_other() {
    let other = on("other", write(1, (0, 10), 1));
    assert_eq!(last(&[other.clone(), reads(1, (20, 30), 0)]), clean(false));
    assert!(last(&[other, on("other", reads(1, (20, 30), 0))]).stale());
}

#[test]
fn a_session_must_see_what_it_wrote() {
    let story = |session| last(&[write(1, (0, 10), 1), reads(session, (20, 30), 0)]);
    assert!(story(1).own);
    assert!(!story(2).own && story(2).stale());
    assert!(!last(&[write(1, (0, 10), 1), reads(1, (20, 30), 1)]).own);
}

#[test]
fn a_session_must_not_go_back() {
    // The write is never acknowledged, so nobody is stale.
    let write = with(Outcome::Unknown, write(9, (0, 1000), 1));
    let story =
        |session, when| last(&[write.clone(), reads(1, (10, 20), 1), reads(session, when, 0)]);
    let back = story(1, (21, 30));
    assert!(back.back && back.inverted && !back.stale());
    let other = story(2, (21, 30));
    assert!(!other.back && other.inverted, "another session goes back behind the first");
    assert_eq!(story(2, (20, 30)), clean(false), "equal times prove nothing");
    assert_eq!(story(2, (15, 30)), clean(false), "at the same time, both are right");
}

#[test]
fn what_nobody_wrote_is_dirty() {
    let failed = with(Outcome::Fail, write(1, (0, 10), 1));
    assert!(last(&[failed.clone(), reads(2, (20, 30), 1)]).dirty, "rolled back");
    assert!(last(&[failed, reads(2, (5, 30), 1)]).dirty, "even while it was tried");
    assert!(last(&[reads(2, (20, 30), 7)]).dirty);
    assert_eq!(last(&[reads(2, (20, 30), 0)]), clean(false), "0 was there before");
    // It obliges nobody after it.
    let history = [write(1, (0, 10), 1), reads(2, (20, 30), 7), reads(2, (40, 50), 1)];
    assert_eq!(last(&history), clean(true));
}

#[test]
fn what_was_not_yet_begun_is_of_the_future() {
    let story = |read| judge(&[reads(2, read, 1), write(1, (20, 30), 1)]).unwrap()[0];
    assert!(story((5, 19)).future);
    assert_eq!(story((5, 20)), clean(false));
}

#[test]
fn an_unknown_write_acknowledges_nothing_until_it_is_read() {
    let unknown = with(Outcome::Unknown, write(1, (0, 10), 1));
    assert_eq!(last(&[unknown.clone(), reads(2, (20, 30), 0)]), clean(false));
    assert_eq!(last(&[unknown.clone(), reads(2, (20, 30), 1)]), clean(false));
    let history = [unknown, reads(2, (20, 30), 1), reads(3, (40, 50), 0)];
    let stale = last(&history);
    assert_eq!((stale.missed, stale.age), (1, Duration::from_nanos(10)), "since it was read");
    // Read before its writer gave up: it counts from when that was.
    let slow = with(Outcome::Unknown, write(1, (0, 45), 1));
    let history = |inv| [slow.clone(), reads(2, (20, 30), 1), reads(3, (inv, 90), 0)];
    assert!(!last(&history(45)).stale() && last(&history(45)).inverted);
    assert!(last(&history(46)).stale());
}

#[test]
fn a_write_that_does_not_know_its_version_explains_one() {
    let vague = |inv| with(Outcome::Unknown, did(Kind::Write, 1, (inv, inv + 10), None));
    assert_eq!(last(&[vague(0), reads(2, (20, 30), 1)]), clean(false));
    assert!(last(&[vague(31), reads(2, (20, 30), 1)]).dirty, "it began too late");
    let two = [vague(0), reads(2, (20, 30), 1), reads(2, (40, 50), 2)];
    assert!(last(&two).dirty, "it is one write and not two");
    let more = [vague(0), vague(35), reads(2, (20, 30), 1), reads(2, (40, 50), 2)];
    assert_eq!(last(&more), clean(true), "the first was promoted by its read");
    let old = [write(3, (0, 10), 5), vague(15), reads(2, (30, 40), 4)];
    assert!(last(&old).dirty, "what began after 5 was done is newer than 5");
}

#[test]
fn absent_is_the_version_of_the_delete() {
    let absent = |when| did(Kind::Read, 2, when, None);
    let delete = |when, version| did(Kind::Delete, 1, when, version);
    assert_eq!(last(&[absent((0, 10))]), clean(false), "it never was");
    let inserted = [write(1, (0, 10), 1), absent((20, 30))];
    assert!(last(&inserted).stale(), "a cached nothing after an insert");
    assert_eq!(check(&inserted).unwrap().absent, 1);
    let deleted = [write(1, (0, 10), 1), delete((20, 30), Some(2))];
    let then = |read: Operation| last(&[deleted.as_slice(), &[read]].concat());
    assert_eq!(then(absent((40, 50))), clean(true));
    assert_eq!(then(absent((25, 50))), clean(true));
    assert!(then(absent((15, 19))).stale(), "not yet deleted");
    assert!(then(reads(2, (40, 50), 1)).stale(), "deleted and still there");
    let again = [deleted.as_slice(), &[write(1, (60, 70), 3), absent((80, 90))]].concat();
    assert!(last(&again).stale(), "inserted again and still absent");
    let vague = with(Outcome::Unknown, delete((20, 30), None));
    assert_eq!(last(&[write(1, (0, 10), 1), vague, absent((40, 50))]), clean(true), "who knows");
}

#[test]
fn what_stays_behind_the_database_is_stuck() {
    let ends = |version| did(Kind::Final, 2, (100, 110), Some(version));
    let truth = |version| did(Kind::Truth, 3, (120, 130), Some(version));
    let unknown = with(Outcome::Unknown, write(1, (20, 30), 2));
    let story = |version, truth: Option<Operation>| {
        let mut history = vec![write(1, (0, 10), 1), unknown.clone()];
        history.extend(truth);
        history.push(ends(version));
        last(&history)
    };
    assert!(story(1, Some(truth(2))).stuck, "though it was never acknowledged");
    assert!(!story(1, Some(truth(2))).stale());
    assert!(!story(2, Some(truth(2))).stuck);
    assert!(!story(1, Some(truth(1))).stuck, "it did not happen");
    assert!(story(0, None).stuck, "at least that much the database holds");
    assert!(!story(1, None).stuck, "nobody knows more");
    assert!(!last(&[write(1, (0, 10), 1), reads(2, (20, 30), 0)]).stuck, "not the end");
}

#[test]
fn what_the_database_does_not_hold_is_lost() {
    let truth = |version| did(Kind::Truth, 3, (120, 130), version);
    assert!(last(&[write(1, (0, 10), 1), truth(Some(0))]).lost);
    assert!(last(&[write(1, (0, 10), 1), truth(None)]).lost);
    assert!(!last(&[write(1, (0, 10), 1), truth(Some(1))]).lost);
    let unknown = with(Outcome::Unknown, write(1, (0, 10), 1));
    assert!(!last(&[unknown, truth(Some(0))]).lost);
}

#[test]
fn a_history_that_contradicts_itself_is_no_verdict() {
    assert!(broken(&[reads(1, (10, 5), 0)]).contains("before it began"));
    assert!(broken(&[did(Kind::Write, 1, (0, 1), None)]).contains("no version"));
    assert!(broken(&[write(1, (0, 1), 0)]).contains("version 0"));
    assert!(broken(&[write(1, (0, 1), 4), write(2, (2, 3), 4)]).contains("written twice"));
    assert!(broken(&[write(1, (0, 1), 5), write(2, (2, 3), 4)]).contains("begun after"));
    assert!(broken(&[did(Kind::Truth, 1, (0, 1), Some(3))]).contains("nobody wrote"));
    assert!(judge(&[write(1, (0, 2), 5), write(2, (2, 3), 4)]).is_ok(), "they overlap");
}

#[test]
fn reads_without_an_answer_say_nothing() {
    for outcome in [Outcome::Fail, Outcome::Unknown] {
        let history = [write(1, (0, 10), 1), with(outcome, reads(1, (20, 30), 0))];
        assert_eq!(last(&history), Finding::default());
        let report = check(&history).unwrap();
        assert_eq!((report.reads, report.refused), (0, 1));
        assert!(!report.is_clean(), "nothing was tried");
    }
}
