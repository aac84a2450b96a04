//! The text of what is in a column.

use std::fmt::Write;
use std::sync::Arc;

use super::bytes::{Bytes, Malformed, big, little};
use super::charset::Charset;

/// What a column is, as far as the log says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Int {
        bytes: usize,
        unsigned: bool,
    },
    Year,
    Decimal {
        precision: usize,
        scale: usize,
    },
    Bit {
        bytes: usize,
    },
    Date,
    Time {
        digits: u8,
    },
    DateTime {
        digits: u8,
    },
    Timestamp {
        digits: u8,
    },
    /// Behind a length of so many bytes.
    Text {
        length: usize,
        charset: Charset,
    },
    /// The same without a text that is certain.
    Opaque {
        length: usize,
    },
    /// So many bytes, without a text that is certain.
    Fixed {
        bytes: usize,
    },
    Enum {
        bytes: usize,
        names: Option<Arc<[String]>>,
    },
    Set {
        bytes: usize,
        names: Option<Arc<[String]>>,
    },
}

/// What a cell is as text.
#[derive(Debug, PartialEq)]
pub(super) enum Text {
    Is(Arc<str>),
    /// No cell of the column has one.
    None,
    /// This one has none, though others may.
    Bad,
}

impl Kind {
    /// The bytes of a cell that is not `NULL`.
    pub(super) fn read<'a>(&self, row: &mut Bytes<'a>) -> Result<&'a [u8], Malformed> {
        let bytes = match self {
            Self::Int { bytes, .. }
            | Self::Bit { bytes }
            | Self::Fixed { bytes }
            | Self::Enum { bytes, .. }
            | Self::Set { bytes, .. } => *bytes,
            Self::Year => 1,
            Self::Date => 3,
            Self::Decimal { precision, scale } => digits(precision - scale) + digits(*scale),
            Self::Time { digits } => 3 + fraction(*digits),
            Self::DateTime { digits } => 5 + fraction(*digits),
            Self::Timestamp { digits } => 4 + fraction(*digits),
            Self::Text { length, .. } | Self::Opaque { length } => row.count(*length)?,
        };
        row.take(bytes)
    }

    pub(super) fn text(&self, cell: &[u8]) -> Text {
        let text = match self {
            Self::Int { unsigned: true, .. } => little(cell).to_string(),
            Self::Int { bytes, unsigned: false } => signed(little(cell), *bytes).to_string(),
            Self::Bit { .. } => big(cell).to_string(),
            Self::Year if little(cell) == 0 => "0000".into(),
            Self::Year => (little(cell) + 1900).to_string(),
            Self::Decimal { precision, scale } => decimal(cell, *precision, *scale),
            Self::Date => {
                let date = little(cell);
                format!("{:04}-{:02}-{:02}", date >> 9, date >> 5 & 15, date & 31)
            }
            Self::Time { digits } => time(cell, *digits),
            Self::DateTime { digits } => date_time(cell, *digits),
            Self::Timestamp { digits } => timestamp(cell, *digits),
            Self::Text { charset: Charset::Other, .. }
            | Self::Opaque { .. }
            | Self::Fixed { .. } => {
                return Text::None;
            }
            Self::Text { charset, .. } => match charset.decode(cell) {
                Some(text) => return Text::Is(text.into()),
                None => return Text::Bad,
            },
            Self::Enum { names: None, .. } | Self::Set { names: None, .. } => return Text::None,
            Self::Enum { names: Some(names), .. } => match little(cell) {
                0 => String::new(),
                at => match usize::try_from(at - 1).ok().and_then(|at| names.get(at)) {
                    Some(name) => name.clone(),
                    None => return Text::Bad,
                },
            },
            Self::Set { names: Some(names), .. } => {
                let (set, mut text) = (little(cell), String::new());
                for (_, name) in names.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1) {
                    let comma = if text.is_empty() { "" } else { "," };
                    let _ = write!(text, "{comma}{name}");
                }
                text
            }
        };
        Text::Is(text.into())
    }
}

fn signed(number: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * u32::try_from(bytes).unwrap_or(8);
    (number << unused).cast_signed() >> unused
}

/// How many bytes so many decimal digits have.
fn digits(count: usize) -> usize {
    const BYTES: [usize; 9] = [0, 1, 1, 2, 2, 3, 3, 4, 4];
    count / 9 * 4 + BYTES[count % 9]
}

fn fraction(digits: u8) -> usize {
    usize::from(digits).div_ceil(2)
}

/// Groups of nine digits, four bytes each, and shorter ones at both ends. Negative ones have all bits turned, and the first
/// bit of any is turned besides.
fn decimal(cell: &[u8], precision: usize, scale: usize) -> String {
    let mut cell = cell.to_vec();
    let negative = cell.first().is_some_and(|first| first & 0x80 == 0);
    if let Some(first) = cell.first_mut() {
        *first ^= 0x80;
    }
    if negative {
        cell.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let (whole, part) = cell.split_at(digits(precision - scale).min(cell.len()));
    let short = (precision - scale) % 9;
    let (head, groups) = whole.split_at(digits(short).min(whole.len()));
    let mut text = String::new();
    if short > 0 {
        let _ = write!(text, "{}", big(head));
    }
    for group in groups.chunks(4) {
        let _ = write!(text, "{:09}", big(group));
    }
    let mut text = match text.trim_start_matches('0') {
        "" => "0".to_owned(),
        number => number.to_owned(),
    };
    if scale > 0 {
        text.push('.');
        let mut left = scale;
        for group in part.chunks(4) {
            let width = left.min(9);
            let _ = write!(text, "{:0width$}", big(group));
            left -= width;
        }
    }
    if negative { format!("-{text}") } else { text }
}

/// `.123456` cut to so many digits.
fn with_fraction(mut text: String, micros: u64, digits: u8) -> String {
    if digits > 0 {
        let fraction = format!("{micros:06}");
        text.push('.');
        text.push_str(&fraction[..usize::from(digits.min(6))]);
    }
    text
}

/// From the bytes of a fraction to millionths.
fn micros(bytes: &[u8]) -> u64 {
    big(bytes) * [1, 10_000, 100, 1].get(bytes.len()).copied().unwrap_or(1)
}

fn time(cell: &[u8], digits: u8) -> String {
    // One number with its fraction, so that negative ones borrow from the whole.
    let bits = 8 * u32::try_from(cell.len()).unwrap_or(3);
    let number = i128::from(big(cell)) - (1_i128 << (bits - 1));
    let all = number.unsigned_abs();
    let (whole, part) = (all >> (bits - 24), all & ((1 << (bits - 24)) - 1));
    let part = u64::try_from(part).unwrap_or(0);
    let micros = part * [1, 10_000, 100, 1].get(fraction(digits)).copied().unwrap_or(1);
    let sign = if number < 0 { "-" } else { "" };
    let text = format!("{sign}{:02}:{:02}:{:02}", whole >> 12 & 0x3ff, whole >> 6 & 63, whole & 63);
    with_fraction(text, micros, digits)
}

fn date_time(cell: &[u8], digits: u8) -> String {
    let (whole, part) = cell.split_at(5.min(cell.len()));
    let whole = big(whole) & 0x7f_ffff_ffff;
    let (month, day) = (whole >> 22, whole >> 17 & 31);
    let (hour, minute, second) = (whole >> 12 & 31, whole >> 6 & 63, whole & 63);
    let text =
        format!("{:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02}", month / 13, month % 13);
    with_fraction(text, micros(part), digits)
}

fn timestamp(cell: &[u8], digits: u8) -> String {
    let (whole, part) = cell.split_at(4.min(cell.len()));
    let (seconds, micros) = (big(whole), micros(part));
    let text = if seconds == 0 && micros == 0 {
        "0000-00-00 00:00:00".to_owned()
    } else {
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    };
    with_fraction(text, micros, digits)
}

/// The date so many days after the first of 1970. Years begin in March here, so that the odd day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: &Kind, cell: &[u8]) -> String {
        match kind.text(cell) {
            Text::Is(text) => text.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn extremes_of_whole_numbers_are_exact() {
        for bytes in [1, 2, 3, 4, 8] {
            let int = |unsigned| Kind::Int { bytes, unsigned };
            let all = vec![0xff; bytes];
            let most = u64::MAX >> (64 - 8 * bytes);
            assert_eq!(text(&int(true), &all), most.to_string());
            assert_eq!(text(&int(false), &all), "-1");
            let mut least = vec![0; bytes];
            least[bytes - 1] = 0x80;
            assert_eq!(text(&int(false), &least), format!("-{}", most / 2 + 1));
        }
    }

    #[test]
    fn decimals_keep_their_zeros_behind_the_point() {
        let kind = Kind::Decimal { precision: 14, scale: 4 };
        // From the manual: 1234567890.1234
        let cell = [0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2];
        assert_eq!(text(&kind, &cell), "1234567890.1234");
        let negative = cell.map(|byte| !byte);
        assert_eq!(text(&kind, &negative), "-1234567890.1234");
        let kind = Kind::Decimal { precision: 5, scale: 2 };
        assert_eq!(text(&kind, &[0x80, 0x00, 0x05]), "0.05");
        let mut row = Bytes(&[0; 9]);
        assert_eq!(Kind::Decimal { precision: 20, scale: 0 }.read(&mut row).unwrap().len(), 9);
    }

    #[test]
    fn days_are_found_on_both_sides_of_an_odd_one() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(24_855), (2038, 1, 19));
        assert_eq!(civil(49_710), (2106, 2, 7));
    }
}
