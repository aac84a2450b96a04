//! What is true of the model itself after every step, whatever happens: requests, releases,
//! evictions, time that passes, parties that die.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper::backend::{Kind, Status};
use lockkeeper::clock::Instant;
use lockkeeper::model::{Answer, Ask, News, Place, State, World};
use lockkeeper::{Name, Owner, RequestId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Ask { kind: Kind, waits: bool, ttl: Option<u64> },
    AskAgain(u32),
    Release(u32),
    Renew(u32, u64),
    Downgrade(u32),
    Evict,
    Pass(u64),
    Die(u32),
    Settle,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kind = prop_oneof![
        3 => Just(Kind::Mutex),
        2 => Just(Kind::FairMutex),
        3 => Just(Kind::Read),
        2 => Just(Kind::Write),
        3 => Just(Kind::FairRead),
        2 => Just(Kind::FairWrite),
        1 => (1_u32..4).prop_map(|of| Kind::Permit { of }),
    ];
    let ask = (kind, any::<bool>(), proptest::option::of(1_u64..20))
        .prop_map(|(kind, waits, ttl)| Op::Ask { kind, waits, ttl });
    let op = prop_oneof![
        8 => ask,
        2 => (0_u32..20).prop_map(Op::AskAgain),
        5 => (0_u32..20).prop_map(Op::Release),
        2 => (0_u32..20, 1_u64..20).prop_map(|(who, ttl)| Op::Renew(who, ttl)),
        2 => (0_u32..20).prop_map(Op::Downgrade),
        1 => Just(Op::Evict),
        3 => (1_u64..15).prop_map(Op::Pass),
        1 => (0_u32..20).prop_map(Op::Die),
        1 => Just(Op::Settle),
    ];
    proptest::collection::vec(op, 1..60)
}

/// A waiter keeps its place for so long.
const PLACE: Duration = Duration::from_secs(5);

/// Everybody is a party of its own, with one request: `who` is owner, request and party.
#[derive(Default)]
struct Run {
    state: State<u32>,
    counter: u64,
    now: u64,
    kinds: BTreeMap<u32, (Kind, bool, Option<u64>)>,
    dead: BTreeSet<u32>,
    /// The token that each one got.
    tokens: BTreeMap<u32, u64>,
}

fn owner(who: u32) -> Owner {
    Owner::try_from(format!("p:{who}")).unwrap()
}

fn who(owner: &Owner) -> u32 {
    owner.to_string().strip_prefix("p:").unwrap().parse().unwrap()
}

fn id(who: u32) -> RequestId {
    RequestId::from_bytes(u128::from(who).to_be_bytes())
}

impl Run {
    fn step<T>(&mut self, step: impl FnOnce(&mut State<u32>, &mut World<'_, u32>) -> T) -> T {
        let mut news = News::default();
        let dead = &self.dead;
        let mut world = World {
            now: Instant::from_nanos(0) + Duration::from_secs(self.now),
            counter: &mut self.counter,
            alive: &|party: &u32| !dead.contains(party),
            news: &mut news,
        };
        step(&mut self.state, &mut world)
    }

    fn ask(&mut self, who: u32) {
        let Some((kind, waits, ttl)) = self.kinds.get(&who).copied() else { return };
        let ask = Ask {
            id: id(who),
            owner: owner(who),
            kind,
            ttl: ttl.map(Duration::from_secs),
            tokens: 1 + who % 3,
            place: if waits { Place::Leased(PLACE) } else { Place::None },
            party: who,
        };
        self.step(|state, world| state.acquire(ask, world));
    }

    fn run(&mut self, op: &Op) {
        let fresh = u32::try_from(self.kinds.len()).unwrap();
        match *op {
            Op::Ask { kind, waits, ttl } => {
                self.kinds.insert(fresh, (kind, waits, ttl));
                self.ask(fresh);
            }
            // Only one that has a hold or a place asks again; a released request is not used twice.
            Op::AskAgain(who) if self.is_known(who) && !self.dead.contains(&who) => self.ask(who),
            Op::AskAgain(_) => {}
            Op::Release(who) => drop(self.step(|state, world| state.release(id(who), world))),
            Op::Renew(who, ttl) => {
                let ttl = Some(Duration::from_secs(ttl));
                let _lost = self.step(|state, world| state.renew(id(who), ttl, world));
            }
            Op::Downgrade(who) => {
                let down = self.step(|state, world| state.downgrade(id(who), world)).is_ok();
                if let Some((kind, ..)) = self.kinds.get_mut(&who)
                    && down
                {
                    *kind = kind.downgraded().unwrap_or(*kind);
                }
            }
            Op::Evict => {
                let before = self.counter;
                let (_, token) = self.step(|state, world| state.evict("why", world));
                assert!(token.get() > before);
            }
            Op::Pass(seconds) => self.now += seconds,
            Op::Die(who) => drop(self.dead.insert(who)),
            Op::Settle => self.settle(),
        }
    }

    fn settle(&mut self) {
        self.step(State::settle);
    }

    fn status(&self) -> Status {
        let name: Name = "x".parse().unwrap();
        self.state.status(&name, Instant::from_nanos(0) + Duration::from_secs(self.now))
    }

    fn is_known(&self, party: u32) -> bool {
        let status = self.status();
        status.holders.iter().any(|holding| who(&holding.owner) == party)
            || status.waiters.iter().any(|waiter| who(waiter) == party)
    }

    fn kind(&self, owner: &Owner) -> Kind {
        self.kinds[&who(owner)].0
    }

    /// What must be true after every step.
    fn check(&mut self) {
        let status = self.status();
        let holders: Vec<Kind> = status.holders.iter().map(|h| self.kind(&h.owner)).collect();
        if holders.iter().any(|kind| kind.is_exclusive()) {
            assert_eq!(holders.len(), 1, "alone: {status:?}");
        }
        let permits = holders.iter().filter_map(|kind| match kind {
            Kind::Permit { of } => Some(*of as usize),
            _ => None,
        });
        if let Some(most) = permits.max() {
            assert!(holders.len() <= most, "{status:?}");
        }
        for holding in &status.holders {
            let (who, token) = (who(&holding.owner), holding.token.get());
            // A hold keeps its token. One that ran out and was asked for again is a new grant.
            if self.tokens.get(&who) != Some(&token) {
                assert!(
                    self.tokens.values().all(|other| *other < token),
                    "tokens grow: {status:?}"
                );
                self.tokens.insert(who, token);
            }
        }
        for (place, waiter) in status.waiters.iter().enumerate() {
            let kind = self.kind(waiter);
            if place == 0 || kind == Kind::Read {
                assert!(!room(&holders, kind), "free while {waiter} waits: {status:?}");
            }
        }
        for who in status.holders.iter().map(|h| &h.owner).chain(&status.waiters) {
            let twice = status.waiters.iter().filter(|waiter| *waiter == who).count()
                + status.holders.iter().filter(|holding| holding.owner == *who).count();
            assert_eq!(twice, 1, "one request, one place: {status:?}");
        }
    }
}

/// Whether there is room for one more, written down again and in another way than in the model.
fn room(holders: &[Kind], kind: Kind) -> bool {
    match kind {
        Kind::Permit { of } => holders.len() < of as usize,
        kind if kind.is_shared() => holders.iter().all(|held| held.is_shared()),
        _ => holders.is_empty(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_keeps_the_promises(ops in ops()) {
        let mut run = Run::default();
        for op in &ops {
            run.run(op);
            run.check();
        }
        // The dead are forgotten.
        run.settle();
        run.check();
        let dead: Vec<u32> = run.dead.iter().copied().collect();
        prop_assert!(dead.iter().all(|dead| !run.is_known(*dead)));
        // What has a lease ends, and so does every place that nobody asks for again; each hand-over
        // on the way begins a lease of its own.
        for _ in 0..ops.len() {
            run.now += 100;
            run.settle();
            run.check();
        }
        let status = run.status();
        let kept = status.holders.iter().all(|holding| run.kinds[&who(&holding.owner)].2.is_none());
        prop_assert!(kept && status.waiters.is_empty(), "{status:?}");
    }
}

/// A writer in line whose owner is granted another request, for reading, before it: it asks again and
/// finds its place, as every repeated request does.
#[test]
fn a_request_in_line_keeps_its_place_whatever_its_owner_is_granted() {
    let (mut state, mut counter) = (State::<u32>::default(), 0);
    let mut ask = |number: u32, who: u32, kind: Kind| {
        let place = Place::Leased(PLACE);
        let ttl = Some(PLACE * 10);
        let ask =
            Ask { id: id(number), owner: owner(who), kind, ttl, tokens: 1, place, party: who };
        let mut news = News::default();
        let now = Instant::from_nanos(u64::from(number));
        let mut world = World { now, counter: &mut counter, alive: &|_| true, news: &mut news };
        if number == 0 {
            state.release(id(1), &mut world);
        }
        state.acquire(ask, &mut world)
    };
    assert!(matches!(ask(1, 1, Kind::Mutex), Answer::Granted { .. }));
    assert_eq!(ask(2, 2, Kind::Read), Answer::Queued);
    assert_eq!(ask(3, 2, Kind::Write), Answer::Queued);
    // The first one leaves, and the reader is served.
    assert!(matches!(ask(0, 3, Kind::Read), Answer::Granted { .. }));
    assert!(matches!(ask(2, 2, Kind::Read), Answer::Granted { .. }));
    assert_eq!(ask(3, 2, Kind::Write), Answer::Queued);
    assert_eq!(ask(4, 2, Kind::Write), Answer::Upgrade, "one that comes now is refused");
}
