//! A run as a picture: a lane for each who takes part, bars for what they believe, numbers for what they do.
//!
//! Evenly spaced and in their order, not to scale: what matters lies within a millisecond next to waits of
//! a second. The times are in the list below.

use std::fmt::Write as _;
use std::time::Duration;

use super::escape::escape;
use crate::timeline::{Kind, State, Timeline};

const WIDTH: f64 = 360.0;
const MARGIN: f64 = 14.0;
const LANE: f64 = 50.0;

/// Draws it for a page that says how it looks.
pub(super) fn draw(line: &Timeline, title: &str) -> String {
    let (height, inside) = (height(line), inside(line));
    let title = escape(title);
    format!(
        "<svg class=\"picture\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"A run of: {title}\">{inside}</svg>"
    )
}

/// Draws it for a file of its own, twice as large.
pub(super) fn alone(line: &Timeline, style: &str) -> String {
    let (height, inside) = (height(line), inside(line));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{}\" height=\"{}\">\n\
         <style>\n{style}svg {{ background: var(--paper); }}\n</style>\n{inside}\n</svg>\n",
        2.0 * WIDTH,
        2.0 * height
    )
}

fn height(line: &Timeline) -> f64 {
    number(line.actors.len()) * LANE + 8.0
}

/// Lanes, bars and numbers. Writing to a string does not fail.
fn inside(line: &Timeline) -> String {
    let axis = Axis::of(line);
    let mut text = String::new();
    let lanes = line.actors.iter().zip(0..).map(|(actor, at)| (actor, f64::from(at) * LANE));
    for (actor, top) in lanes.clone() {
        let (label, middle) = (top + 12.0, top + 32.0);
        let _ = write!(
            text,
            "<text x=\"{MARGIN}\" y=\"{label}\">{}</text>\
             <line class=\"lane\" x1=\"{MARGIN}\" x2=\"{}\" y1=\"{middle}\" y2=\"{middle}\"/>",
            escape(actor),
            WIDTH - MARGIN
        );
        for span in line.spans.iter().filter(|span| span.actor == *actor) {
            let class = match span.state {
                State::Holds => "holds",
                State::Waits => "waits",
                State::Paused => "paused",
            };
            let (from, to) = (axis.x(span.from_us), axis.x(span.to_us));
            let _ = write!(
                text,
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"18\" rx=\"4\"/>",
                middle - 9.0,
                (to - from).max(3.0)
            );
        }
    }
    for (at, event) in (1..).zip(&line.events) {
        let top =
            lanes.clone().find(|(actor, _)| **actor == event.actor).map_or(0.0, |(_, top)| top);
        let (x, y) = (axis.nth(at - 1), top + 32.0);
        let class = class(event.kind);
        let _ = write!(
            text,
            "<g class=\"event {class}\"><circle cx=\"{x:.1}\" cy=\"{y}\" r=\"8\"/>\
             <text x=\"{x:.1}\" y=\"{}\">{at}</text></g>",
            y + 3.6
        );
    }
    text
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Violated => "violated",
        Kind::Wrote | Kind::Deleted => "wrote",
        Kind::Expired | Kind::Crashed | Kind::Paused => "fault",
        _ => "did",
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Where on the page a moment is: the events evenly spaced, everything else in proportion between its neighbours.
struct Axis {
    events: Vec<u64>,
    step: f64,
}

impl Axis {
    fn of(line: &Timeline) -> Self {
        let events: Vec<u64> = line.events.iter().map(|event| event.at_us).collect();
        let gaps = number(events.len().saturating_sub(1).max(1));
        Self { step: (WIDTH - 2.0 * MARGIN - 16.0) / gaps, events }
    }

    fn nth(&self, at: usize) -> f64 {
        MARGIN + 8.0 + number(at) * self.step
    }

    fn x(&self, moment: u64) -> f64 {
        let past = self.events.partition_point(|at| *at <= moment);
        let Some(before) = past.checked_sub(1) else { return MARGIN };
        let part = self.events.get(past).map_or(0.0, |next| {
            let [gone, gap] = [moment, *next].map(|at| at - self.events[before]);
            Duration::from_micros(gone).div_duration_f64(Duration::from_micros(gap))
        });
        self.nth(before) + part * self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_events_is_drawn_between_them() {
        let axis = Axis { events: vec![10, 20, 20, 1020], step: 100.0 };
        let x = |moment| axis.x(moment) - axis.nth(0);
        assert_eq!(
            [x(10), x(15), x(20), x(520), x(1020), x(9999)],
            [0.0, 50.0, 200.0, 250.0, 300.0, 300.0]
        );
        assert_eq!(axis.x(9), MARGIN);
    }
}
