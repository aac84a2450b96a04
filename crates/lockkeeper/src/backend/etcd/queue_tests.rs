use proptest::prelude::*;

use super::*;
use crate::clock::Instant;
use crate::model::{Answer, Ask, News, Place as Patience, State, World};

fn owner(number: u8) -> Owner {
    Owner::try_from(format!("test:{number}")).unwrap()
}

/// A key that was created in this revision.
fn waiting(created: i64, who: u8, kind: Kind) -> Entry {
    let id = RequestId::from_bytes(u128::try_from(created).unwrap().to_be_bytes());
    let place = Some(Place::new(id, &owner(who), kind));
    Entry { key: vec![u8::try_from(created).unwrap()], created, modified: created, lease: 1, place }
}

/// One that was granted in that revision.
fn held(created: i64, granted: i64, who: u8, kind: Kind) -> Entry {
    let mut entry = waiting(created, who, kind);
    entry.modified = granted;
    entry.place = entry.place.map(|place| place.holding(None, None));
    entry
}

/// One of another client.
fn foreign(created: i64) -> Entry {
    Entry { place: None, ..waiting(created, 0, Kind::Mutex) }
}

fn key(created: u8) -> Vec<u8> {
    vec![created]
}

const TAKE: Turn = Turn::Take { beside: None, token: None };

fn beside(created: u8, written: i64) -> Turn {
    Turn::Take { beside: Some((key(created), written)), token: None }
}

#[test]
fn who_is_alone_waits_for_the_one_before_or_for_who_passed() {
    let mutex = || waiting(3, 3, Kind::Mutex);
    assert_eq!(turn(&[mutex()], 0, false), TAKE);
    assert_eq!(turn(&[held(1, 1, 1, Kind::Mutex), mutex()], 1, false), Turn::Gone(key(1)));
    let queue = [held(1, 1, 1, Kind::Mutex), waiting(2, 2, Kind::Mutex), mutex()];
    assert_eq!(turn(&queue, 2, false), Turn::Gone(key(2)));
    let passed = [mutex(), held(4, 5, 4, Kind::Read)];
    assert_eq!(turn(&passed, 0, false), Turn::Gone(key(4)));
    assert_eq!(turn(&[mutex(), waiting(4, 4, Kind::Read)], 0, false), TAKE);
}

#[test]
fn other_clients_hold_when_they_are_first_and_are_never_passed() {
    assert_eq!(holders(&[foreign(1), foreign(2)]), [0]);
    assert_eq!(holders(&[held(1, 1, 1, Kind::Read), foreign(2)]), [0]);
    assert_eq!(turn(&[foreign(1), waiting(2, 2, Kind::Mutex)], 1, false), Turn::Gone(key(1)));
    for kind in [Kind::Read, Kind::FairRead] {
        let queue = [held(1, 1, 1, Kind::Read), foreign(2), waiting(3, 3, kind)];
        assert_eq!(turn(&queue, 2, false), Turn::Key(key(2)), "{kind}");
        let queue = [held(1, 1, 3, Kind::Mutex), foreign(2), waiting(3, 3, kind)];
        assert_eq!(turn(&queue, 2, true), Turn::Key(key(2)), "not even beside its own");
    }
}

#[test]
fn readers_share_and_only_unfair_ones_pass() {
    let queue = |kind| [held(1, 1, 1, Kind::Read), waiting(2, 2, Kind::Write), waiting(3, 3, kind)];
    assert_eq!(turn(&queue(Kind::Read), 2, false), beside(1, 1));
    assert_eq!(turn(&queue(Kind::FairRead), 2, false), Turn::Key(key(2)));
    let queue = [held(1, 1, 1, Kind::Write), waiting(2, 2, Kind::Write), waiting(3, 3, Kind::Read)];
    assert_eq!(turn(&queue, 2, false), Turn::Key(key(1)));
    let between =
        [waiting(2, 2, Kind::FairRead), waiting(3, 3, Kind::Write), waiting(4, 4, Kind::Read)];
    assert_eq!(
        turn(&between, 2, false),
        Turn::Key(key(2)),
        "whoever is first says what becomes of it"
    );
    assert_eq!(turn(&between, 0, false), TAKE);
}

#[test]
fn an_owner_reads_beside_its_own_lock_under_its_token() {
    let queue =
        [held(1, 5, 1, Kind::Write), waiting(2, 2, Kind::Write), waiting(3, 1, Kind::FairRead)];
    let own = Turn::Take { beside: Some((key(1), 5)), token: Some(5) };
    assert_eq!(turn(&queue, 2, true), own);
    assert_eq!(turn(&queue, 2, false), Turn::Key(key(2)), "but not when it has waited");
    assert_eq!(turn(&[queue[0].clone(), queue[2].clone()], 1, false), own);
    assert!(!reads(&queue, &owner(1)));
    assert!(reads(&[held(1, 1, 1, Kind::Read)], &owner(1)));
    let behind =
        [held(1, 5, 1, Kind::Write), waiting(2, 2, Kind::Read), waiting(3, 1, Kind::FairRead)];
    assert_eq!(turn(&behind, 2, false), Turn::Key(key(2)), "in order of arrival");
    let twice = [waiting(1, 1, Kind::FairRead), waiting(2, 1, Kind::FairRead)];
    assert_eq!(turn(&twice, 1, false), Turn::Key(key(1)));
}

#[test]
fn permits_are_counted_in_order() {
    let permit = |at, of| waiting(at, 9, Kind::Permit { of });
    let taken = |at, of| held(at, at, 9, Kind::Permit { of });
    assert_eq!(turn(&[taken(1, 2), permit(2, 2)], 1, false), TAKE);
    assert_eq!(turn(&[taken(1, 1), taken(2, 2), permit(3, 2)], 2, false), Turn::Any);
    assert_eq!(turn(&[taken(1, 1), permit(2, 1), permit(3, 3)], 2, false), Turn::Key(key(2)));
}

#[test]
fn what_was_granted_keeps_its_token_when_it_is_written_again() {
    let mut entry = held(2, 7, 1, Kind::Write);
    assert_eq!((entry.token(), entry.since()), (7, 7));
    entry.place = entry.place.map(|place| place.holding(Some(7), Some(7)));
    entry.modified = 30;
    assert_eq!((entry.token(), entry.since()), (7, 7));
    let text = String::from_utf8(entry.place.unwrap().to_value()).unwrap();
    assert_eq!(serde_json::from_str::<Place>(&text).unwrap().held.unwrap().token, Some(7));
    assert!(serde_json::from_str::<Place>("").is_err());
}

#[derive(Clone, Debug)]
enum Op {
    Ask(u8, Kind),
    /// Lets go of the one at this place, or gives up.
    Leave(usize),
    Downgrade(usize),
}

fn ops() -> impl Strategy<Value = (bool, Vec<Op>)> {
    let kind = prop_oneof![
        Just(Kind::Mutex),
        Just(Kind::Read),
        Just(Kind::Write),
        Just(Kind::FairRead),
        Just(Kind::FairWrite),
        (1_u32..4).prop_map(|of| Kind::Permit { of }),
    ];
    let op = prop_oneof![
        4 => (0_u8..3, kind).prop_map(|(who, kind)| Op::Ask(who, kind)),
        3 => (0_usize..8).prop_map(Op::Leave),
        1 => (0_usize..8).prop_map(Op::Downgrade),
    ];
    (any::<bool>(), proptest::collection::vec(op, 1..60))
}

fn take(entry: &mut Entry, token: Option<u64>, revision: &mut i64) {
    *revision += 1;
    entry.modified = *revision;
    entry.place = entry.place.take().map(|place| place.holding(token, None));
}

/// Lets everybody whose turn it is take it, in an order that `seed` chooses, until nobody's is.
fn settle(queue: &mut [Entry], revision: &mut i64, seed: usize) {
    loop {
        let turns: Vec<_> = (0..queue.len())
            .filter_map(|at| match turn(queue, at, false) {
                Turn::Take { token, .. } => Some((at, token)),
                _ => None,
            })
            .collect();
        if turns.is_empty() {
            return;
        }
        let (at, token) = turns[seed % turns.len()];
        take(&mut queue[at], token, revision);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// In whatever order those whose turn it is take it: the holders and the waiters are those of the
    /// model. Who waits watches somebody else who is there.
    #[test]
    fn the_queue_does_as_the_model_says((permits, ops) in ops(), seed in 0_usize..7) {
        let mut model = State::<()>::default();
        let mut counter = 0;
        let (mut queue, mut revision) = (Vec::<Entry>::new(), 0_i64);
        for op in ops {
            let mut news = News::default();
            let mut world =
                World { now: Instant::from_nanos(1), counter: &mut counter, alive: &|()| true, news: &mut news };
            match op {
                Op::Ask(who, kind) if matches!(kind, Kind::Permit { .. }) == permits && revision < 150 => {
                    revision += 1;
                    let entry = waiting(revision, who, kind);
                    let id = RequestId::from_bytes(u128::try_from(revision).unwrap().to_be_bytes());
                    let place = Patience::Kept;
                    let ask = Ask { id, owner: owner(who), kind, ttl: None, tokens: 1, place, party: () };
                    let answer = model.acquire(ask, &mut world);
                    let upgrade = kind.is_exclusive() && reads(&queue, &owner(who));
                    prop_assert_eq!(upgrade, answer == Answer::Upgrade);
                    if !upgrade {
                        queue.push(entry);
                        let me = queue.len() - 1;
                        if let Turn::Take { token, .. } = turn(&queue, me, true) {
                            take(&mut queue[me], token, &mut revision);
                        }
                    }
                }
                Op::Ask(..) => {}
                Op::Leave(at) if at < queue.len() => {
                    let gone = queue.remove(at);
                    let id = u128::from_str_radix(&gone.place.unwrap().id, 16).unwrap();
                    model.release(RequestId::from_bytes(id.to_be_bytes()), &mut world);
                }
                Op::Downgrade(at) if at < queue.len() && queue[at].held().is_some() => {
                    let (token, since) = (queue[at].token(), queue[at].since());
                    revision += 1;
                    queue[at].modified = revision;
                    let mut place = queue[at].place.take().unwrap();
                    place.kind = place.kind.downgraded().unwrap_or(place.kind);
                    let id = u128::from_str_radix(&place.id, 16).unwrap();
                    queue[at].place = Some(place.holding(Some(token), Some(since)));
                    let _ = model.downgrade(RequestId::from_bytes(id.to_be_bytes()), &mut world);
                }
                _ => {}
            }
            settle(&mut queue, &mut revision, seed);
            let status = model.status(&"x".parse().unwrap(), Instant::from_nanos(1));
            let mut expected: Vec<_> = status.holders.iter().map(|h| h.owner.to_string()).collect();
            let mut holding: Vec<_> =
                holders(&queue).iter().map(|at| queue[*at].owner().unwrap().to_string()).collect();
            expected.sort();
            holding.sort();
            prop_assert_eq!(holding, expected);
            let waiters: Vec<_> = queue.iter().filter(|e| e.held().is_none()).map(|e| e.owner().unwrap().clone()).collect();
            prop_assert_eq!(waiters, status.waiters);
            for (at, entry) in queue.iter().enumerate() {
                if let Turn::Key(watched) | Turn::Gone(watched) = turn(&queue, at, false) {
                    prop_assert_ne!(&watched, &entry.key);
                    prop_assert!(queue.iter().any(|other| other.key == watched));
                }
            }
        }
    }
}

/// What a client does that decides on what it saw some time ago.
#[derive(Clone, Debug)]
enum Slow {
    Ask(u8, Kind),
    Leave(usize),
    Downgrade(usize),
    Look(usize),
    /// Acts on what it saw last: only its own key, and the one that it relies on, are compared.
    Act(usize),
    Foreign,
}

fn slow() -> impl Strategy<Value = Vec<Slow>> {
    let kind = prop_oneof![
        1 => Just(Kind::Mutex),
        3 => Just(Kind::Read),
        1 => Just(Kind::Write),
        2 => Just(Kind::FairRead),
    ];
    let op = prop_oneof![
        3 => (0_u8..3, kind).prop_map(|(who, kind)| Slow::Ask(who, kind)),
        2 => (0_usize..8).prop_map(Slow::Leave),
        1 => (0_usize..8).prop_map(Slow::Downgrade),
        6 => (0_usize..8).prop_map(Slow::Look),
        6 => (0_usize..8).prop_map(Slow::Act),
        1 => Just(Slow::Foreign),
    ];
    proptest::collection::vec(op, 1..100)
}

/// Nobody who is alone holds together with another owner.
fn exclusive(queue: &[Entry]) -> bool {
    let holders: Vec<&Entry> = holders(queue).into_iter().map(|at| &queue[at]).collect();
    holders.iter().enumerate().all(|(at, one)| {
        let beside = |other: &&Entry| {
            (one.is_shared() && other.is_shared())
                || (one.owner().is_some() && one.owner() == other.owner())
        };
        holders[at + 1..].iter().all(beside)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    /// However late a client acts on what it has seen: never two holders.
    #[test]
    fn late_decisions_are_safe(ops in slow()) {
        let (mut queue, mut revision) = (Vec::<Entry>::new(), 0_i64);
        let mut decided = std::collections::HashMap::<Vec<u8>, Turn>::new();
        for op in ops {
            match op {
                Slow::Ask(who, kind) if revision < 120 => {
                    revision += 1;
                    let entry = waiting(revision, who, kind);
                    let entry = if queue.is_empty() { held(revision, revision, who, kind) } else { entry };
                    if !(kind.is_exclusive() && reads(&queue, &owner(who))) {
                        queue.push(entry);
                        let me = queue.len() - 1;
                        decided.insert(queue[me].key.clone(), turn(&queue, me, true));
                    }
                }
                Slow::Foreign if revision < 120 => {
                    revision += 1;
                    queue.push(foreign(revision));
                }
                Slow::Leave(at) if at < queue.len() => drop(queue.remove(at)),
                Slow::Downgrade(at) if at < queue.len() && queue[at].held().is_some() => {
                    revision += 1;
                    let (token, since) = (queue[at].token(), queue[at].since());
                    queue[at].modified = revision;
                    let mut place = queue[at].place.take().unwrap();
                    place.kind = place.kind.downgraded().unwrap_or(place.kind);
                    queue[at].place = Some(place.holding(Some(token), Some(since)));
                }
                Slow::Look(at) if at < queue.len() => {
                    decided.insert(queue[at].key.clone(), turn(&queue, at, false));
                }
                Slow::Act(at) if at < queue.len() && queue[at].place.is_some() => {
                    let Some(Turn::Take { beside, token }) = decided.get(&queue[at].key) else { continue };
                    let as_it_was = |(key, written): &(Vec<u8>, i64)| {
                        queue.iter().any(|other| other.key == *key && other.modified == *written)
                    };
                    let unwritten = queue[at].modified == queue[at].created && queue[at].held().is_none();
                    if unwritten && beside.as_ref().is_none_or(as_it_was) {
                        let token = *token;
                        take(&mut queue[at], token, &mut revision);
                    }
                }
                _ => {}
            }
            prop_assert!(exclusive(&queue), "{queue:#?}");
        }
    }
}
