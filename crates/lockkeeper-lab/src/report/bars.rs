//! Bar charts.

use std::fmt::Write as _;

use super::escape::escape;

/// One bar.
#[derive(Debug)]
pub(super) struct Bar<'a> {
    pub(super) label: &'a str,
    pub(super) value: f64,
    /// The value as it is written.
    pub(super) shown: String,
    pub(super) ours: bool,
}

const WIDTH: f64 = 340.0;
/// What the longest bar leaves for its value.
const ROOM: f64 = 90.0;
const ROW: f64 = 40.0;
/// So many characters of a label fit.
const LETTERS: usize = 54;

/// Draws them, the longest across the chart. Writing to a string does not fail.
pub(super) fn draw(title: &str, class: &str, bars: &[Bar<'_>]) -> String {
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let height = f64::from(u32::try_from(bars.len()).unwrap_or(0)) * ROW;
    let title = escape(title);
    let mut text = format!(
        "<figure class=\"chart {class}\"><figcaption>{title}</figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">"
    );
    let mut top = 0.0;
    for Bar { label, value, shown, ours } in bars {
        let length = if longest > 0.0 { value / longest * (WIDTH - ROOM) } else { 0.0 };
        let ours = if *value <= 0.0 {
            " none"
        } else if *ours {
            " ours"
        } else {
            ""
        };
        let _ = write!(
            text,
            "<text x=\"0\" y=\"{}\">{}</text>\
             <rect class=\"bar{ours}\" x=\"0\" y=\"{}\" width=\"{:.1}\" height=\"13\" rx=\"2\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{}\">{}</text>",
            top + 12.0,
            escape(&cut(label)),
            top + 18.0,
            length.max(1.5),
            length.max(1.5) + 6.0,
            top + 29.0,
            escape(shown)
        );
        top += ROW;
    }
    text.push_str("</svg></figure>");
    text
}

fn cut(label: &str) -> String {
    if label.chars().count() <= LETTERS {
        return label.into();
    }
    let mut short: String = label.chars().take(LETTERS - 1).collect();
    short.push('…');
    short
}
