//! The outcomes as a table in text.

use crate::runner::Findings;
use crate::timeline::millis;

/// One line for each variant.
pub fn draw(findings: &Findings) -> String {
    let head = ["EXPERIMENT", "VARIANT", "RUNS", "VIOLATIONS", "OPS/S", "P99", ""];
    let mut rows = vec![head.map(String::from)];
    for finding in &findings.experiments {
        if finding.skipped.is_some() {
            let row = [finding.name, "skipped", "", "", "", "", ""];
            rows.push(row.map(String::from));
        }
        for verdict in &finding.variants {
            let (mut row, names) = (<[String; 7]>::default(), [finding.name, verdict.name]);
            [row[0], row[1]] = names.map(String::from);
            if let Some(outcome) = &verdict.outcome {
                row[2] = outcome.runs.to_string();
                row[3] = outcome.violations.to_string();
                row[4] = outcome.throughput.map(rate).unwrap_or_default();
                row[5] = outcome.p99_us.map(millis).unwrap_or_default();
            }
            let as_expected = if verdict.wrong.is_some() { "WRONG" } else { "as expected" };
            as_expected.clone_into(&mut row[6]);
            rows.push(row);
        }
    }
    align(&rows)
}

/// Operations in a second, with as many digits as mean something: two.
pub fn rate(rate: f64) -> String {
    if rate < 10.0 {
        return format!("{rate:.1}");
    }
    let mut unit = 1.0;
    while rate / unit >= 100.0 {
        unit *= 10.0;
    }
    format!("{:.0}", (rate / unit).round() * unit)
}

/// Rows with their columns aligned: words to the left, figures to the right.
fn align(rows: &[[String; 7]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| {
            if (2..6).contains(&at) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_to_the_right() {
        let row = |name: &str, runs: &str| {
            let mut row = <[String; 7]>::default();
            (row[0], row[2]) = (name.into(), runs.into());
            row
        };
        let text = align(&[row("A", "RUNS"), row("long", "7")]);
        assert_eq!(text, "A       RUNS\nlong       7\n");
    }

    #[test]
    fn rates_have_as_many_digits_as_mean_something() {
        assert_eq!([rate(12_545.6), rate(999.0), rate(1.26)], ["13000", "1000", "1.3"]);
        assert_eq!([rate(0.0), rate(9.96), rate(24.4)], ["0.0", "10.0", "24"]);
    }
}
