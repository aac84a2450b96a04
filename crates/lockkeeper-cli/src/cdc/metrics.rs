//! What a follower does, in the text form of Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use super::view::{State, View};

/// One number; `None`: it is not known, and there is no line.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: Option<String>,
}

fn gauge(name: &'static str, help: &'static str, value: Option<String>) -> Metric {
    Metric { name, kind: "gauge", help, value }
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, kind: "counter", help, value: Some(value.to_string()) }
}

/// Writes all of it. Writing to a string does not fail.
pub(crate) fn write(name: &str, view: &View) -> String {
    let (name, mut text) = (escaped(name), String::new());
    let _ = write!(
        text,
        "# HELP lockkeeper_cdc_state What the follower is about: one of these is 1.\n\
         # TYPE lockkeeper_cdc_state gauge\n"
    );
    for state in State::ALL {
        let is = u8::from(state == view.state);
        let labels = format!("follower=\"{name}\",state=\"{state}\"");
        let _ = writeln!(text, "lockkeeper_cdc_state{{{labels}}} {is}");
    }
    for Metric { name: metric, kind, help, value } in metrics(view) {
        let _ = writeln!(text, "# HELP lockkeeper_cdc_{metric} {help}");
        let _ = writeln!(text, "# TYPE lockkeeper_cdc_{metric} {kind}");
        if let Some(value) = value {
            let _ = writeln!(text, "lockkeeper_cdc_{metric}{{follower=\"{name}\"}} {value}");
        }
    }
    text
}

fn metrics(view: &View) -> [Metric; 11] {
    let counts = &view.counts;
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes.to_string());
    let seconds = |time: Option<Duration>| time.map(|time| format!("{:.3}", time.as_secs_f64()));
    [
        gauge(
            "lag_bytes",
            "What the database has written to its log and was not read yet.",
            bytes(view.lag_bytes),
        ),
        gauge(
            "lag_seconds",
            "How long ago the last thing that was read was committed; 0 if all is read.",
            seconds(view.lag),
        ),
        gauge(
            "position_age_seconds",
            "How long ago the position was saved, up to which everything is done.",
            seconds(view.position_age),
        ),
        gauge(
            "retained_bytes",
            "What the database keeps of its log for this follower (PostgreSQL: its slot).",
            bytes(view.retained_bytes),
        ),
        counter("takeovers_total", "Times that it got the lock.", counts.takeovers),
        counter("changes_total", "Changes that the log named.", counts.changes),
        counter("invalidated_keys_total", "Keys that were invalidated.", counts.invalidated),
        counter(
            "cleared_total",
            "Namespaces that were cleared, because it was not known which keys had changed.",
            counts.cleared,
        ),
        counter(
            "resets_total",
            "Times that all was cleared and it went on from now, because history was lost.",
            counts.resets,
        ),
        counter(
            "foreign_keys_total",
            "Keys that writers named in a namespace that the file does not have.",
            counts.foreign,
        ),
        counter(
            "failures_total",
            "Times that something failed and was tried again.",
            counts.failures,
        ),
    ]
}

/// As a label must be written.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::view::Counts;
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_what_is_not_known_is_left_out() {
        let counts = Counts { changes: 7, ..Counts::default() };
        let view = View {
            state: State::Following,
            lag: Some(Duration::from_millis(1500)),
            counts,
            ..View::default()
        };
        let text = write("a\"b\\c\nd", &view);
        assert!(text.ends_with('\n'), "{text}");
        let follower = r#"follower="a\"b\\c\nd""#;
        for sample in [
            format!("lockkeeper_cdc_state{{{follower},state=\"following\"}} 1"),
            format!("lockkeeper_cdc_state{{{follower},state=\"standby\"}} 0"),
            format!("lockkeeper_cdc_lag_seconds{{{follower}}} 1.500"),
            format!("lockkeeper_cdc_changes_total{{{follower}}} 7"),
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} in {text}");
        }
        assert!(!text.contains("lockkeeper_cdc_lag_bytes{"), "{text}");
        for line in text.lines() {
            let is_sample = line.starts_with("lockkeeper_cdc_") && line.split("} ").count() == 2;
            assert!(line.starts_with("# ") || is_sample, "{line}");
        }
    }
}
