//! Where in the log of a server something is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::cdc::Position;

/// The last transaction of each domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gtids(BTreeMap<u32, (u32, u64)>);

impl Gtids {
    pub(super) fn set(&mut self, domain: u32, server: u32, sequence: u64) {
        self.0.insert(domain, (server, sequence));
    }
}

impl fmt::Display for Gtids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (domain, (server, sequence))) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{domain}-{server}-{sequence}")?;
        }
        Ok(())
    }
}

impl FromStr for Gtids {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut all = Self::default();
        for gtid in text.split(',').filter(|gtid| !gtid.is_empty()) {
            let mut parts = gtid.trim().splitn(3, '-');
            let mut part = || parts.next().ok_or(());
            let domain = part()?.parse().map_err(drop)?;
            let server = part()?.parse().map_err(drop)?;
            all.set(domain, server, part()?.parse().map_err(drop)?);
        }
        Ok(all)
    }
}

/// A file of the log. Later ones are greater.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct File {
    number: u64,
    name: String,
}

impl File {
    pub(super) fn new(name: &str) -> Self {
        let number = name.rsplit('.').next().and_then(|number| number.parse().ok());
        Self { number: number.unwrap_or_default(), name: name.to_owned() }
    }

    pub(super) fn from_bytes(name: &[u8]) -> Self {
        Self::new(&String::from_utf8_lossy(name))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_after(&self, other: &Self) -> bool {
        self.number > other.number
    }
}

/// The end of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: File,
    pub(super) offset: u64,
}

/// The end of an event in a file that may be longer than its last 32 bits can say.
pub(super) fn extend(before: u64, end: u32) -> u64 {
    let after = before & !0xffff_ffff | u64::from(end);
    if after < before { after + (1 << 32) } else { after }
}

/// Everything that a [`Position`] says.
///
/// Transactions are found by their numbers; that it is still the same log, and not one that was begun anew and has come as far, is
/// seen by the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// The number of the server.
    pub(super) server: u32,
    /// When the file was begun, as its first event says.
    pub(super) born: u32,
    pub(super) place: Place,
    pub(super) gtids: Gtids,
}

impl Saved {
    pub(super) fn position(&self) -> Position {
        let Self { server, born, place, gtids } = self;
        // The name of the file may be anything.
        Position(format!(
            "mariadb 1 {server} {born} {} [{gtids}] {}",
            place.offset, place.file.name
        ))
    }

    pub(super) fn parse(position: &Position) -> Option<Self> {
        let mut parts = position.0.strip_prefix("mariadb 1 ")?.splitn(5, ' ');
        let server = parts.next()?.parse().ok()?;
        let born = parts.next()?.parse().ok()?;
        let offset = parts.next()?.parse().ok()?;
        let gtids = parts.next()?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        Some(Self { server, born, place: Place { file: File::new(parts.next()?), offset }, gtids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        // Do not change this: it is what another version has saved.
        let text = "mariadb 1 7 1700000000 837 [0-7-3,12-8-18446744073709551615] my log.000012";
        let saved = Saved::parse(&Position(text.into())).unwrap();
        assert_eq!(saved.position().0, text);
        assert_eq!((saved.server, saved.place.offset, saved.place.file.number), (7, 837, 12));
        let empty = Saved { gtids: Gtids::default(), ..saved };
        assert_eq!(Saved::parse(&empty.position()), Some(empty));
        for bad in ["", "mariadb 2 7 1 1 [] f", "mariadb 1 7 1 1 [1-2] f", "mariadb 1 7 1 1 []"] {
            assert_eq!(Saved::parse(&Position(bad.into())), None, "{bad}");
        }
    }

    #[test]
    fn ends_of_events_go_on_behind_four_gibibytes() {
        assert_eq!(extend(4, 256), 256);
        assert_eq!(extend(0xffff_ff00, 0x10), 0x1_0000_0010);
        assert_eq!(extend(0x1_0000_0010, 0x20), 0x1_0000_0020);
    }

    #[test]
    fn files_are_ordered_by_their_numbers() {
        let [ninth, tenth] = ["bin.999999", "bin.1000000"].map(File::new);
        assert!(tenth.is_after(&ninth) && !ninth.is_after(&tenth) && !ninth.is_after(&ninth));
    }
}
