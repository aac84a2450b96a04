use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn policy(calls: u32) -> Policy {
    Policy {
        window: 10 * SECOND,
        calls,
        percent: 50,
        open: 2 * SECOND,
        open_longest: 5 * SECOND,
        probe: 3 * SECOND,
    }
}

fn at(secs: u32) -> Instant {
    Instant::from_nanos(1_000_000_000_000) + secs * SECOND
}

/// Opens a new breaker at `at(0)`.
fn opened() -> Breaker {
    let mut breaker = Breaker::new(policy(1));
    let permit = breaker.admit(at(0)).unwrap();
    breaker.report(permit, Outcome::Failed, at(0));
    assert_eq!(breaker.phase(), Phase::Open);
    breaker
}

fn refused_for(breaker: &mut Breaker, now: Instant) -> Duration {
    breaker.admit(now).unwrap_err().retry_after
}

#[test]
fn opens_at_its_share_and_not_for_few_calls() {
    let mut breaker = Breaker::new(policy(4));
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Succeeded, Outcome::GivenUp] {
        let permit = breaker.admit(at(0)).unwrap();
        breaker.report(permit, outcome, at(0));
        assert_eq!(breaker.phase(), Phase::Closed, "three were answered");
    }
    let permit = breaker.admit(at(1)).unwrap();
    breaker.report(permit, Outcome::Succeeded, at(1));
    assert_eq!(breaker.phase(), Phase::Open, "two of four");
}

#[test]
fn stays_closed_below_its_share() {
    let mut breaker = Breaker::new(policy(4));
    for call in 0..1000 {
        let outcome = if call % 3 == 2 { Outcome::Failed } else { Outcome::Succeeded };
        let permit = breaker.admit(at(call / 4)).unwrap();
        breaker.report(permit, outcome, at(call / 4));
        assert_eq!(breaker.phase(), Phase::Closed, "a third failed");
    }
}

#[test]
fn what_lies_before_the_window_is_forgotten() {
    let mut breaker = Breaker::new(policy(2));
    for secs in [0, 10, 20, 30] {
        let permit = breaker.admit(at(secs)).unwrap();
        breaker.report(permit, Outcome::Failed, at(secs));
        assert_eq!(breaker.phase(), Phase::Closed, "one call within 10 s, at {secs}");
    }
    let permit = breaker.admit(at(39)).unwrap();
    breaker.report(permit, Outcome::Failed, at(39));
    assert_eq!(breaker.phase(), Phase::Open, "two calls within 10 s");
}

#[test]
fn one_probe_and_nobody_besides() {
    let mut breaker = opened();
    assert_eq!(refused_for(&mut breaker, at(0)), 2 * SECOND);
    assert_eq!(refused_for(&mut breaker, at(1)), SECOND);
    let probe = breaker.admit(at(2)).unwrap();
    for _ in 0..100 {
        assert!(breaker.admit(at(3)).is_err());
    }
    breaker.report(probe, Outcome::Succeeded, at(3));
    assert_eq!(breaker.phase(), Phase::Closed);
    assert!(breaker.admit(at(3)).is_ok() && breaker.admit(at(3)).is_ok());
}

#[test]
fn every_failed_probe_doubles_the_wait_up_to_the_longest() {
    let (mut breaker, mut now) = (opened(), at(0));
    for wait in [2, 4, 5, 5] {
        assert_eq!(refused_for(&mut breaker, now), wait * SECOND);
        now = now + wait * SECOND;
        let probe = breaker.admit(now).unwrap();
        breaker.report(probe, Outcome::Failed, now);
    }
    now = now + 5 * SECOND;
    let probe = breaker.admit(now).unwrap();
    breaker.report(probe, Outcome::Succeeded, now);
    let permit = breaker.admit(now).unwrap();
    breaker.report(permit, Outcome::Failed, now);
    assert_eq!(refused_for(&mut breaker, now), 2 * SECOND, "begins anew");
}

#[test]
fn a_probe_without_an_answer_has_failed() {
    let mut breaker = opened();
    let probe = breaker.admit(at(2)).unwrap();
    assert_eq!(refused_for(&mut breaker, at(5)), 4 * SECOND);
    breaker.report(probe, Outcome::Succeeded, at(6));
    assert_eq!(breaker.phase(), Phase::Open, "its answer comes too late");
}

#[test]
fn a_probe_that_is_given_up_makes_room_for_another() {
    let mut breaker = opened();
    let probe = breaker.admit(at(2)).unwrap();
    breaker.report(probe, Outcome::GivenUp, at(2));
    let _probe = breaker.admit(at(2)).unwrap();
    assert!(breaker.admit(at(2)).is_err());
}

#[test]
fn answers_from_before_count_for_nothing() {
    let mut breaker = Breaker::new(policy(1));
    let [failing, slow, slower] = [(); 3].map(|()| breaker.admit(at(0)).unwrap());
    breaker.report(failing, Outcome::Failed, at(0));
    breaker.report(slow, Outcome::Succeeded, at(1));
    assert_eq!(breaker.phase(), Phase::Open);
    let probe = breaker.admit(at(2)).unwrap();
    breaker.report(probe, Outcome::Succeeded, at(2));
    breaker.report(slower, Outcome::Failed, at(3));
    assert_eq!(breaker.phase(), Phase::Closed);
}

#[test]
fn a_dropped_pass_is_a_call_given_up() {
    let gate = Gate::new(Policy { calls: 1, open: Duration::ZERO, ..policy(1) });
    gate.enter().unwrap().failed();
    assert_eq!(gate.phase(), Phase::Open);
    let probe = gate.enter().unwrap();
    assert!(gate.enter().is_err());
    drop(probe);
    gate.enter().unwrap().succeeded();
    assert_eq!(gate.phase(), Phase::Closed);
}

/// Plays every order of seven events, and checks after each what is promised.
#[test]
fn every_short_history_keeps_the_promises() {
    const EVENTS: u32 = 7;
    const LENGTH: u32 = 7;
    for mut history in 0..EVENTS.pow(LENGTH) {
        let mut world = World::new();
        for _ in 0..LENGTH {
            world.play(history % EVENTS);
            history /= EVENTS;
        }
        world.heals();
    }
}

struct World {
    breaker: Breaker,
    now: Instant,
    /// Out there, oldest first.
    permits: Vec<Permit>,
    /// Rounds that began with a probe, to count them.
    probes: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let breaker = Breaker::new(policy(2));
        Self { breaker, now: at(0), permits: Vec::new(), probes: Vec::new() }
    }

    fn play(&mut self, event: u32) {
        let before = (self.breaker.phase(), self.breaker.round);
        match event {
            0 => self.ask(),
            1 => self.now = self.now + SECOND,
            2 => self.now = self.now + 3 * SECOND,
            event if self.permits.is_empty() => assert!(event < 7),
            3 => self.answer(0, Outcome::Failed),
            4 => self.answer(self.permits.len() - 1, Outcome::Failed),
            5 => self.answer(self.permits.len() - 1, Outcome::Succeeded),
            _ => self.answer(0, Outcome::GivenUp),
        }
        if before.0 != self.breaker.phase() {
            assert!(self.breaker.round > before.1, "a change that answers from before do not see");
        }
    }

    fn ask(&mut self) {
        let phase = self.breaker.phase();
        match self.breaker.admit(self.now) {
            Ok(permit) => {
                if phase == Phase::Closed {
                    assert_eq!(self.breaker.phase(), Phase::Closed);
                } else {
                    assert_eq!((phase, self.breaker.phase()), (Phase::Open, Phase::HalfOpen));
                    assert!(!self.probes.contains(&permit.round), "a second probe");
                    self.probes.push(permit.round);
                }
                self.permits.push(permit);
            }
            Err(Refused { retry_after }) => {
                assert_ne!(self.breaker.phase(), Phase::Closed);
                assert!(retry_after > Duration::ZERO && retry_after <= 5 * SECOND);
            }
        }
    }

    fn answer(&mut self, at: usize, outcome: Outcome) {
        let permit = self.permits.remove(at);
        let (current, phase) = (permit.round == self.breaker.round, self.breaker.phase());
        self.breaker.report(permit, outcome, self.now);
        let after = self.breaker.phase();
        match (current, phase, outcome) {
            (false, ..) => assert_eq!(after, phase, "an answer from before"),
            (_, Phase::HalfOpen, Outcome::Succeeded) => assert_eq!(after, Phase::Closed),
            (_, Phase::HalfOpen, _) => assert_eq!(after, Phase::Open),
            (_, _, Outcome::GivenUp) => assert_eq!(after, phase),
            _ => {}
        }
    }

    /// Whatever happened: once calls succeed again it closes, and soon.
    fn heals(mut self) {
        for _ in 0..3 {
            self.now = self.now + 5 * SECOND;
            if let Ok(permit) = self.breaker.admit(self.now) {
                self.breaker.report(permit, Outcome::Succeeded, self.now);
            }
        }
        assert_eq!(self.breaker.phase(), Phase::Closed);
    }
}
