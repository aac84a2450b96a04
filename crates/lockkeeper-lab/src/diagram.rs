//! A run as a sequence diagram in text: a column for each who takes part, time from top to bottom.

use std::fmt::Write as _;

use crate::timeline::{Event, Kind, State, Timeline, millis};

/// A column is at most so wide.
const WIDEST: usize = 26;
/// And not less than this.
const NARROWEST: usize = 10;
/// The column of the times.
const TIME: usize = 11;

/// Draws it. `│` stands for somebody, `┃` for somebody who believes to hold the lock.
pub fn draw(line: &Timeline) -> String {
    let widths: Vec<usize> = line.actors.iter().map(|actor| width(line, actor)).collect();
    let mut text = " ".repeat(TIME);
    for (actor, width) in line.actors.iter().zip(&widths) {
        // Writing to a string does not fail.
        let _ = write!(text, "  {actor:width$}");
    }
    trim(&mut text);
    for event in &line.events {
        if event.kind == Kind::Violated {
            let _ = write!(text, "{:>TIME$}  ✗ {}", millis(event.at_us), event.text);
            trim(&mut text);
            continue;
        }
        let parts = wrap(&event.text, WIDEST - 2);
        for (nth, part) in parts.iter().enumerate() {
            let time = if nth == 0 { millis(event.at_us) } else { String::new() };
            let _ = write!(text, "{time:>TIME$}");
            for (actor, width) in line.actors.iter().zip(&widths) {
                let bar = if holds(line, actor, event) { '┃' } else { '│' };
                let said = if event.actor == *actor { part.as_str() } else { "" };
                let _ = write!(text, "  {bar} {said:rest$}", rest = width - 2);
            }
            trim(&mut text);
        }
    }
    text
}

/// Ends a line without spaces.
fn trim(text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push('\n');
}

fn width(line: &Timeline, actor: &str) -> usize {
    let said = line.events.iter().filter(|event| event.actor == actor);
    let said = said.filter(|event| event.kind != Kind::Violated);
    let longest =
        said.flat_map(|event| wrap(&event.text, WIDEST - 2)).map(|part| length(&part) + 2);
    longest.max().unwrap_or(0).max(length(actor)).clamp(NARROWEST, WIDEST)
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn holds(line: &Timeline, actor: &str, event: &Event) -> bool {
    line.spans.iter().any(|span| {
        span.actor == actor
            && span.state == State::Holds
            && (span.from_us..=span.to_us).contains(&event.at_us)
    })
}

/// In lines of at most so many characters, broken at spaces; a word that is longer is cut.
pub(crate) fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        while let Some(last) = lines.last_mut() {
            let space = usize::from(!last.is_empty());
            if length(last) + space + word.len() <= most {
                if space == 1 {
                    last.push(' ');
                }
                last.extend(&word);
                break;
            }
            if last.is_empty() {
                last.extend(word.drain(..most));
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    #[test]
    fn who_does_what_is_in_its_column_and_holding_is_thick() {
        let event = |at_us, actor: &str, kind, text: &str| Event {
            at_us,
            actor: actor.into(),
            kind,
            text: text.into(),
        };
        let line = Timeline {
            actors: vec!["client 1".into(), "client 2".into()],
            events: vec![
                event(0, "client 1", Kind::Took, "SET lock NX"),
                event(51_200, "client 2", Kind::Took, "SET lock NX PX 30000, which is long → OK"),
                event(51_300, "client 2", Kind::Violated, "both hold it"),
                event(60_000, "client 1", Kind::Deleted, "DEL lock"),
            ],
            spans: vec![Span {
                actor: "client 1".into(),
                state: State::Holds,
                from_us: 0,
                to_us: 51_250,
            }],
        };
        let drawn = draw(&line);
        let expected = "
             client 1       client 2
    0.00 ms  ┃ SET lock NX  │
    51.2 ms  ┃              │ SET lock NX PX 30000,
             ┃              │ which is long → OK
    51.3 ms  ✗ both hold it
    60.0 ms  │ DEL lock     │
";
        assert_eq!(drawn, expected.trim_start_matches('\n'), "\n{drawn}");
    }

    #[test]
    fn words_that_are_too_long_are_cut() {
        assert_eq!(wrap("aaaaaaa b", 3), ["aaa", "aaa", "a b"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
