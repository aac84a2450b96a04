//! Names of locks.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The name of a lock: what two parties must spell alike to exclude each other.
///
/// # Invariants
///
/// 1. 1 to 255 bytes of UTF-8.
/// 2. No control characters and no invisible ones that change the direction of text.
/// 3. Neither begins nor ends with white space.
/// 4. Segments between `/` are not empty and are not `.` or `..`, so that a name is never a path
///    that leads somewhere else.
///
/// Names are compared byte by byte: `Orders` and `orders` are two locks.
///
/// ```
/// use lockkeeper::Name;
/// assert!("orders/42".parse::<Name>().is_ok());
/// for bad in ["", " x", "a//b", "../x", "line\nbreak"] {
///     assert!(bad.parse::<Name>().is_err());
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Says what is wrong with a name, or nothing.
fn fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("it is empty".into());
    }
    if text.len() > Name::MAX_BYTES {
        return Some(format!("it has {} bytes; at most {} fit", text.len(), Name::MAX_BYTES));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control() || changes_direction(*c)) {
        return Some(format!("it contains the character U+{:04X}", u32::from(bad)));
    }
    if text.trim() != text {
        return Some("it begins or ends with white space".into());
    }
    text.split('/').find_map(|segment| match segment {
        "" => Some("it has an empty segment between slashes, or a slash at an end".into()),
        "." | ".." => Some(format!("it has the segment {segment:?}, as a path would")),
        _ => None,
    })
}

/// Such characters make one name look like another on a terminal.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match fault(text) {
            None => Ok(Self(text.into())),
            Some(reason) => Err(Error::InvalidName { name: shown(text), reason }),
        }
    }
}

/// A bad name as it may be printed: escaped and cut.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused_with_a_reason() {
        let long = "x".repeat(256);
        let cases = [
            ("", "empty"),
            (long.as_str(), "256 bytes"),
            ("a\u{0}b", "U+0000"),
            ("a\u{1b}[31m", "U+001B"),
            ("a\u{202e}b", "U+202E"),
            ("a ", "white space"),
            ("/etc", "slash"),
            ("a//b", "slash"),
            ("a/", "slash"),
            ("../x", "\"..\""),
            ("a/./b", "\".\""),
        ];
        for (name, reason) in cases {
            let error = name.parse::<Name>().expect_err(name).to_string();
            assert!(error.contains(reason), "{name:?}: {error}");
            assert!(!error.contains('\u{1b}'), "an error must not carry escape codes: {error}");
            assert!(error.len() < 400, "{error}");
        }
    }

    #[test]
    fn ordinary_names_are_taken_as_they_are() {
        for name in ["orders/42", "{tag}:x", "日本", "a b", "...", "x".repeat(255).as_str()] {
            assert_eq!(name.parse::<Name>().expect("valid").as_str(), name);
        }
    }
}
