//! A token in a file that is never without one, whenever power fails.
//!
//! Two slots of a fixed length, written in turn: a write that was torn spoils one, and in the other is the
//! token before it. Nothing had been written under the one that is lost. A slot says its number twice, so
//! that half of one is known for what it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::token::Token;

/// Enough for the largest token.
const DIGITS: usize = 20;
/// Two numbers, a space between and the end of a line.
const SLOT: usize = 2 * DIGITS + 2;

/// A slot with nothing in it.
const EMPTY: [u8; SLOT] = [0; SLOT];

/// What is in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The largest token.
    pub(super) token: Option<Token>,
    /// Whether it had one token at most: then its directory may not know of it after a crash.
    pub(super) is_young: bool,
    /// The slot to be written next.
    next: u64,
}

impl Seen {
    /// Writes a token and forces it to disk.
    pub(super) fn write(&self, file: &File, token: Token) -> io::Result<()> {
        let at = self.next * SLOT as u64;
        let written = file.write_all_at(&slot(token), at).and_then(|()| file.sync_all());
        if written.is_err() {
            // Else the next to come with this token would find it, and take it for one that is on disk. If this
            // fails too, that is for them to see: they force it to disk again.
            let _ = file.write_all_at(&EMPTY, at);
        }
        written
    }
}

fn slot(token: Token) -> [u8; SLOT] {
    let text = format!("{0:01$} {0:01$}\n", token.get(), DIGITS);
    let mut slot = [b'\n'; SLOT];
    slot.copy_from_slice(text.as_bytes());
    slot
}

/// The token in a slot that is whole.
fn parse(slot: &[u8]) -> Option<Token> {
    let text = std::str::from_utf8(slot).ok()?.strip_suffix('\n')?;
    let (one, two) = text.split_once(' ')?;
    let digits = one.len() == DIGITS && one.bytes().all(|byte| byte.is_ascii_digit());
    (digits && one == two).then(|| one.parse().ok().and_then(Token::new)).flatten()
}

/// Reads a file, which is locked. One that is neither empty nor has a token is damaged: by whom nobody knows,
/// so nothing passes.
pub(super) fn read(file: &File) -> io::Result<Seen> {
    let mut bytes = [0; 2 * SLOT + 1];
    let mut length = 0;
    loop {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    decide(&bytes[..length])
}

fn decide(bytes: &[u8]) -> io::Result<Seen> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "there is no token in it");
    if bytes.len() > 2 * SLOT {
        return Err(damaged());
    }
    let (first, second) = bytes.split_at(bytes.len().min(SLOT));
    let (one, two) = (parse(first), parse(second));
    let is_young = second.is_empty();
    let seen = |token, next| Seen { token, is_young, next };
    match (one, two) {
        (Some(one), Some(two)) => Ok(seen(Some(one.max(two)), u64::from(one > two))),
        (Some(one), None) => Ok(seen(Some(one), 1)),
        (None, Some(two)) => Ok(seen(Some(two), 0)),
        // The first write ever has failed: its token was never used.
        (None, None) if second.is_empty() && unfinished(first) => Ok(seen(None, 0)),
        (None, None) => Err(damaged()),
    }
}

/// Whether it is no more than a beginning of a slot, or room for one that was never filled.
fn unfinished(bytes: &[u8]) -> bool {
    let beginning = bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b' ');
    bytes.iter().all(|byte| *byte == 0) || (bytes.len() < SLOT && beginning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    /// What is in a file after these writes.
    fn written(tokens: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in tokens {
            put(&mut bytes, &slot(token(*number)));
        }
        bytes
    }

    fn put(bytes: &mut Vec<u8>, part: &[u8]) {
        let at = usize::try_from(decide(bytes).unwrap().next).unwrap() * SLOT;
        bytes.resize(bytes.len().max(at + part.len()), 0);
        bytes[at..at + part.len()].copy_from_slice(part);
    }

    #[test]
    fn the_last_token_is_read() {
        assert_eq!(decide(b"").unwrap(), Seen { token: None, is_young: true, next: 0 });
        for count in 1..5 {
            let tokens: Vec<u64> = (1..=count).map(|number| number * 10).collect();
            assert_eq!(decide(&written(&tokens)).unwrap().token, Some(token(count * 10)));
        }
        let all = written(&[1, u64::MAX - 1, u64::MAX]);
        assert_eq!((decide(&all).unwrap().token, all.len()), (Token::new(u64::MAX), 2 * SLOT));
    }

    #[test]
    fn after_a_write_that_was_torn_the_token_before_it_is_there() {
        let new = slot(token(918_273_645));
        for before in [&[][..], &[7], &[7, 8], &[7, 8, 9]] {
            for cut in 0..SLOT {
                let mut bytes = written(before);
                put(&mut bytes, &new[..cut]);
                let seen = decide(&bytes).unwrap();
                let largest = before.last().map(|number| token(*number));
                // Only the end of the line is missing, and was there before.
                let whole = cut == SLOT - 1 && before.len() > 1;
                let expected = if whole { Token::new(918_273_645) } else { largest };
                assert_eq!(seen.token, expected, "cut at {cut} after {before:?}");
                // And the next write finds its place.
                put(&mut bytes, &new);
                assert_eq!(decide(&bytes).unwrap().token, Some(token(918_273_645)));
            }
        }
    }

    #[test]
    fn a_slot_that_was_emptied_again_is_written_anew() {
        for before in [&[][..], &[7], &[7, 8]] {
            let mut bytes = written(before);
            put(&mut bytes, &EMPTY);
            assert_eq!(decide(&bytes).unwrap().token, before.last().map(|number| token(*number)));
            put(&mut bytes, &slot(token(9)));
            assert_eq!(decide(&bytes).unwrap().token, Some(token(9)));
        }
    }

    #[test]
    fn what_is_no_token_lets_nothing_pass() {
        let zero = format!("{0:020} {0:020}\n", 0);
        let long = written(&[1, 2]).repeat(2);
        for odd in [b"hello".as_slice(), b"7\n", zero.as_bytes(), &long, &[b'x'; 2 * SLOT]] {
            assert!(decide(odd).is_err(), "{:?}", String::from_utf8_lossy(odd));
        }
    }
}
