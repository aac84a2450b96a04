//! The tables, in Markdown.

use std::fmt::Write;
use std::path::Path;

use super::Plan;
use super::book::{Book, Ratio};
use super::figure::Figure;

/// What counts as the same: pings and the like depend on the number of clients.
const FLAT: f64 = 1.2;

/// What was measured, as text. `data`: where the server has its data.
pub(crate) fn write(
    plan: &Plan,
    book: &Book,
    server: &str,
    data: &Path,
    targets: &[Target],
) -> String {
    let all = book.contenders;
    let taking_part = |at: &usize| {
        let one = &all[*at];
        (1..=6).any(|row| plan.contenders(row).iter().any(|other| other.id == one.id))
    };
    let columns: Vec<usize> = (0..all.len()).filter(taking_part).collect();
    let mut text = String::new();
    let mode = if plan.quick { " (--quick: too short to be quoted)" } else { "" };
    let _ = writeln!(text, "## {server}{mode}\n\n{}; data on {}\n", machine(), kind_of_disk(data));
    text += &reached(targets);
    text +=
        &table("Lockkeeper to the other", book, &columns[1.min(columns.len())..], |figure, at| {
            let (ours, theirs) = (book.ours(figure)?, book.value(figure, at)?);
            (figure.compares && theirs > 0.0).then(|| format!("{}×", short(ours / theirs)))
        });
    text += &table("Figures", book, &columns, |figure, at| book.value(figure, at).map(short));
    for (at, version) in &book.versions {
        let _ = writeln!(text, "- {}: {version}", all[*at].name);
    }
    for ((at, row), what) in &book.faults {
        let row = if *row == 0 { "not run".to_owned() } else { format!("row {row} failed") };
        let _ = writeln!(text, "- {}: {row}: {what}", all[*at].name);
    }
    for (at, row) in &book.cold {
        let _ =
            writeln!(text, "- {}: row {row}: still getting faster when measured", all[*at].name);
    }
    let (rough, measured) = (book.weather.rough, book.weather.all);
    let _ = writeln!(
        text,
        "- {rough} of {measured} measurements of rows 1 to 4 were taken while others used the machine"
    );
    text
}

fn table(
    title: &str,
    book: &Book,
    columns: &[usize],
    cell: impl Fn(Figure, usize) -> Option<String>,
) -> String {
    let all = book.contenders;
    let mut text = format!("| row | {title} | unit |");
    for at in columns {
        let _ = write!(text, " {} |", all[*at].name);
    }
    let _ = writeln!(text, "\n| --- | --- | --- |{}", " ---: |".repeat(columns.len()));
    for figure in book.figures() {
        let (row, what, unit) = (figure.row, figure.what(), figure.unit);
        let cells: Vec<_> = columns.iter().map(|at| cell(figure, *at)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "| {row} | {what} | {unit} |");
        for (at, cell) in columns.iter().zip(cells) {
            let nothing = if !book.runs(&all[*at]) {
                "not run"
            } else if book.faults.contains_key(&(*at, row)) {
                "failed"
            } else {
                ""
            };
            let _ = write!(text, " {} |", cell.as_deref().unwrap_or(nothing));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// What we want to reach.
pub(crate) struct Target {
    row: u8,
    what: String,
    measured: Ratio,
    limit: Limit,
}

/// How far a figure may go.
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// What we want to reach in a row.
pub(crate) fn target(row: u8, what: &str, measured: Ratio, limit: Limit) -> Target {
    Target { row, what: what.to_owned(), measured, limit }
}

/// That the server has as much to do for each hand-over in the largest crowd as in the smallest.
pub(crate) fn flat(book: &Book, unit: &str, figure: Figure, crowds: &[u32]) -> Target {
    let (few, many) = (crowds[0], crowds[crowds.len() - 1]);
    let counts = book.ours(figure.of(few)).zip(book.ours(figure.of(many)));
    let measured = counts
        .map(|(few, many)| (many / few, format!("× ({} and {} {unit})", short(few), short(many))));
    let what = format!("{unit} per hand-over with {many} clients ≤ {FLAT} × those with {few}");
    target(5, &what, measured, Limit::AtMost(FLAT))
}

fn reached(targets: &[Target]) -> String {
    let mut text = String::from("| row | target | measured | met |\n| --- | --- | --- | --- |\n");
    for Target { row, what, measured, limit } in targets {
        let (measured, met) = match measured {
            Some((value, against)) => {
                let met = match limit {
                    Limit::AtMost(limit) => value <= limit,
                    Limit::AtLeast(limit) => value >= limit,
                };
                (format!("{} {against}", short(*value)), if met { "yes" } else { "no" })
            }
            None => ("no figure".to_owned(), ""),
        };
        let _ = writeln!(text, "| {row} | {what} | {measured} | {met} |");
    }
    text.push('\n');
    text
}

/// Three digits that matter, and the rest as it is.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "∞".to_owned();
    }
    let text = match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    let (whole, part) = text.split_once('.').map_or((text.as_str(), ""), |(a, b)| (a, b));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 && digit.is_ascii_digit() {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if part.is_empty() { grouped } else { format!("{grouped}.{part}") }
}

/// Where it was measured.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} cores of {model}, Linux {}", kernel.split('-').next().unwrap_or("").trim())
}

/// The type of the file system that holds a path: in memory a write costs the server next to nothing.
fn kind_of_disk(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        path.starts_with(at).then(|| (at.len(), kind.to_owned()))
    };
    // The innermost, and of several in one place the last.
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).unwrap_or_default().1
}
