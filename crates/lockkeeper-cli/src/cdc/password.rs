//! Passwords that are in files of their own, on their way into URLs.

use std::fmt::Write as _;
use std::path::Path;

/// The longest password that makes sense: a file that is longer is another one.
const LONGEST: u64 = 64 << 10;

/// The URL with the password that is in a file. Nothing that is said names either.
pub(crate) fn from_file(url: &str, file: &Path) -> Result<String, String> {
    let text = read(file).map_err(|why| format!("{} cannot be used: {why}", file.display()))?;
    insert(url, text.strip_suffix('\n').map_or(&*text, |line| line.trim_end_matches('\r')))
}

fn read(file: &Path) -> Result<String, String> {
    let found = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if found.len() > LONGEST {
        return Err("it is too long for a password".into());
    }
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

fn insert(url: &str, password: &str) -> Result<String, String> {
    let (scheme, rest) = url.split_once("://").ok_or("the URL names no server")?;
    let (user, hosts) = match rest.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => {
            return Err("there is a password in the URL as well: remove one of them".into());
        }
        Some((user, hosts)) => (user, hosts),
        None => ("", rest),
    };
    Ok(format!("{scheme}://{user}:{}@{hosts}", encode(password)))
}

/// With % for everything that could mean something in a URL.
fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_of_any_characters_is_put_where_the_url_has_none() {
        let cases = [
            ("redis://cache:6379/2?ttl=5s", "redis://:p%40%2Fs@cache:6379/2?ttl=5s"),
            ("postgres://cdc@db/shop", "postgres://cdc:p%40%2Fs@db/shop"),
            ("redis+sentinel://a,b/master", "redis+sentinel://:p%40%2Fs@a,b/master"),
        ];
        for (url, expected) in cases {
            assert_eq!(insert(url, "p@/s").as_deref(), Ok(expected));
        }
        assert!(insert("redis://:old@cache", "new").is_err_and(|why| !why.contains("old")));
        assert!(insert("memory:", "new").is_err());
    }
}
