//! What the header says.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::guard::Guard;
use crate::name::Name;
use crate::token::Token;

/// The header of a request: the token and the name of the lock.
pub const FENCE: HeaderName = HeaderName::from_static("lockkeeper-fence");

/// The header of a refusal: the newest token that the service has seen.
pub const NEWEST: HeaderName = HeaderName::from_static("lockkeeper-fence-newest");

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Under which lock and token a request is made. Among the extensions of a request that has passed, for
/// handlers that hand it on to whatever they write to.
///
/// ```
/// use lockkeeper::fence::http::{FENCE, Fence, http::HeaderMap};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let guard = lockkeeper::Locks::memory().mutex("größe").lock().await?;
/// let mut headers = HeaderMap::new();
/// headers.insert(FENCE, Fence::of(&guard).to_value());
/// assert_eq!(headers[FENCE], format!("{} gr%C3%B6%C3%9Fe", guard.token()));
/// assert_eq!(Fence::find(&headers)?, Some(Fence::of(&guard)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    name: Name,
    token: Token,
}

impl Fence {
    /// This token of this lock.
    pub fn new(name: Name, token: Token) -> Self {
        Self { name, token }
    }

    /// Those of a guard.
    pub fn of(guard: &Guard) -> Self {
        Self::new(guard.name().clone(), guard.token())
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Its token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// As it is sent.
    ///
    /// # Panics
    ///
    /// Never: all that is in it may be in a header.
    pub fn to_value(&self) -> HeaderValue {
        let mut text = format!("{} ", self.token);
        for byte in self.name.as_str().bytes() {
            if is_plain(byte) {
                text.push(char::from(byte));
            } else {
                let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                text.extend(['%', char::from(high), char::from(low)]);
            }
        }
        HeaderValue::try_from(text).expect("ASCII that can be seen, and a space")
    }

    /// What the headers of a request say; `None`: nothing about a lock.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they say it in any other than the one way, or twice.
    pub fn find(headers: &HeaderMap) -> Result<Option<Self>, Malformed> {
        let mut all = headers.get_all(FENCE).iter();
        match (all.next(), all.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => parse(value.as_bytes()).map(Some),
            (Some(_), Some(_)) => Err(Malformed("there are two of them")),
        }
    }
}

/// Why a header is no fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub(super) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the header Lockkeeper-Fence is malformed: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// The newest token that a service has seen, if it has refused a request as stale.
pub fn newest(headers: &HeaderMap) -> Option<Token> {
    number(headers.get(NEWEST)?.as_bytes())
}

fn parse(value: &[u8]) -> Result<Fence, Malformed> {
    let space = value.iter().position(|byte| *byte == b' ');
    let (token, rest) = value.split_at(space.ok_or(Malformed("it is not: TOKEN NAME"))?);
    let token = number(token).ok_or(Malformed("its token is not a number from 1 to 2^64-1"))?;
    let name = decode(&rest[1..]).ok_or(Malformed("its name is not escaped as it must be"))?;
    let name = name.parse().map_err(|_| Malformed("there can be no lock of this name"))?;
    Ok(Fence { name, token })
}

/// Nothing but digits, and the first is not zero.
fn number(text: &[u8]) -> Option<Token> {
    if text.first() == Some(&b'0') || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().and_then(Token::new)
}

fn decode(text: &[u8]) -> Option<String> {
    let digit =
        |byte: u8| HEX.iter().position(|hex| *hex == byte).and_then(|at| u8::try_from(at).ok());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let byte = digit(rest.next()?)? << 4 | digit(rest.next()?)?;
                // Each name has one spelling.
                (!is_plain(byte)).then_some(byte)?
            }
            _ => is_plain(byte).then_some(byte)?,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(value: &[u8]) -> Result<Option<Fence>, Malformed> {
        let mut headers = HeaderMap::new();
        headers.insert(FENCE, HeaderValue::from_bytes(value).unwrap());
        Fence::find(&headers)
    }

    #[test]
    fn only_the_one_spelling_is_taken() {
        let fence = found(b"18446744073709551615 a%20b/%C3%A4:~").unwrap().unwrap();
        assert_eq!((fence.name().as_str(), fence.token().get()), ("a b/ä:~", u64::MAX));
        let odd: &[&[u8]] = &[
            b"",
            b" ",
            b"7",
            b"7 ",
            b" 7 a",
            b"7  a",
            b"7 a ",
            b"7\ta",
            b"7,a",
            b"a 7",
            b"0 a",
            b"07 a",
            b"+7 a",
            b"-7 a",
            b"7.0 a",
            b"0x7 a",
            b"7e1 a",
            b"18446744073709551616 a",
            b"99999999999999999999999999 a",
            b"7 a b",
            b"7 a,8 b",
            b"7 a, 8 b",
            b"7 a;b",
            b"7 \"a\"",
            b"7 a%",
            b"7 a%2",
            b"7 a%2c",
            b"7 %61",
            b"7 a%2F",
            b"7 a%GG",
            b"7 a%00",
            b"7 %FF",
            b"7 %C3",
            b"7 \xC3\xA4",
            b"7 /a",
            b"7 a//b",
            b"7 ../a",
            b"7 a%0Ab",
            b"7 a%20",
            b"7 a+b",
            b"7 a=b",
            b"token=7 a",
        ];
        for odd in odd {
            assert!(found(odd).is_err(), "{:?}", String::from_utf8_lossy(odd));
        }
        let long = format!("7 {}", "a".repeat(256));
        assert!(found(long.as_bytes()).is_err());
        let mut two = HeaderMap::new();
        two.append(FENCE, HeaderValue::from_static("7 a"));
        assert!(Fence::find(&two).unwrap().is_some());
        two.append(FENCE, HeaderValue::from_static("7 a"));
        assert!(Fence::find(&two).is_err());
        assert_eq!(Fence::find(&HeaderMap::new()), Ok(None));
    }

    proptest! {
        #[test]
        fn every_name_and_token_comes_back(name in "\\PC{1,80}", token in 1_u64..) {
            if let Ok(name) = name.parse::<Name>() {
                let fence = Fence::new(name, Token::new(token).unwrap());
                prop_assert_eq!(found(fence.to_value().as_bytes()).unwrap().unwrap(), fence);
            }
        }

        /// What is taken at all is what we would have sent.
        #[test]
        fn nothing_else_is_taken(value in "[0-9 %a-fA-F/.+,;-]{0,12}") {
            if let Ok(Some(fence)) = found(value.as_bytes()) {
                let sent = fence.to_value();
                prop_assert_eq!(sent.as_bytes(), value.as_bytes());
            }
        }
    }
}
