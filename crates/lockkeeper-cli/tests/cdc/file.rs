//! Files that make no sense: said with their place, and before anything is done.

use std::fs;

use tempfile::TempDir;

use super::world::output;

const GOOD: &str = "\
name = 'shop'
database = 'postgres://cdc:s3cret@127.0.0.1:1/shop'
cache = 'redis://:s3cret@127.0.0.1:1'
[[rule]]
table = 'public.users'
namespace = 'user'
key = '{id}'
";

/// What both commands say of a file with these bytes.
fn wrong(bytes: &[u8]) -> String {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("shop.toml");
    fs::write(&path, bytes).expect("write");
    refused(path.to_str().expect("UTF-8"))
}

fn refused(path: &str) -> String {
    let mut said = String::new();
    for command in ["check", "run"] {
        for json in [&[][..], &["--json"]] {
            let output = output(&[&[command, "--config", path], json].concat());
            assert_eq!((output.code, output.out.as_str()), (64, ""), "{output:?}");
            assert_eq!(output.err.lines().count(), 1, "{output:?}");
            assert!(!output.err.contains("s3cret"), "{output:?}");
            assert_eq!(output.err.starts_with('{'), !json.is_empty(), "{output:?}");
            said = if json.is_empty() { output.err } else { said };
        }
    }
    said
}

#[test]
fn a_key_that_is_misspelt_is_named_with_its_place() {
    for (key, line) in [("name", 1), ("database", 2), ("cache", 3), ("table", 5), ("key", 7)] {
        let text = GOOD.replacen(&format!("{key} ="), &format!("{key}s ="), 1);
        let said = wrong(text.as_bytes());
        let place = format!("shop.toml:{line}:1: unknown field `{key}s`, expected ");
        assert!(said.contains(&place), "{said}");
        assert!(said.contains(&format!("`{key}`")), "what is allowed: {said}");
    }
}

#[test]
fn a_value_that_makes_no_sense_is_refused_at_its_place() {
    for (good, bad, place) in [
        ("postgres://cdc", "oracle://cdc", ":2:12: "),
        ("redis://", "ftp://", ":3:9: "),
        ("'{id}'", "'{id'", ":7:7: "),
        ("'{id}'", "7", ":7:7: "),
        ("'public.users'", "'users'", ":5:9: "),
    ] {
        let said = wrong(GOOD.replace(good, bad).as_bytes());
        assert!(said.contains(&format!("shop.toml{place}")), "{said}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = TempDir::new().expect("a folder");
    let missing = folder.path().join("missing.toml");
    assert!(refused(missing.to_str().expect("UTF-8")).contains("missing.toml cannot be read"));
    assert!(refused(folder.path().to_str().expect("UTF-8")).contains("cannot be read"));
    let said = wrong(&[GOOD.as_bytes(), b"# \xff\xfe"].concat());
    assert!(said.contains("shop.toml is not UTF-8 in line 8"), "{said}");
    let large = format!("{GOOD}#{}", "x".repeat(2 << 20));
    assert!(wrong(large.as_bytes()).contains("too long"));
    assert!(wrong(b"").contains("missing field"));
}

#[test]
fn a_port_that_is_taken_is_said_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("an address");
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("shop.toml");
    fs::write(&path, format!("listen = '{at}'\n{GOOD}")).expect("write");
    let said = output(&["run", "--config", path.to_str().expect("UTF-8")]);
    assert_eq!(said.code, 126, "{said:?}");
    assert!(said.err.contains(&format!("cannot listen at {at}")), "{said:?}");
}
