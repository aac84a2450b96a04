use super::*;
use crate::outcome::Tally;
use crate::scene::Scene;

fn findings() -> Findings {
    let scene = Scene::new();
    let (one, two) = (scene.actor("client <1>"), scene.actor("client 2"));
    one.did(Kind::Took, "SET lock & NX");
    one.believes();
    two.believes();
    let mut tally = Tally::new();
    tally.operation(std::time::Duration::from_millis(1));
    tally.run(&scene);
    let broken = Verdict {
        name: "naive",
        title: "SET <NX>",
        role: Role::Naive,
        expect: Expect::Broken,
        wrong: None,
        outcome: Some(tally.end(Timeline::tell)),
    };
    let failed = Verdict {
        name: "x",
        outcome: None,
        wrong: Some("came to no outcome".into()),
        ..broken.clone()
    };
    let finding = Finding {
        name: "one",
        title: "One",
        about: "About.",
        skipped: None,
        variants: vec![broken, failed],
    };
    let skipped = Finding {
        skipped: Some("etcd is not installed".into()),
        variants: vec![],
        ..finding.clone()
    };
    Findings { seed: 7, seconds: 1.0, experiments: vec![finding, skipped] }
}

#[test]
fn nothing_of_a_run_is_taken_for_a_tag() {
    let page = page(&findings());
    assert!(page.contains("client &lt;1&gt;") && page.contains("SET lock &amp; NX"), "{page}");
    assert!(!page.contains("client <1>") && !page.contains("SET <NX>"));
}

#[test]
fn the_page_asks_for_nothing_from_elsewhere() {
    let page = page(&findings());
    for way in ["http:", "https:", "<script", "@import", "url("] {
        assert!(!page.contains(way), "{way}");
    }
}

#[test]
fn what_was_skipped_or_failed_is_said() {
    let page = page(&findings());
    assert!(page.contains("Skipped: etcd is not installed"));
    assert!(page.contains("came to no outcome"));
    assert_eq!(page.matches("<svg class=\"picture\"").count(), 1);
    assert_eq!(page.matches("<figure").count(), 2);
}

#[test]
fn a_document_shows_the_first_violation_of_each_experiment() {
    let Document { text, pictures } = document(&findings());
    let [(path, picture)] = &pictures[..] else { panic!("{pictures:?}") };
    assert!(text.contains("](lab/one.svg)") && path == "lab/one.svg", "{text}");
    assert!(picture.contains("client &lt;1&gt;"), "{picture}");
    assert!(text.contains(" ms **client \\<1\\>** SET lock & NX"), "{text}");
    assert!(text.contains("| SET \\<NX\\> |") && !text.contains("SET <NX>"), "{text}");
    assert!(text.contains("Skipped: etcd is not installed."), "{text}");
    assert!(text.contains("**WRONG: this came to no outcome**"), "{text}");
}
