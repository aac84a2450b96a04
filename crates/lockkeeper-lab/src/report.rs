//! What was found as one page: no network, no scripts, light and dark, for a phone and for a desk.

mod bars;
mod document;
mod escape;
mod picture;

use std::fmt::Write as _;

use crate::experiment::{Expect, Role};
use crate::outcome::Outcome;
use crate::runner::{Finding, Findings, Verdict};
use crate::table::rate;
use crate::timeline::{Kind, Timeline, millis};

use self::escape::escape;

pub use self::document::{Document, document};

const PAGE: &str = include_str!("report/page.html");
/// The pictures have the first two also where they stand alone.
const STYLE: [&str; 3] = [
    include_str!("report/colours.css"),
    include_str!("report/picture.css"),
    include_str!("report/page.css"),
];

/// The page.
pub fn page(findings: &Findings) -> String {
    let mut body = summary(findings);
    for finding in &findings.experiments {
        body.push_str(&experiment(finding));
    }
    let page = PAGE.replace("{style}", &STYLE.concat());
    page.replace("{facts}", &facts(findings)).replace("{body}", &body)
}

fn facts(findings: &Findings) -> String {
    let Findings { seed, seconds, experiments } = findings;
    format!("{} experiments, {seconds:.1} s, seed {seed}", experiments.len())
}

/// What came out, in one table that leads to the rest. Writing to a string does not fail.
fn summary(findings: &Findings) -> String {
    let mut text = String::from(
        "<section id=\"summary\"><h2>What came out</h2>\
         <p>Each row is a program: how often a checker saw what must not be, and how fast it was. \
         Where the worst order is forced, that is measured apart, with eight clients that are not in each other's way: each takes a lock and gives it back, or writes a row and reads it.</p>\
         <div class=\"wide\"><table><thead><tr><th>Program<th class=\"n runs\">Runs<th class=\"n\">Violations\
         <th class=\"n\">Ops/s<th class=\"n\">p99</tr></thead>",
    );
    for finding in &findings.experiments {
        let Finding { name, title, .. } = finding;
        let _ = write!(
            text,
            "<tbody><tr class=\"head\"><th colspan=\"5\"><a href=\"#{name}\">{}</a></tr>",
            escape(title)
        );
        if let Some(why) = &finding.skipped {
            let _ = write!(text, "<tr><td colspan=\"5\">Skipped: {}</tr>", escape(why));
        }
        for verdict in &finding.variants {
            text.push_str(&row(verdict));
        }
        text.push_str("</tbody>");
    }
    text.push_str("</table></div></section>");
    text
}

fn row(verdict: &Verdict) -> String {
    let mark = match verdict.role {
        Role::Lockkeeper => " class=\"ours\"",
        Role::Naive | Role::Repair => "",
    };
    let title = escape(verdict.title);
    let Some(outcome) = &verdict.outcome else {
        return format!("<tr{mark}><td>{title}<td colspan=\"4\">{}</tr>", chip(verdict));
    };
    let p99 = outcome.p99_us.map(millis).unwrap_or_default();
    format!(
        "<tr{mark}><td>{title}<td class=\"n runs\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{p99}</tr>",
        outcome.runs,
        chip(verdict),
        outcome.throughput.map(rate).unwrap_or_default(),
    )
}

/// How many violations, in a colour that says whether that is bad, and a word if it is a surprise.
fn chip(verdict: &Verdict) -> String {
    let Some(outcome) = &verdict.outcome else {
        let why = verdict.wrong.as_deref().unwrap_or_default();
        return format!("<span class=\"chip wrong\">{}</span>", escape(why));
    };
    let (class, count) = match outcome.violations {
        0 => ("sound", "✓ 0".to_owned()),
        count => ("broken", format!("✗ {count}")),
    };
    let surprise = if verdict.wrong.is_some() { " <b>unexpected</b>" } else { "" };
    format!("<span class=\"chip {class}\">{count}</span>{surprise}")
}

fn experiment(finding: &Finding) -> String {
    let Finding { name, title, about, .. } = finding;
    let mut text = format!(
        "<section id=\"{name}\"><h2>{}</h2><p class=\"note\"><code>{name}</code></p><p>{}</p>",
        escape(title),
        escape(about)
    );
    if let Some(why) = &finding.skipped {
        let _ = write!(text, "<p class=\"skipped\">Skipped: {}</p></section>", escape(why));
        return text;
    }
    text.push_str(&charts(finding));
    for verdict in &finding.variants {
        text.push_str(&variant(verdict));
    }
    text.push_str("</section>");
    text
}

fn charts(finding: &Finding) -> String {
    let found: Vec<(&Verdict, &Outcome)> = finding
        .variants
        .iter()
        .filter_map(|verdict| Some((verdict, verdict.outcome.as_ref()?)))
        .collect();
    let bars = |value: fn(&Outcome) -> f64, show: fn(f64) -> String| {
        let bars = found.iter().map(|(verdict, outcome)| bars::Bar {
            label: verdict.title,
            value: value(outcome),
            shown: show(value(outcome)),
            ours: verdict.role == Role::Lockkeeper,
        });
        bars.collect::<Vec<_>>()
    };
    // Small enough to be exact.
    let count =
        |outcome: &Outcome| f64::from(u32::try_from(outcome.violations).unwrap_or(u32::MAX));
    let violations = bars(count, |value| format!("{value:.0}"));
    let throughput = bars(|outcome| outcome.throughput.unwrap_or(0.0), rate);
    let mut text = String::from("<div class=\"charts\">");
    text.push_str(&bars::draw("Violations", "bad", &violations));
    if found.iter().any(|(_, outcome)| outcome.throughput.is_some()) {
        text.push_str(&bars::draw("Operations per second", "good", &throughput));
    }
    text.push_str(&figures(&found));
    text.push_str("</div>");
    text
}

/// The figures that only this experiment has, a chart for each.
fn figures(found: &[(&Verdict, &Outcome)]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for figure in found.iter().flat_map(|(_, outcome)| &outcome.figures) {
        if !names.contains(&(figure.name, figure.unit)) {
            names.push((figure.name, figure.unit));
        }
    }
    let mut text = String::new();
    for (name, unit) in names {
        let bars = found.iter().filter_map(|(verdict, outcome)| {
            let figure = outcome.figures.iter().find(|figure| figure.name == name)?;
            Some(bars::Bar {
                label: verdict.title,
                value: figure.value,
                shown: format!("{} {unit}", rate(figure.value)),
                ours: verdict.role == Role::Lockkeeper,
            })
        });
        text.push_str(&bars::draw(name, "plain", &bars.collect::<Vec<_>>()));
    }
    text
}

fn variant(verdict: &Verdict) -> String {
    let class = match verdict.expect {
        Expect::Broken => "broken",
        Expect::Sound => "sound",
    };
    let title = escape(verdict.title);
    let Some(outcome) = &verdict.outcome else {
        return format!("<article class=\"{class}\"><h3>{title} {}</h3></article>", chip(verdict));
    };
    let story = escape(&outcome.story);
    let runs = if outcome.runs == 1 { "1 run".into() } else { format!("{} runs", outcome.runs) };
    let mut text = format!(
        "<article class=\"{class}\"><h3>{title} {} <small>in {runs}</small></h3><p>{story}</p>",
        chip(verdict)
    );
    if !outcome.timeline.events.is_empty() {
        let drawn = format!(
            "<div class=\"run\">{}{}</div>",
            picture::draw(&outcome.timeline, verdict.title),
            steps(&outcome.timeline)
        );
        let label =
            if outcome.violations > 0 { "The run with the first violation" } else { "A run" };
        let open = if outcome.violations > 0 { " open" } else { "" };
        let _ = write!(text, "<details{open}><summary>{label}</summary>{drawn}</details>");
    }
    text.push_str("</article>");
    text
}

/// The numbers of the picture, in words.
fn steps(line: &Timeline) -> String {
    let mut text = String::from("<ol class=\"steps\">");
    for event in &line.events {
        let class = if event.kind == Kind::Violated { " class=\"violated\"" } else { "" };
        let who = if event.kind == Kind::Violated { "checker" } else { &event.actor };
        let _ = write!(
            text,
            "<li{class}><time>{}</time> <b>{}</b> {}",
            millis(event.at_us),
            escape(who),
            escape(&event.text)
        );
    }
    text.push_str("</ol>");
    text
}

#[cfg(test)]
mod tests;
