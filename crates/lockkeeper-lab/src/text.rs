//! What was found, for a terminal.

use std::fmt::Write as _;

use crate::diagram;
use crate::runner::{Finding, Findings, Verdict};
use crate::table;

/// Paragraphs are so wide.
const WIDTH: usize = 96;

/// A paragraph and a diagram for each experiment, then the table.
pub fn draw(findings: &Findings) -> String {
    let mut text = String::new();
    for finding in &findings.experiments {
        text.push_str(&one(finding));
    }
    text.push_str(&table::draw(findings));
    // Writing to a string does not fail.
    let _ = writeln!(text, "\nseed {}, {:.1} s", findings.seed, findings.seconds);
    text
}

fn one(finding: &Finding) -> String {
    let mut text = format!("== {}: {}\n\n", finding.name, finding.title);
    paragraph(&mut text, finding.about);
    if let Some(why) = &finding.skipped {
        paragraph(&mut text, &format!("Skipped: {why}."));
    }
    for verdict in &finding.variants {
        variant(&mut text, verdict);
    }
    text
}

fn variant(text: &mut String, verdict: &Verdict) {
    let Verdict { title, .. } = verdict;
    match (&verdict.outcome, &verdict.wrong) {
        (Some(outcome), wrong) => {
            let (count, runs) = (outcome.violations, outcome.runs);
            let count = match count {
                0 => "no violation".to_owned(),
                1 => "1 violation".to_owned(),
                _ => format!("{count} violations"),
            };
            let runs = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
            paragraph(text, &format!("{title}: {count} in {runs}. {}", outcome.story));
            if let Some(why) = wrong {
                paragraph(text, &format!("WRONG: this {why}."));
            }
            // Pictures of what goes well are in the report.
            if outcome.violations > 0 {
                text.push_str(&diagram::draw(&outcome.timeline));
                text.push('\n');
            } else if !outcome.timeline.events.is_empty() {
                paragraph(text, &format!("A run: {}", outcome.timeline.tell()));
            }
        }
        (None, wrong) => {
            let why = wrong.as_deref().unwrap_or("came to no outcome");
            paragraph(text, &format!("WRONG: {title}: this {why}."));
        }
    }
}

fn paragraph(text: &mut String, said: &str) {
    for line in diagram::wrap(said, WIDTH) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
}
