//! What was found as a document for a repository: text, and pictures next to it.

use std::fmt::Write as _;

use super::{STYLE, picture};
use crate::experiment::Role;
use crate::runner::{Finding, Findings, Verdict};
use crate::table::rate;
use crate::timeline::{Kind, Timeline, millis};

const HEAD: &str = include_str!("document.md");

/// A document in Markdown and the pictures that it shows.
#[derive(Debug)]
pub struct Document {
    /// The text.
    pub text: String,
    /// Each with its path from the document: one for each experiment that has something to show.
    pub pictures: Vec<(String, String)>,
}

/// Writes it. Writing to a string does not fail.
pub fn document(findings: &Findings) -> Document {
    let mut text = HEAD.replace("{facts}", &super::facts(findings));
    text.push_str("| Program | Runs | Violations | Ops/s | p99 |\n|---|---:|---:|---:|---:|\n");
    for finding in &findings.experiments {
        let _ = writeln!(text, "| [**{}**](#{}) | | | | |", plain(finding.title), finding.name);
        for verdict in &finding.variants {
            text.push_str(&row(verdict));
        }
    }
    let mut pictures = Vec::new();
    for finding in &findings.experiments {
        text.push_str(&section(finding));
        if let Some((verdict, line)) = shown(finding) {
            let path = format!("lab/{}.svg", finding.name);
            let title = plain(verdict.title);
            let _ = write!(text, "\n{title}:\n\n![A run of: {title}]({path})\n\n{}", steps(line));
            pictures.push((path, picture::alone(line, &STYLE[..2].concat())));
        }
    }
    Document { text, pictures }
}

fn row(verdict: &Verdict) -> String {
    let title = plain(verdict.title);
    let title = if verdict.role == Role::Lockkeeper { format!("*{title}*") } else { title };
    let Some(outcome) = &verdict.outcome else {
        return format!("| {title} | | {} | | |\n", count(verdict));
    };
    format!(
        "| {title} | {} | {} | {} | {} |\n",
        outcome.runs,
        count(verdict),
        outcome.throughput.map(rate).unwrap_or_default(),
        outcome.p99_us.map(millis).unwrap_or_default()
    )
}

fn count(verdict: &Verdict) -> String {
    let count = match &verdict.outcome {
        Some(outcome) if outcome.violations == 0 => "✓ 0".to_owned(),
        Some(outcome) => format!("✗ {}", outcome.violations),
        None => String::new(),
    };
    match &verdict.wrong {
        Some(why) => format!("{count} **WRONG: this {}**", plain(why)),
        None => count,
    }
}

fn section(finding: &Finding) -> String {
    let Finding { name, title, about, .. } = finding;
    let mut text = format!(
        "\n<a id=\"{name}\"></a>\n\n## {}\n\n`lockkeeper lab run {name}`\n\n{}\n\n",
        plain(title),
        plain(about)
    );
    if let Some(why) = &finding.skipped {
        let _ = writeln!(text, "Skipped: {}.", plain(why));
    }
    for verdict in &finding.variants {
        let story = verdict.outcome.as_ref().map(|outcome| plain(&outcome.story));
        let _ = writeln!(
            text,
            "- **{}** · {} · {}",
            plain(verdict.title),
            count(verdict),
            story.unwrap_or_default()
        );
    }
    text
}

/// What there is a picture of: the first that went wrong.
fn shown(finding: &Finding) -> Option<(&Verdict, &Timeline)> {
    finding.variants.iter().find_map(|verdict| {
        let line = &verdict.outcome.as_ref()?.timeline;
        line.violation().map(|_| (verdict, line))
    })
}

/// The numbers of the picture, in words.
fn steps(line: &Timeline) -> String {
    let mut text = String::new();
    for (at, event) in (1..).zip(&line.events) {
        let (time, said) = (millis(event.at_us), plain(&event.text));
        let _ = match event.kind {
            Kind::Violated => writeln!(text, "{at}. {time} **✗ {said}**"),
            _ => writeln!(text, "{at}. {time} **{}** {said}", plain(&event.actor)),
        };
    }
    text
}

/// The text such that none of it is taken for markup.
fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}
