use super::super::args;
use super::*;

const GOOD: &str = r#"
name = "shop"
database = "postgres://cdc:s3cret@db/shop"
cache = "redis://:s3cret@cache"
[[rule]]
table = "public.users"
namespace = "user"
key = "{id}"
"#;

/// What is said of this file: line, column and text.
fn wrong(text: &str) -> (Option<(usize, usize)>, String) {
    let Err(Wrong { at, why }) = parse(text) else { panic!("it is taken for good: {text}") };
    assert!(!why.contains("s3cret") && !why.contains('\n'), "{why:?}");
    (at.map(|at| place(text.as_bytes(), at)), why)
}

fn parse(text: &str) -> Result<Config, Wrong> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // Pools of connections want one.
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    Config::parse(text, Path::new("/nowhere"))
}

#[test]
fn the_example_of_the_help_is_good() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cdc.pw"), "s3cret\n").expect("write");
    let file = folder.path().join("shop.toml");
    std::fs::write(&file, args::EXAMPLE).expect("write");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let config = Config::read(&file).unwrap_or_else(|failure| panic!("{}", failure.message));
    assert_eq!((config.name.as_str(), config.rules.len()), ("shop", 1));
    assert_eq!(config.max_lag, Some(Duration::from_secs(30)));
    assert_eq!(config.namespaces["user"], Duration::from_secs(3600));
}

#[test]
fn what_is_left_out_has_a_default() {
    let config = parse(GOOD).unwrap_or_else(|wrong| panic!("{}", wrong.why));
    assert_eq!(config.locks, config.cache);
    assert_eq!((config.listen, config.max_lag), (None, None));
    let wanted = config.wanted();
    let columns: Vec<_> =
        wanted.iter().map(|(table, columns)| (table.to_string(), columns)).collect();
    assert_eq!(columns, [("public.users".to_owned(), &["id".to_owned()].into())]);
}

#[test]
fn each_key_that_is_misspelt_is_named_with_its_place_and_what_is_allowed() {
    let keys = [
        ("name =", 2),
        ("database =", 3),
        ("cache =", 4),
        ("table =", 6),
        ("namespace =", 7),
        ("key =", 8),
    ];
    for (key, line) in keys {
        let (at, why) = wrong(&GOOD.replace(key, &format!("x{key}")));
        // One that is misspelt is also one that is missing.
        let named = key.trim_end_matches(" =");
        assert!(why.contains(named), "{why}");
        assert_eq!(at.map(|(line, _)| line), Some(line), "{key} {why}");
        assert!(why.starts_with("unknown field") && why.contains("expected"), "{why}");
    }
    for more in ["lisen = 'x'", "[postgres]\nslott = 'x'", "[mariadb]\nid = 1", "[rules]"] {
        let (at, why) = wrong(&GOOD.replace("[[rule]]", &format!("{more}\n[[rule]]")));
        assert!(why.starts_with("unknown field") && at.is_some(), "{more}: {why}");
    }
}

#[test]
fn each_key_that_is_missing_is_named() {
    for line in GOOD.lines().filter(|line| line.contains('=')) {
        let (_, why) = wrong(&GOOD.replace(line, ""));
        let key = line.split(' ').next().expect("a word");
        assert!(why.contains("missing field") && why.contains(key), "{key}: {why}");
    }
    let without_rules = GOOD.split("[[rule]]").next().expect("a part");
    assert!(wrong(without_rules).1.contains("[[rule]]"));
}

#[test]
fn values_that_make_no_sense_are_refused_where_they_are() {
    let cases = [
        (
            "\"postgres://cdc:s3cret@db/shop\"",
            "\"ftp://cdc:s3cret@db/shop\"",
            (3, 12),
            "postgres://",
        ),
        ("\"postgres://cdc:s3cret@db/shop\"", "\"memory:\"", (3, 12), "mysql://"),
        ("\"postgres://cdc:s3cret@db/shop\"", "\"postgres://cdc:s3cret@:x/y\"", (3, 12), ""),
        ("\"redis://:s3cret@cache\"", "\"postgres://a:s3cret@b/c\"", (4, 9), "in Redis"),
        ("\"redis://:s3cret@cache\"", "\"nothing s3cret\"", (4, 9), "redis://HOST:PORT"),
        ("\"shop\"", "\"\"", (2, 8), ""),
        ("\"shop\"", "\"The Shop\"", (2, 8), "`slot` in [postgres]"),
        ("\"public.users\"", "\"users\"", (6, 9), "schema.name"),
        ("\"user\"", "\"\"", (7, 13), "namespace"),
        ("\"{id}\"", "\"{id\"", (8, 7), "brace"),
        ("\"{id}\"", "\"\"", (8, 7), "empty"),
    ];
    for (good, bad, place, part) in cases {
        let (at, why) = wrong(&GOOD.replace(good, bad));
        assert_eq!(at, Some(place), "{bad}: {why}");
        assert!(why.contains(part), "{bad}: {why}");
    }
    for (more, part) in [
        ("listen = ':9187'", "127.0.0.1:9187"),
        ("listen = 'localhost'", "127.0.0.1:9187"),
        ("max_lag = 'soon'", "1.5s"),
        ("locks = 'ftp://x'", "known are"),
        ("locks_password_file = 'x'", "`locks`"),
        ("cache_password_file = 'x'", "x cannot be used"),
        ("database_password_file = '/dev/null'", "remove one of them"),
        ("[mariadb]\nserver_id = 7", "[postgres]"),
        ("[mariadb]\nserver_id = -7", ""),
        ("[postgres]\nslot = 'no slot; at all'", "small letters"),
        ("[postgres]\nmax_retained = 'much'", "expected u64"),
    ] {
        let (at, why) = wrong(&GOOD.replace("[[rule]]", &format!("{more}\n[[rule]]")));
        assert!(at.is_some() && why.contains(part), "{more}: {why}");
    }
}

#[test]
fn no_message_shows_a_value() {
    for bad in [
        GOOD.replace("\"shop\"", "{ s3cret = 1 }"),
        GOOD.replace("[[rule]]", "[mariadb]\nserver_id = \"s3cret, expected s3cret\"\n[[rule]]"),
        GOOD.replace("[[rule]]", "postgres = \"postgres://a:s3cret@b\"\n[[rule]]"),
        GOOD.replace("[[rule]]", "rule = \"s3cret\"\n[[x]]"),
        GOOD.replace("[[rule]]", "\"postgres://a:s3cret@b\" = 1\n[[rule]]"),
        GOOD.replace("database =", "database"),
        GOOD.replace("s3cret@db/shop\"", "s3cret@db/shop"),
        GOOD.replace("\"postgres://cdc:s3cret@db/shop\"", "postgres://cdc:s3cret@db/shop"),
        GOOD.replace("\"postgres://cdc:s3cret@db/shop\"", "\"postgres://cdc:s3cret\\q@db/shop\""),
        GOOD.replace("cache =", "database ="),
    ] {
        assert!(wrong(&bad).0.is_some(), "{bad}");
    }
}
