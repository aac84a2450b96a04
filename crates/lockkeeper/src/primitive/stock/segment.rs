//! What is written in one segment of a stock, and what can be told from it.

use serde::{Deserialize, Serialize};

/// So many clients are remembered in a segment, the last to write.
const REMEMBERED: usize = 64;

/// One segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// How many segments the stock has; zero while nothing was ever put in.
    pub(super) of: usize,
    pub(super) amount: u64,
    /// How often it was written.
    writes: u64,
    /// The last change of each client: client, change, and which write it was. So a client whose answer
    /// was lost finds out whether its change was made.
    last: Vec<(u64, u64, u64)>,
}

/// Names one change of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeId {
    pub(super) client: u64,
    pub(super) number: u64,
}

/// Whether a change was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Yes,
    /// Nor will it be: the segment is not any more as it expects it.
    No,
    /// It may still arrive.
    NotYet,
    /// Too many others have written since.
    Forgotten,
}

impl Segment {
    pub(super) fn read(value: &[u8]) -> Result<Self, serde_json::Error> {
        if value.is_empty() { Ok(Self::default()) } else { serde_json::from_slice(value) }
    }

    pub(super) fn to_value(&self) -> Vec<u8> {
        // Numbers only: it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// With another amount.
    pub(super) fn changed(&self, of: usize, amount: u64, id: ChangeId) -> Self {
        let mut next = self.touched();
        (next.of, next.amount) = (of, amount);
        next.last.retain(|(client, ..)| *client != id.client);
        next.last.push((id.client, id.number, next.writes));
        // Whoever wrote first of all is at the front.
        let old = next.last.len().saturating_sub(REMEMBERED);
        next.last.drain(..old);
        next
    }

    /// Written again without a change, so that nothing that expects it as it was can change it.
    pub(super) fn touched(&self) -> Self {
        Self { writes: self.writes + 1, ..self.clone() }
    }

    /// Whether the change was made that expected the segment to be as `before`. Its client has not sent
    /// another one since.
    pub(super) fn made(&self, before: &Self, id: ChangeId) -> Made {
        if self.writes <= before.writes {
            return Made::NotYet;
        }
        match self.last.iter().find(|(client, ..)| *client == id.client) {
            Some((_, number, _)) if *number == id.number => Made::Yes,
            Some(_) => Made::No,
            // Who is not remembered wrote before all who are.
            None => match self.last.first() {
                Some((.., oldest))
                    if self.last.len() >= REMEMBERED && *oldest > before.writes + 1 =>
                {
                    Made::Forgotten
                }
                _ => Made::No,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: u64, number: u64) -> ChangeId {
        ChangeId { client, number }
    }

    #[test]
    fn a_segment_survives_a_round_trip_and_nothing_is_an_empty_one() {
        let segment = Segment::default().changed(10, u64::MAX, id(u64::MAX, 1));
        assert_eq!(Segment::read(&segment.to_value()).unwrap(), segment);
        assert_eq!(Segment::read(b"").unwrap(), Segment::default());
        assert!(Segment::read(b"7").is_err());
    }

    #[test]
    fn whoever_lost_an_answer_finds_out() {
        let before = Segment::default().changed(1, 5, id(1, 1));
        assert_eq!(before.made(&before, id(1, 2)), Made::NotYet);
        let mine = before.changed(1, 4, id(1, 2));
        assert_eq!(mine.made(&before, id(1, 2)), Made::Yes);
        let others = before.changed(1, 4, id(2, 1));
        assert_eq!(others.made(&before, id(1, 2)), Made::No);
        assert_eq!(before.touched().made(&before, id(1, 2)), Made::No);
        assert_eq!(others.made(&before, id(3, 1)), Made::No, "one that never wrote");
        assert_eq!(mine.changed(1, 3, id(2, 1)).touched().made(&before, id(1, 2)), Made::Yes);
    }

    #[test]
    fn what_was_forgotten_is_not_taken_for_a_no() {
        let before = Segment::default();
        let mut now = before.changed(1, 0, id(0, 1));
        for other in 1..=64 {
            assert_eq!(now.made(&before, id(0, 1)), Made::Yes);
            now = now.changed(1, 0, id(other, 1));
        }
        assert_eq!(now.made(&before, id(0, 1)), Made::Forgotten);
        // One that never wrote, and was there when those who are remembered began to.
        assert_eq!(now.made(&now.touched(), id(99, 1)), Made::NotYet);
        let later = now.changed(1, 0, id(1, 2));
        assert_eq!(later.made(&now, id(99, 1)), Made::No);
    }
}
