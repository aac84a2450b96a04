//! Random steps: the stores do what the pure steps say.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_cache::entry::{
    self, Begun, Change, Entry, Filled, Invalidation, Lease, Millis, Settled, Slot, Ticket, Value,
};
use lockkeeper_cache::{Memory, Redis, Seen, Store};
use testkit::random::Random;
use testkit::server;

/// All times are multiples of this. What happens between two steps takes less than half of it.
const UNIT: Millis = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    Get,
    Begin {
        ticket: u8,
        lease: u64,
        except: Option<u8>,
    },
    Fill {
        ticket: u8,
        version: u64,
        ttl: u64,
    },
    Put {
        id: u8,
        version: u64,
        ttl: u64,
    },
    GiveUp {
        ticket: u8,
    },
    Invalidate {
        floor: u64,
        floor_for: u64,
        keep: u64,
    },
    Intend {
        writer: u8,
        ttl: u64,
    },
    Settle {
        writer: u8,
        floor: u64,
        floor_for: u64,
        keep: u64,
    },
    Update {
        ticket: u8,
        version: u64,
        ttl: u64,
        floor_for: u64,
        keep: u64,
    },
    /// So many units pass.
    Pass(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Seen(Seen),
    Begun(Begun),
    Filled(Filled),
    Settled(Settled),
    Updated(bool),
    Done,
}

fn id(random: &mut Random) -> u8 {
    1 + u8::try_from(random.below(3)).unwrap()
}

/// Steps happen at even times, and what they begin ends at odd ones: so never at the same time.
fn odd(random: &mut Random) -> u64 {
    1 + 2 * random.below(4)
}

fn keep(random: &mut Random) -> u64 {
    if random.below(2) == 0 { 0 } else { odd(random) }
}

/// Also such as have no exact number in Lua, and differ in the last bit only.
fn version(random: &mut Random) -> u64 {
    let versions = [0, 1, 2, (1 << 60) + 1, (1 << 60) + 2, u64::MAX];
    versions[usize::try_from(random.below(6)).unwrap()]
}

fn random_step(random: &mut Random) -> Step {
    match random.below(19) {
        0..=4 => {
            let except = (random.below(3) > 0).then(|| id(random));
            Step::Begin { ticket: id(random), lease: odd(random), except }
        }
        5..=9 => Step::Fill { ticket: id(random), version: version(random), ttl: odd(random) },
        10 => Step::GiveUp { ticket: id(random) },
        11 => {
            Step::Invalidate { floor: version(random), floor_for: odd(random), keep: keep(random) }
        }
        12 => Step::Intend { writer: id(random), ttl: odd(random) },
        13 => {
            let (writer, floor) = (id(random), version(random));
            Step::Settle { writer, floor, floor_for: odd(random), keep: keep(random) }
        }
        14 => Step::Get,
        15..=16 => random_update(random),
        17 => Step::Put { id: id(random), version: version(random), ttl: odd(random) },
        _ => Step::Pass(2 * random.below(3)),
    }
}

fn random_update(random: &mut Random) -> Step {
    let (ticket, version, ttl) = (id(random), version(random), odd(random));
    Step::Update { ticket, version, ttl, floor_for: odd(random), keep: keep(random) }
}

fn ticket(id: u8) -> Ticket {
    Ticket::from_bytes([id; 16])
}

fn units(units: u64) -> Millis {
    units * UNIT
}

fn time(of: u64) -> Duration {
    Duration::from_millis(units(of))
}

fn value(id: u8, version: u64) -> Value {
    let payload = (!version.is_multiple_of(2)).then(|| vec![0, 255, id].into());
    let (lease, fill, soft) = (Lease::NONE, ticket(id), u64::MAX);
    let schema = 3 + u32::from(id);
    Value { lease, fill, version, made: 0, soft, cost: id.into(), schema, payload }
}

fn how(floor: u64, floor_for: u64, keep: u64) -> Invalidation {
    Invalidation { floor, floor_ms: units(floor_for), keep_ms: units(keep) }
}

/// What the pure steps say.
#[derive(Default)]
struct Model {
    slots: HashMap<&'static str, Slot>,
    now: Millis,
}

impl Model {
    fn take(&mut self, key: &'static str, step: &Step) -> Answer {
        let (slot, now) = (self.slots.get(key), self.now);
        let (change, answer) = match *step {
            Step::Get => {
                let seen = slot.filter(|slot| slot.expires > now);
                let seen = seen.map_or(Seen::Nothing, |slot| Seen::Entry(slot.entry.clone()));
                (Change::Keep, Answer::Seen(seen))
            }
            Step::Begin { ticket: by, lease, except } => {
                let (change, begun) =
                    entry::begin(slot, now, ticket(by), units(lease), except.map(ticket));
                (change, Answer::Begun(begun))
            }
            Step::Fill { ticket: by, version, ttl } => {
                let (change, filled) = entry::fill(slot, now, &value(by, version), units(ttl));
                (change, Answer::Filled(filled))
            }
            Step::Put { id, version, ttl } => {
                (entry::set(now, &value(id, version), units(ttl)), Answer::Done)
            }
            Step::GiveUp { ticket: by } => (entry::give_up(slot, now, ticket(by)), Answer::Done),
            Step::Invalidate { floor, floor_for, keep } => {
                (entry::invalidate(slot, now, how(floor, floor_for, keep)), Answer::Done)
            }
            Step::Intend { writer, ttl } => {
                (entry::intend(slot, now, ticket(writer), units(ttl)), Answer::Done)
            }
            Step::Settle { writer, floor, floor_for, keep } => {
                let how = how(floor, floor_for, keep);
                let (change, settled) = entry::settle(slot, now, ticket(writer), how);
                (change, Answer::Settled(settled))
            }
            Step::Update { ticket: by, version, ttl, floor_for, keep } => {
                let (value, how) = (value(by, version), how(0, floor_for, keep));
                let (change, updated) = entry::update(slot, now, &value, units(ttl), how);
                (change, Answer::Updated(updated))
            }
            Step::Pass(time) => {
                self.now += units(time);
                (Change::Keep, Answer::Done)
            }
        };
        match change {
            Change::Keep => {}
            Change::Put(slot) => drop(self.slots.insert(key, slot)),
            Change::Remove => drop(self.slots.remove(key)),
        }
        answer
    }
}

async fn take(store: &dyn Store, key: &str, step: &Step) -> Answer {
    match *step {
        Step::Get => Answer::Seen(store.get(&[key]).await.unwrap().remove(0)),
        Step::Begin { ticket: by, lease, except } => {
            let except = except.map(ticket);
            Answer::Begun(store.begin(key, ticket(by), time(lease), except).await.unwrap())
        }
        Step::Fill { ticket: by, version, ttl } => {
            Answer::Filled(store.fill(key, &value(by, version), time(ttl)).await.unwrap())
        }
        Step::Put { id, version, ttl } => {
            store.put(key, &value(id, version), time(ttl)).await.unwrap();
            Answer::Done
        }
        Step::GiveUp { ticket: by } => {
            store.give_up(key, ticket(by)).await.unwrap();
            Answer::Done
        }
        Step::Invalidate { floor, floor_for, keep } => {
            store.invalidate(&[key], how(floor, floor_for, keep)).await.unwrap();
            Answer::Done
        }
        Step::Intend { writer, ttl } => {
            store.intend(&[key], ticket(writer), time(ttl)).await.unwrap();
            Answer::Done
        }
        Step::Settle { writer, floor, floor_for, keep } => {
            let how = how(floor, floor_for, keep);
            Answer::Settled(store.settle(&[key], ticket(writer), how).await.unwrap())
        }
        Step::Update { ticket: by, version, ttl, floor_for, keep } => {
            let (value, how) = (value(by, version), how(0, floor_for, keep));
            let updated = store.update(&[(key, &value, time(ttl))], how).await.unwrap();
            Answer::Updated(updated[0])
        }
        Step::Pass(_) => Answer::Done,
    }
}

/// Times in units since that moment; those that are none stay what they are.
fn rounded(answer: Answer, since: Millis) -> Answer {
    let round = |time: &mut Millis| {
        if *time != 0 && *time != u64::MAX {
            // One more, because at the first moment it would be none.
            *time = (*time + UNIT / 2).saturating_sub(since) / UNIT + 1;
        }
    };
    let round_value = |value: &mut Value| {
        round(&mut value.lease.until);
        round(&mut value.made);
    };
    let round_entry = |entry: &mut Entry| match entry {
        Entry::Value(value) => round_value(value),
        Entry::Gap(gap) => {
            round(&mut gap.lease.until);
            round(&mut gap.died);
            gap.last.iter_mut().for_each(round_value);
        }
        Entry::Intents(intents) => {
            intents.writers.iter_mut().for_each(|by| round(&mut by.until));
        }
    };
    let mut answer = answer;
    match &mut answer {
        Answer::Seen(Seen::Entry(entry)) | Answer::Begun(Begun::There(entry)) => round_entry(entry),
        Answer::Begun(Begun::Granted { now, .. }) => round(now),
        _ => {}
    }
    answer
}

/// Compares a store with the model, which begins at its time.
async fn compare(store: &dyn Store, pass: impl Fn(Millis), runs: usize, length: usize) {
    let mut random = Random::seeded();
    let since = store.now();
    // At zero the model would die at no time at all.
    let mut model = Model { now: since, ..Model::default() };
    let (mut filled, mut refused, mut updated) = (0, 0, 0);
    let mut just_filled = false;
    for run in 0..runs {
        let keys = [format!("a{run}"), format!("b{run}")].map(|key| &*key.leak());
        let mut key = keys[0];
        for _ in 0..length {
            if !just_filled {
                key = keys[usize::try_from(random.below(2)).unwrap()];
            }
            // Not often enough by chance: there must be a value to be replaced.
            let step = match std::mem::take(&mut just_filled) {
                true if random.below(2) == 0 => random_update(&mut random),
                _ => random_step(&mut random),
            };
            for step in [step, Step::Get] {
                let expected = model.take(key, &step);
                pass(model.now - since);
                let answer = take(store, key, &step).await;
                match answer {
                    Answer::Filled(Filled::Done) => (filled, just_filled) = (filled + 1, true),
                    Answer::Filled(_) => refused += 1,
                    Answer::Updated(true) => updated += 1,
                    _ => {}
                }
                let [answer, expected] = [answer, expected].map(|one| rounded(one, since));
                assert_eq!(answer, expected, "{step:?} on {key} at {}", model.now - since);
            }
        }
    }
    let text = format!("{filled} filled, {refused} refused, {updated} updated");
    assert!(filled > runs / 2 && refused > runs / 2 && updated > runs / 40, "{text}");
}

#[tokio::test]
async fn memory_takes_the_steps_as_they_are() {
    let clock = Arc::new(AtomicU64::new(7 * UNIT));
    let shown = Arc::clone(&clock);
    let memory = Memory::with_clock(10_000, move || shown.load(Ordering::SeqCst));
    let pass = |passed| clock.store(7 * UNIT + passed, Ordering::SeqCst);
    compare(&memory, pass, 300, 60).await;
}

#[tokio::test]
async fn the_scripts_say_the_same_in_lua() {
    let server = server::redis_with_a_clock().await;
    let redis = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let last = AtomicU64::new(0);
    let pass = |passed: Millis| {
        if last.swap(passed, Ordering::SeqCst) != passed {
            server.set_clock(Duration::from_millis(passed));
        }
    };
    compare(&redis, pass, 100, 60).await;
}
