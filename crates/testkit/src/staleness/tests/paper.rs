//! Logs of many processes, reports and tables.

use std::io::Write;
use std::time::Duration;

use super::*;
use crate::staleness::{Log, Report, Row, check, read, splice, table};

#[test]
fn the_files_of_eight_processes_are_one_history() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..8).map(|process| folder.path().join(format!("{process}"))).collect();
    std::thread::scope(|scope| {
        for (process, path) in (0..8_u32).zip(&paths) {
            scope.spawn(move || {
                let log = Log::create(path, process).unwrap();
                let session = u64::from(process);
                for version in 1..=50 {
                    let key = format!("key \"{process}\"\n");
                    log.begin(session, &key, Kind::Write).wrote(version);
                    log.begin(session, &key, Kind::Read).found(Some(version), Source::L1);
                    log.begin(session, &key, Kind::Read).failed();
                }
            });
        }
    });
    let history = read(&paths).unwrap();
    assert_eq!(history.len(), 8 * 150);
    assert!(history.is_sorted_by_key(|operation| operation.inv));
    assert!(history.iter().all(|operation| operation.inv <= operation.res));
    let report = check(&history).unwrap();
    assert_eq!((report.reads, report.writes, report.refused), (400, 400, 400));
    assert_eq!(report.near(), 400, "where they came from");
    assert!(report.is_clean(), "{:#?}", report.examples);
}

#[test]
fn what_a_killed_process_began_is_unknown_and_ended_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["killed", "alive"].map(|name| folder.path().join(name));
    let killed = Log::create(&paths[0], 1).unwrap();
    killed.begin(1, "k", Kind::Write).wrote(1);
    drop(killed.begin(1, "k", Kind::Write));
    drop(killed.begin(1, "k", Kind::Read));
    drop(killed);
    // It was killed in the middle of a line.
    let mut torn = std::fs::File::options().append(true).open(&paths[0]).unwrap();
    torn.write_all(br#"{"end":{"process":1,"num"#).unwrap();
    let open = read(&paths[..1]).unwrap();
    assert_eq!(open.len(), 2, "{open:?}");
    assert_eq!((open[1].outcome, open[1].res), (Outcome::Unknown, Instant::NEVER));

    let alive = Log::create(&paths[1], 2).unwrap();
    alive.dead(1);
    alive.begin(2, "k", Kind::Read).found(Some(2), Source::Db);
    alive.begin(3, "k", Kind::Read).found(Some(1), Source::L2);
    let history = read(&paths).unwrap();
    assert!(history[1].res < Instant::NEVER);
    let report = check(&history).unwrap();
    assert_eq!((report.unknown, report.dirty), (1, 0));
    assert_eq!(report.stale, 1, "it was seen to have happened, and then it was not there");
    assert_eq!(report.stale_from.get(&Source::L2), Some(&1));
}

#[test]
fn a_log_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, "{\"end\":{}}\n").unwrap();
    let error = read([&path]).unwrap_err().to_string();
    assert!(error.contains("log:1: "), "{error}");
    std::fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        Log::create(&path, 7).unwrap().begin(1, "k", Kind::Write).wrote(1);
    }
    let error = read([&path]).unwrap_err().to_string();
    assert!(error.contains("log:3: ") && error.contains("again"), "{error}");
    assert!(read([folder.path().join("none")]).is_err());
}

#[test]
fn ages_are_counted_in_classes() {
    let ms = 1_000_000;
    let mut history = vec![write(1, (0, 1), 1)];
    // 99 young ones and an old one: the 99th of a hundred is young.
    history.extend((0..99).map(|_| reads(2, (2 * ms + 1, 3 * ms), 0)));
    history.push(reads(2, (20_000 * ms + 1, 20_001 * ms), 0));
    let report = check(&history).unwrap();
    assert_eq!(report.ages, [0, 99, 0, 0, 0, 1]);
    assert_eq!((report.age_p99, report.age), (Duration::from_millis(2), Duration::from_secs(20)));
    assert_eq!(report.stale, 100);
    assert_eq!(report.examples.len(), 3, "{:#?}", report.examples);
    assert!(report.examples[0].contains("1 behind for 2ms"), "{}", report.examples[0]);
}

#[test]
fn loads_of_a_key_are_counted() {
    let load = |when| did(Kind::Load, 1, when, None);
    let story = [load((0, 10)), load((5, 20)), load((10, 30)), on("other", load((0, 30)))];
    let report = check(&story).unwrap();
    assert_eq!((report.loads, report.loads_at_once), (4, 2));
}

#[test]
fn a_table_has_a_row_for_each_run_and_goes_into_a_document() {
    let stale = check(&[write(1, (0, 1), 1), reads(1, (1_500_001, 2_000_000), 0)]).unwrap();
    let row = |strategy: &str, report| {
        let [strategy, fault] = [strategy, "killed"].map(str::to_owned);
        Row { strategy, fault, report }
    };
    let rows = [row("fill-lease", Report::default()), row("update-then-delete", stale)];
    let text = table(&rows);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    let cells = |line: &str| line.matches('|').count();
    assert!(lines.iter().all(|line| cells(line) == cells(lines[0])), "{text}");
    assert_eq!(
        lines[3],
        "| update-then-delete | killed | 1 | 0 | 1 | 0 | 1 | 1 ms | 1 | 0 | 0 | 0 of 0 | 0 | 0 |"
    );
    let document = "# A\n<!-- table run -->\nold\n<!-- end -->\nB\n";
    let spliced = splice(document, "run", &text).unwrap();
    assert_eq!(spliced, format!("# A\n<!-- table run -->\n{text}<!-- end -->\nB\n"));
    assert_eq!(splice(document, "other", &text), None);
}

/// Ten times as much takes not a hundred times as long: the bound is one that a quadratic checker
/// misses by far.
#[test]
fn a_long_history_of_one_key_is_checked_in_seconds() {
    let mut history = Vec::new();
    for number in 1..=100_000_u64 {
        let now = number * 10;
        history.push(write(number % 8, (now, now + 15), number));
        history.push(reads(number % 5, (now + 5, now + 9), number - 1));
        history.push(did(Kind::Truth, 1, (now + 5, now + 9), Some(number - 1)));
    }
    let since = Instant::now();
    let report = check(&history).unwrap();
    assert!(Instant::now().since(since) < Duration::from_secs(20));
    assert_eq!((report.reads, report.stale), (100_000, 0));
}
