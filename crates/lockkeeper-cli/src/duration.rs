//! Durations as people write them: `1.5s`, `500ms`, `1h 30m`, or a plain number of seconds.

use std::time::Duration;

/// The units that may follow a fraction, in seconds.
const UNITS: [(&str, f64); 7] = [
    ("", 1.0),
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];

/// Reads a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // Only what the library for durations does not know: fractions and plain seconds.
    if !number.is_empty()
        && (unit.is_empty() || number.contains('.'))
        && let Some((_, seconds)) = UNITS.iter().find(|(name, _)| *name == unit)
    {
        let number: f64 = number.parse().map_err(|_| format!("{number} is not a number"))?;
        return Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("expected something like 1.5s, 500ms or 2m: {error}"))
}

/// A duration for people, to the millisecond.
pub(crate) fn show(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(millis(duration)))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_and_plain_seconds_are_understood() {
        let cases = [
            ("0", 0),
            ("1.5", 1500),
            ("1.5s", 1500),
            (".25s", 250),
            ("0.5m", 30_000),
            ("500ms", 500),
            ("1h 30m", 5_400_000),
        ];
        for (text, millis) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let huge = "9".repeat(400);
        for text in ["", "s", "-1", "1.5.5s", "1.5 parsecs", "soon", "inf", "NaN", ".", &huge] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
