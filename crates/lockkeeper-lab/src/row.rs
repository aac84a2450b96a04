//! A row of a database, whose history nobody can get wrong: it knows what a read may still return.

use std::sync::Arc;

use parking_lot::Mutex;

/// A row with all the values that it ever had. Clones are the same row.
#[derive(Clone, Debug)]
pub struct Row(Arc<Mutex<History>>);

#[derive(Debug)]
struct History {
    /// In the order of their commits; all different.
    values: Vec<u64>,
    /// The last version of which somebody was told that it is written.
    told: usize,
}

/// What a read that begins now may return: this version or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor(usize);

impl Row {
    /// A row that has this value for a long time.
    pub fn new(first: u64) -> Self {
        Self(Arc::new(Mutex::new(History { values: vec![first], told: 0 })))
    }

    /// What it has now, and the version of that: from 1 on.
    pub fn read(&self) -> (u64, u64) {
        let history = self.0.lock();
        let last = history.values.len() - 1;
        (history.values[last], version(last))
    }

    /// Gives it another value, which it never had before. Returns its version.
    pub fn commit(&self, value: u64) -> u64 {
        let mut history = self.0.lock();
        history.values.push(value);
        version(history.values.len() - 1)
    }

    /// Whoever wrote this value was told that it is written.
    pub fn acknowledge(&self, value: u64) {
        let mut history = self.0.lock();
        if let Some(at) = history.values.iter().position(|one| *one == value) {
            history.told = history.told.max(at);
        }
    }

    /// A read begins.
    pub fn begin_read(&self) -> Floor {
        Floor(self.0.lock().told)
    }

    /// The value that makes this one too old for a read that began there; nothing if it is not. What never was in the
    /// row is too old as well.
    pub fn too_old(&self, floor: Floor, value: u64) -> Option<u64> {
        let history = self.0.lock();
        let at = history.values.iter().position(|one| *one == value);
        let allowed = at.is_some_and(|at| at >= floor.0);
        if allowed { None } else { history.values.get(floor.0).copied() }
    }
}

fn version(at: usize) -> u64 {
    u64::try_from(at + 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_may_return_what_was_written_while_it_ran_and_nothing_older_than_what_was_told_before()
    {
        let row = Row::new(20);
        let early = row.begin_read();
        assert_eq!(row.commit(30), 2);
        let between = row.begin_read();
        assert_eq!(row.too_old(between, 20), None, "nobody was told of it yet");
        assert_eq!(row.too_old(between, 30), None);
        row.acknowledge(30);
        let late = row.begin_read();
        assert_eq!(row.too_old(late, 20), Some(30));
        assert_eq!(row.too_old(early, 20), None);
        assert_eq!(row.read(), (30, 2));
    }

    #[test]
    fn what_never_was_is_wrong_and_a_late_acknowledgement_takes_nothing_back() {
        let row = Row::new(20);
        row.commit(30);
        row.commit(40);
        row.acknowledge(40);
        row.acknowledge(30);
        assert_eq!(row.too_old(row.begin_read(), 30), Some(40));
        assert_eq!(row.too_old(row.begin_read(), 99), Some(40));
    }
}
