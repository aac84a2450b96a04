//! What a process knows of a filter in Redis.

use ::redis::Value;

use super::super::{FilterError, Shape};

/// Which slots there are. The default: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) stamp: String,
    used: Option<usize>,
    built: Option<usize>,
    shapes: [Option<Shape>; 2],
}

impl Head {
    /// The size of the filter that is used.
    pub(super) fn used(&self) -> Option<Shape> {
        self.shapes[self.used?]
    }

    /// The sizes of the slots to which inserts go.
    pub(super) fn written(&self) -> [Option<Shape>; 2] {
        [0, 1].map(|slot| match [self.used, self.built].contains(&Some(slot)) {
            true => self.shapes[slot],
            false => None,
        })
    }
}

/// What a script says that was told a stamp.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This.
    Said(Vec<u8>),
    /// Nothing, because the head is another.
    Changed(Head),
}

impl Answer {
    /// A head that cannot be read is an error, and never one without slots: an insert would be done
    /// with nothing, and succeed.
    pub(super) fn of(value: Value) -> Result<Self, FilterError> {
        let odd = || FilterError::Store("not the head of a filter".into());
        match value {
            Value::BulkString(said) => Ok(Self::Said(said)),
            Value::Array(parts) => head(&parts).map(Self::Changed).ok_or_else(odd),
            _ => Err(odd()),
        }
    }
}

fn head(parts: &[Value]) -> Option<Head> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let [stamp, used, built, a, b] = parts else { return None };
    let slot = |value| match text(value)?.as_str() {
        "" => Some(None),
        "a" => Some(Some(0)),
        "b" => Some(Some(1)),
        _ => None,
    };
    let shape = |value| match text(value)?.as_str() {
        "" => Some(None),
        written => read(written).map(Some),
    };
    let shapes = [shape(a)?, shape(b)?];
    let head = Head { stamp: text(stamp)?, used: slot(used)?, built: slot(built)?, shapes };
    let whole = |slot: Option<usize>| slot.is_none_or(|slot| shapes[slot].is_some());
    (whole(head.used) && whole(head.built)).then_some(head)
}

/// `BITS:HASHES`. The scripts read the bits.
pub(super) fn written(shape: Shape) -> String {
    format!("{}:{}", shape.bits(), shape.hashes())
}

fn read(written: &str) -> Option<Shape> {
    let (bits, hashes) = written.split_once(':')?;
    Shape::of(bits.parse().ok()?, hashes.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(parts: &[&str]) -> Result<Answer, FilterError> {
        let text = |part: &&str| Value::BulkString(part.as_bytes().to_vec());
        Answer::of(Value::Array(parts.iter().map(text).collect()))
    }

    #[test]
    fn heads_are_read_or_refused_and_never_taken_for_empty() {
        let Ok(Answer::Changed(head)) = answer(&["s", "b", "a", "128:3", "64:7"]) else {
            panic!("not a head")
        };
        assert_eq!(head.used(), Shape::of(64, 7));
        assert_eq!(head.written(), [Shape::of(128, 3), Shape::of(64, 7)]);
        assert!(
            matches!(answer(&["", "", "", "", ""]), Ok(Answer::Changed(h)) if h == Head::default())
        );
        for odd in [
            ["s", "c", "", "64:7", ""],
            ["s", "a", "", "", "64:7"],
            ["s", "a", "b", "64:7", ""],
            ["s", "a", "", "65:7", ""],
            ["s", "a", "", "64:0", ""],
            ["s", "a", "", "64", ""],
            ["s", "a", "", "64:7:1", ""],
            ["s", "a", "", "99999999999999:7", ""],
        ] {
            assert!(answer(&odd).is_err(), "{odd:?}");
        }
        assert!(answer(&["s"]).is_err());
        assert!(Answer::of(Value::Nil).is_err());
    }
}
