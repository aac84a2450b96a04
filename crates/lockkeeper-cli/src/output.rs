//! Standard output, which may be a pipe that nobody reads any more.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::exit::{Code, Failure};

/// Prints. A reader that has gone away, as `head` does, had enough: that is no failure.
pub(crate) fn print(text: &[u8]) -> Result<Code, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system("cannot write to standard output", &error))
        }
        _ => Ok(Code::SUCCESS),
    }
}

/// Prints one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<Code, Failure> {
    let mut text =
        serde_json::to_vec(value).map_err(|error| Failure::system("cannot write JSON", &error))?;
    text.push(b'\n');
    print(&text)
}

/// The text with control characters made visible: names of strangers must not move the cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = (!c.is_control()).then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_are_shown_and_not_obeyed() {
        assert_eq!(printable("a\u{1b}[31mé\n"), "a\\u{1b}[31mé\\n");
    }
}
