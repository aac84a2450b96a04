//! Habits that a compiler does not check.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

const LONGEST_FILE: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file below the root with one of these endings, with its text.
fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !["target", ".git"].contains(&name) {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no files with {endings:?}: looked in the wrong place");
    found
}

#[test]
fn files_are_short_enough_to_be_read() {
    // What a program wrote nobody reads.
    let written = |text: &str| !text.lines().next().unwrap_or("").contains("@generated");
    for (path, text) in files(&[".rs"]).into_iter().filter(|(_, text)| written(text)) {
        let lines = text.lines().count();
        assert!(lines <= LONGEST_FILE, "{} has {lines} lines", path.display());
    }
}

#[test]
fn examples_in_documents_are_compiled() {
    // What another crate compiles is in the documentation of that one, word for word.
    let elsewhere = fs::read_to_string(root().join("crates/lockkeeper-cache/src/lib.rs")).unwrap();
    let lines = elsewhere.lines().filter_map(|line| line.strip_prefix("//!"));
    let elsewhere: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let elsewhere = elsewhere.join("\n");
    for (path, text) in files(&[".rs", ".md"]) {
        let fences = text.split("```").skip(1).step_by(2);
        for (language, code) in fences.filter_map(|fence| fence.split_once('\n')) {
            let checked = !language.contains("ignore") || elsewhere.contains(code);
            assert!(checked, "{} has an unchecked example", path.display());
        }
    }
}

#[test]
fn documents_have_one_title() {
    for (path, text) in files(&[".md"]) {
        let mut code = false;
        let titles = text.lines().filter(|line| {
            code ^= line.starts_with("```");
            !code && line.starts_with("# ")
        });
        assert_eq!(titles.count(), 1, "{}", path.display());
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for (path, text) in files(&[".md"]) {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            let outside = target.starts_with("http") || target.is_empty();
            let there = path.parent().unwrap().join(target).exists();
            assert!(outside || there, "{} links to {link}, which is not there", path.display());
        }
    }
}

#[test]
fn every_decision_is_indexed() {
    let index = fs::read_to_string(root().join("docs/adr/README.md")).unwrap();
    for entry in fs::read_dir(root().join("docs/adr")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || index.contains(&name), "{name} is not in the index");
    }
}

#[test]
fn every_example_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for folder in ["crates/lockkeeper/examples", "crates/lockkeeper-cache/examples"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(readme.contains(&format!("`{name}`")), "{name} is not in the README");
        }
    }
}

#[test]
fn every_script_is_used() {
    let sources = files(&[".rs"]);
    for (path, _) in files(&[".sql", ".lua"]) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let quoted = [format!("\"{name}\""), format!("\"lua/{name}\"")];
        let used = sources.iter().any(|(_, text)| quoted.iter().any(|name| text.contains(name)));
        assert!(used, "nobody includes {}", path.display());
    }
}

/// Nothing above the contract knows a store: only the URLs, which choose one, and the default.
#[test]
fn only_the_way_in_names_a_store() {
    let source = root().join("crates/lockkeeper/src");
    for (path, text) in files(&[".rs"]) {
        let Ok(inside) = path.strip_prefix(&source) else { continue };
        let allowed =
            ["url.rs", "locks.rs", "backend.rs"].iter().any(|name| inside == Path::new(name))
                || inside.starts_with("backend");
        let stores = ["etcd", "file", "memory", "redis", "sql", "zookeeper"];
        let stores = stores.map(|store| format!("backend::{store}"));
        let names = stores.iter().any(|store| text.contains(store));
        assert!(allowed || !names, "{} names a store", inside.display());
    }
}

/// A promise names the test that shows it, so that test must be there.
#[test]
fn every_test_that_the_guarantees_name_exists() {
    let sources = files(&[".rs"]);
    let text = fs::read_to_string(root().join("docs/GUARANTEES.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let mut named = 0;
    for cell in rows.filter_map(|row| row.trim_end_matches(" |").rsplit("| ").next()) {
        for test in cell.split('`').skip(1).step_by(2) {
            // The heads of columns name stores.
            if test.ends_with(':') {
                continue;
            }
            named += 1;
            let function = format!("fn {test}(");
            let exists = sources.iter().any(|(_, text)| text.contains(&function));
            assert!(exists, "GUARANTEES names the test {test}, which does not exist");
        }
    }
    assert!(named > 20, "GUARANTEES names only {named} tests");
}
