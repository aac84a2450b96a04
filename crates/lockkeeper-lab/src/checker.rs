//! The checkers, which know nothing of the lock under test: they see what its users do.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Who believes to hold a lock: at most one at a time, or somebody is wrong.
#[derive(Debug, Default)]
pub struct Referee {
    holding: BTreeMap<String, u32>,
}

impl Referee {
    /// From now on this one believes to hold it. Returns who else does.
    pub fn enters(&mut self, who: &str) -> Vec<String> {
        let others = self.holding.keys().filter(|other| *other != who).cloned().collect();
        *self.holding.entry(who.into()).or_default() += 1;
        others
    }

    /// From now on it does not.
    pub fn leaves(&mut self, who: &str) {
        if let Some(times) = self.holding.get_mut(who) {
            *times -= 1;
            if *times == 0 {
                self.holding.remove(who);
            }
        }
    }
}

/// A stock that anybody may read and write, as in a table without constraints, and an account of what was
/// sold that nobody can get wrong.
#[derive(Debug)]
pub struct Stock {
    first: u64,
    state: Mutex<Shelf>,
}

#[derive(Debug)]
struct Shelf {
    /// According to the last who wrote.
    left: u64,
    sold: u64,
}

impl Stock {
    /// So many to sell.
    pub fn of(first: u64) -> Self {
        Self { first, state: Mutex::new(Shelf { left: first, sold: 0 }) }
    }

    /// What is left, according to the last who wrote.
    pub fn read(&self) -> u64 {
        self.state.lock().left
    }

    /// Somebody sells one, and writes what it believes to be left then.
    pub fn sell(&self, left: u64) {
        let mut state = self.state.lock();
        *state = Shelf { left, sold: state.sold + 1 };
    }

    /// How many were sold.
    pub fn sold(&self) -> u64 {
        self.state.lock().sold
    }

    /// How many more were sold than are missing from the shelf.
    pub fn oversold(&self) -> u64 {
        let state = self.state.lock();
        state.sold.saturating_sub(self.first.saturating_sub(state.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_believe_to_hold_are_seen() {
        let mut referee = Referee::default();
        assert!(referee.enters("a").is_empty());
        assert_eq!(referee.enters("b"), ["a"]);
        referee.leaves("a");
        assert_eq!(referee.enters("c"), ["b"]);
        referee.leaves("b");
        referee.leaves("c");
        assert!(referee.enters("a").is_empty());
    }

    #[test]
    fn to_hold_twice_oneself_is_no_conflict() {
        let mut referee = Referee::default();
        assert!(referee.enters("a").is_empty());
        assert!(referee.enters("a").is_empty());
        referee.leaves("a");
        assert_eq!(referee.enters("b"), ["a"], "still inside once");
        referee.leaves("nobody");
    }

    #[test]
    fn a_piece_that_is_sold_twice_is_counted() {
        let stock = Stock::of(10);
        let (one, two) = (stock.read(), stock.read());
        stock.sell(one - 1);
        assert_eq!(stock.oversold(), 0);
        stock.sell(two - 1);
        assert_eq!((stock.read(), stock.sold(), stock.oversold()), (9, 2, 1));
        let three = stock.read();
        stock.sell(three - 1);
        assert_eq!(stock.oversold(), 1);
    }
}
