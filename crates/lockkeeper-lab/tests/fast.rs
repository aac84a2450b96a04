//! The fast half of the lab: what is broken shows it, and what is sound does not.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use lockkeeper_lab::{Setting, catalogue, diagram, run, table};

/// `LOCKKEEPER_LAB=name` runs that one alone, fast or not, and shows what happened.
#[tokio::test]
async fn every_fast_experiment_comes_out_as_it_must() {
    let only = std::env::var("LOCKKEEPER_LAB").ok();
    let chosen: Vec<_> = catalogue::ALL
        .iter()
        .filter(|one| only.as_ref().map_or(one.fast, |only| one.name == only))
        .collect();
    let setting = Setting::new(1, None);
    let findings = run(&chosen, &setting, &mut |progress| eprintln!("{progress:.100?}")).await;
    for verdict in findings.experiments.iter().flat_map(|finding| &finding.variants) {
        let Some(outcome) = &verdict.outcome else { continue };
        eprintln!("\n{}: {}\n{}", verdict.name, outcome.story, diagram::draw(&outcome.timeline));
    }
    eprintln!("{}", table::draw(&findings));
    assert!(findings.wrong().is_empty(), "{:#?}", findings.wrong());
    // What is not installed here was not tested.
    assert!(findings.skipped().is_empty(), "{:#?}", findings.skipped());
}
