//! A line of the table.

/// A line of the table. Lines are in the order of rows, of places in the row, and of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Figure {
    pub(crate) row: u8,
    place: u8,
    /// Of how many; stands for `{n}` in the text.
    number: u32,
    what: &'static str,
    pub(crate) unit: &'static str,
    /// Whether a ratio of two contenders says anything.
    pub(crate) compares: bool,
    /// Of all rounds the largest counts, not the median.
    pub(crate) is_largest: bool,
}

impl Figure {
    pub(crate) const fn new(row: u8, place: u8, what: &'static str, unit: &'static str) -> Self {
        Self { row, place, number: 0, what, unit, compares: true, is_largest: false }
    }

    /// A ratio to another says nothing.
    pub(crate) const fn alone(self) -> Self {
        Self { compares: false, ..self }
    }

    /// The largest of all rounds.
    pub(crate) const fn largest(self) -> Self {
        Self { is_largest: true, ..self }
    }

    /// With so many.
    pub(crate) const fn of(self, number: u32) -> Self {
        Self { number, ..self }
    }

    pub(crate) fn what(&self) -> String {
        self.what.replace("{n}", &self.number.to_string())
    }
}
