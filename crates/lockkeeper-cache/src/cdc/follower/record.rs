//! What is saved: where a follower is, and by which rules it got there.

use crate::cdc::Position;

/// As text: the fingerprint of the rules in 16 digits, a space, and the position.
pub(super) fn encode(rules: u64, position: &Position) -> String {
    format!("{rules:016x} {position}")
}

/// That there is none from which one could go on.
pub(super) fn lost(rules: u64) -> String {
    encode(rules, &Position(String::new()))
}

/// Where to go on, by these rules; else why not.
pub(super) fn decode(rules: u64, saved: Option<&str>) -> Result<Position, &'static str> {
    let saved = saved.ok_or("no position is saved")?;
    let (by, position) = saved.split_once(' ').ok_or("what is saved cannot be read")?;
    if u64::from_str_radix(by, 16) != Ok(rules) {
        return Err("the rules have changed");
    }
    if position.is_empty() {
        return Err("a new beginning was not finished");
    }
    Ok(Position(position.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_as_it_was_written() {
        let at = Position("0-1-2,1-1-3 and more".into());
        // Do not change this.
        assert_eq!(encode(0xab, &at), "00000000000000ab 0-1-2,1-1-3 and more");
        assert_eq!(decode(0xab, Some(&encode(0xab, &at))), Ok(at.clone()));
        assert_eq!(decode(0xac, Some(&encode(0xab, &at))), Err("the rules have changed"));
        assert_eq!(decode(0xab, Some(&lost(0xab))), Err("a new beginning was not finished"));
        for bad in [None, Some(""), Some("x"), Some(" x"), Some("zz x")] {
            assert!(decode(0xab, bad).is_err(), "{bad:?}");
        }
    }
}
