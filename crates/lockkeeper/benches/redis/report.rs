//! The tables, in Markdown.

use std::fmt::Write;

use crate::Plan;
use crate::book::{Book, Figure};
use crate::contender::{ALL, Role};

/// What was measured, as text.
pub(crate) fn write(plan: &Plan, book: &Book, server: &str) -> String {
    let taking_part = |at: &usize| {
        let one = &ALL[*at];
        (1..=6).any(|row| plan.contenders(row).iter().any(|other| other.id == one.id))
    };
    let columns: Vec<usize> = (0..ALL.len()).filter(taking_part).collect();
    let mut text = String::new();
    let mode = if plan.quick { " (--quick: too short to be quoted)" } else { "" };
    let _ = writeln!(text, "## Redis {server}{mode}\n\n{}\n", machine());
    text += &targets(book);
    text +=
        &table("Lockkeeper to the other", book, &columns[1.min(columns.len())..], |figure, at| {
            let (ours, theirs) = (book.ours(figure)?, book.value(figure, at)?);
            (figure.compares() && theirs > 0.0).then(|| format!("{}×", short(ours / theirs)))
        });
    text += &table("Figures", book, &columns, |figure, at| book.value(figure, at).map(short));
    for (at, version) in &book.versions {
        let _ = writeln!(text, "- {}: {version}", ALL[*at].name);
    }
    for ((at, row), what) in &book.faults {
        let row = if *row == 0 { "not run".to_owned() } else { format!("row {row} failed") };
        let _ = writeln!(text, "- {}: {row}: {what}", ALL[*at].name);
    }
    for (at, row) in &book.cold {
        let _ =
            writeln!(text, "- {}: row {row}: still getting faster when measured", ALL[*at].name);
    }
    let (rough, all) = (book.weather.rough, book.weather.all);
    let _ = writeln!(
        text,
        "- {rough} of {all} measurements of rows 1 to 4 were taken while others used the machine"
    );
    text
}

fn table(
    title: &str,
    book: &Book,
    columns: &[usize],
    cell: impl Fn(Figure, usize) -> Option<String>,
) -> String {
    let mut text = format!("| row | {title} | unit |");
    for at in columns {
        let _ = write!(text, " {} |", ALL[*at].name);
    }
    let _ = writeln!(text, "\n| --- | --- | --- |{}", " ---: |".repeat(columns.len()));
    for figure in book.figures() {
        let (row, what, unit) = figure.about();
        let cells: Vec<_> = columns.iter().map(|at| cell(figure, *at)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "| {row} | {what} | {unit} |");
        for (at, cell) in columns.iter().zip(cells) {
            let nothing = if !book.runs(&ALL[*at]) {
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

/// What we want to reach, and whether we do.
fn targets(book: &Book) -> String {
    let mut text = String::from("| row | target | measured | met |\n| --- | --- | --- | --- |\n");
    let mut line =
        |row: u8, target: &str, measured: Option<(f64, String)>, most: bool, limit: f64| {
            let (measured, met) = match measured {
                Some((value, against)) => {
                    let met = if most { value <= limit } else { value >= limit };
                    let measured = format!("{} {against}", short(value));
                    (measured, if met { "yes" } else { "no" })
                }
                None => ("no figure".to_owned(), ""),
            };
            let _ = writeln!(text, "| {row} | {target} | {measured} | {met} |");
        };
    let peers = [Role::Barging, Role::Fair];
    let ratio = |figure, roles: &[Role], highest| {
        let ((theirs, name), ours) = book.best(figure, roles, highest).zip(book.ours(figure))?;
        Some((ours / theirs, format!("× {name}")))
    };
    let raw = ratio(Figure::PairP50, &[Role::Raw], false);
    line(1, "p50 ≤ 1.2 × the raw two round trips", raw, true, 1.2);
    let scripts = ALL.iter().position(|one| one.id == "raw-scripts").unwrap();
    let rate = book.ours(Figure::OwnRate).zip(book.value(Figure::OwnRate, scripts));
    let rate = rate.map(|(ours, raw)| (ours / raw, "× raw scripts".to_owned()));
    line(2, "≥ 0.7 × the raw scripts", rate, false, 0.7);
    line(2, "≥ 2 × the best peer", ratio(Figure::OwnRate, &peers, true), false, 2.0);
    line(3, "≥ 50 × the best peer", ratio(Figure::OneRate, &peers, true), false, 50.0);
    let trip = book.best(Figure::PairP50, &[Role::Raw], false).map(|(pair, _)| pair / 2.0);
    let hand_over = book.ours(Figure::HandOverP50).zip(trip);
    let hand_over = hand_over
        .map(|(time, trip)| (time / trip, format!("raw round trips, of {} µs", short(trip))));
    line(4, "hand-over p50 ≤ 1.5 raw round trips", hand_over, true, 1.5);
    line(4, "≥ the best peer's throughput", ratio(Figure::ManyRate, &peers, true), false, 1.0);
    let wait = ratio(Figure::LongestWait, &[Role::Barging], false);
    line(4, "longest wait ≤ 1/10 of the best barging peer's", wait, true, 0.1);
    for clients in [10, 100, 1000] {
        let sent = book.ours(Figure::Sent(clients)).map(|sent| (sent, "commands".to_owned()));
        line(5, &format!("≤ 6 commands per hand-over, {clients} clients"), sent, true, 6.0);
    }
    for held in [10_000, 100_000] {
        let memory = book.ours(Figure::HeldMemory(held));
        let memory = memory.map(|bytes| (bytes, "bytes".to_owned()));
        line(6, &format!("≤ 2,048 bytes per lock, {held} held"), memory, true, 2048.0);
    }
    text.push('\n');
    text
}

/// Three digits that matter, and the rest as it is.
fn short(value: f64) -> String {
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
