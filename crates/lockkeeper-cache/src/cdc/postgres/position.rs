//! What a position is as text.

use pgwire_replication::Lsn;
use serde::{Deserialize, Serialize};

use crate::cdc::Position;

/// Whose log it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The number that a server gets when it is made, and that its copies keep.
    pub(super) system: String,
    /// Another one after every fail-over and restore.
    pub(super) timeline: String,
    pub(super) database: String,
    pub(super) slot: String,
    pub(super) publication: String,
    /// A hash of all that decides what is in the log, besides what changes.
    pub(super) tables: u64,
    /// A hash of the [forms](super::facts::Forms) of the tables.
    #[serde(rename = "partitions")]
    pub(super) forms: u64,
}

/// Programs of two versions meet at one position: another form needs another number.
#[derive(Serialize, Deserialize)]
struct Form {
    v: u32,
    #[serde(flatten)]
    place: Place,
    lsn: String,
}

impl Place {
    pub(super) fn position(&self, lsn: Lsn) -> Position {
        let form = Form { v: 1, place: self.clone(), lsn: lsn.to_pg_string() };
        // Texts and numbers can always be written.
        Position(serde_json::to_string(&form).unwrap_or_default())
    }

    pub(super) fn parse(position: &Position) -> Option<(Self, Lsn)> {
        let form: Form = serde_json::from_str(&position.0).ok()?;
        let lsn = Lsn::parse(&form.lsn).ok()?;
        (form.v == 1).then_some((form.place, lsn))
    }

    /// What is another history than ours, if it is; forms are not looked at.
    pub(super) fn differs(&self, now: &Self) -> Option<String> {
        let what = [
            ("server", &self.system, &now.system),
            ("timeline", &self.timeline, &now.timeline),
            ("database", &self.database, &now.database),
            ("slot", &self.slot, &now.slot),
            ("publication", &self.publication, &now.publication),
        ];
        let other = what.into_iter().find(|(_, then, now)| then != now);
        let tables = "the publication, or a table, or a column of a key was made anew or changed";
        other
            .map(|(what, then, now)| format!("the position is of {what} {then}, and this is {now}"))
            .or_else(|| (self.tables != now.tables).then(|| tables.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            system: "7".into(),
            timeline: "1".into(),
            database: "a\"/b".into(),
            slot: "s".into(),
            publication: "p".into(),
            tables: u64::MAX,
            forms: 3,
        }
    }

    #[test]
    fn positions_of_other_versions_are_read_as_they_were_written() {
        let (place, lsn) = (place(), Lsn(0x16_0000_00AB));
        let position = place.position(lsn);
        assert_eq!(Place::parse(&position), Some((place, lsn)));
        // Do not change this.
        let written = r#"{"v":1,"system":"7","timeline":"1","database":"a\"/b","slot":"s","publication":"p","tables":18446744073709551615,"partitions":3,"lsn":"16/AB"}"#;
        assert_eq!(position.0, written);
        for bad in ["", "{}", &written.replace("\"v\":1", "\"v\":2"), &written.replace("16/", "x/")]
        {
            assert_eq!(Place::parse(&Position(bad.to_owned())), None, "{bad}");
        }
    }

    #[test]
    fn another_history_is_named() {
        let then = place();
        assert_eq!(then.differs(&Place { forms: 9, ..place() }), None);
        let other = then.differs(&Place { system: "8".into(), ..place() });
        assert_eq!(other.as_deref(), Some("the position is of server 7, and this is 8"));
        assert!(then.differs(&Place { tables: 1, ..place() }).is_some());
    }
}
