//! Texts in the character sets that have a certain meaning here.

use std::collections::HashMap;

/// How bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    Utf8,
    /// What MariaDB calls latin1: Windows-1252.
    Latin1,
    /// No text: two digits for each byte, as `LOWER(HEX(…))` has them.
    Binary,
    /// One that is not known here.
    Other,
}

/// What stands at 0x80 to 0x9f of latin1. Five places are not taken, and are themselves.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

impl Charset {
    pub(super) fn named(name: &str) -> Self {
        match name {
            "utf8mb4" | "utf8mb3" | "utf8" | "ascii" => Self::Utf8,
            "latin1" => Self::Latin1,
            "binary" => Self::Binary,
            _ => Self::Other,
        }
    }

    /// `None` for bytes that are none of its texts.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Utf8 => Some(std::str::from_utf8(bytes).ok()?.to_owned()),
            Self::Latin1 => Some(bytes.iter().map(|byte| latin1(*byte)).collect()),
            Self::Binary => Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            Self::Other => None,
        }
    }
}

fn latin1(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

/// By the numbers of their collations, as the server has told.
#[derive(Clone, Debug, Default)]
pub(super) struct Charsets(pub(super) HashMap<u64, Charset>);

impl Charsets {
    pub(super) fn get(&self, collation: u64) -> Charset {
        self.0.get(&collation).copied().unwrap_or(Charset::Other)
    }
}
