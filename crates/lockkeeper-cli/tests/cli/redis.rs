//! The same command on a server.

use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::clock::Instant;
use testkit::authority::Authority;
use testkit::nodes::{Cluster, Sentinels};
use testkit::redlock::Nodes;
use testkit::server::{self, Server};
use tokio::runtime::Runtime;

use super::harness::BINARY;

fn redis(arguments: &[&str]) -> (Runtime, Server) {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(server::redis(arguments));
    (runtime, server)
}

fn lockkeeper(url: &str, words: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).args(["--url", url]).args(words).output().expect("starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn a_command_runs_under_a_lock_at_a_server() {
    let (_runtime, server) = redis(&[]);
    runs_under_a_lock(&format!("redis://{}", server.address()));
}

#[test]
fn a_command_runs_under_a_lock_in_etcd() {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(server::etcd(&[]));
    runs_under_a_lock(&format!("etcd://{}", server.address()));
}

#[test]
fn a_command_runs_under_a_lock_that_sentinels_watch_over_and_in_a_cluster() {
    let runtime = Runtime::new().expect("a runtime");
    let patient = Duration::from_secs(60);
    let sentinels = runtime.block_on(Sentinels::start(patient));
    runs_under_a_lock(&sentinels.url());
    let cluster = runtime.block_on(Cluster::start(patient));
    runs_under_a_lock(&cluster.url());
}

#[test]
fn a_command_runs_under_a_lock_of_a_majority_and_is_told_when_there_is_none() {
    let runtime = Runtime::new().expect("a runtime");
    let mut nodes = runtime.block_on(Nodes::start_new(3, &[]));
    let url = nodes.url();
    let (code, _, err) = lockkeeper(&url, &["init"]);
    assert_eq!(code, 0, "{err}");
    nodes.servers[1].kill();
    runs_under_a_lock(&url);
    nodes.servers[2].kill();
    let (code, out, err) = lockkeeper(&url, &["run", "-n", "x", "echo", "inside"]);
    assert_eq!((code, out.as_str()), (69, ""), "{err}");
    for server in &nodes.servers {
        assert!(err.contains(&server.address().to_string()), "what each node said: {err}");
    }
}

fn runs_under_a_lock(url: &str) {
    let script = format!("{BINARY} --url {url} show --json x; {BINARY} --url {url} run -n x true");
    let (code, out, err) = lockkeeper(url, &["run", "x", "sh", "-c", &script]);
    assert_eq!(code, 75, "the inner one is refused: {err}");
    let shown: serde_json::Value = serde_json::from_str(out.trim()).expect("JSON");
    assert_eq!(shown["kind"], "mutex");
    assert_eq!(shown["holders"].as_array().map(Vec::len), Some(1));
    assert!(shown["holders"][0]["lease_left_ms"].as_u64().is_some_and(|left| left > 20_000));
    let (code, out, _) = lockkeeper(url, &["ls", "--json"]);
    assert_eq!((code, out.trim()), (0, "[]"), "released");
}

#[test]
fn a_command_that_had_to_wait_has_the_whole_time_to_live() {
    let (_runtime, server) = redis(&[]);
    let url = format!("redis://{}", server.address());
    let run = |script: &str| {
        let words = ["--url", &url, "run", "x", "sh", "-c", script];
        let command =
            Command::new(BINARY).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        command.expect("starts")
    };
    let sees = |what: &str| {
        let seen = || {
            let (_, shown, _) = lockkeeper(&url, &["show", "--json", "x"]);
            let shown: serde_json::Value = serde_json::from_str(shown.trim()).expect("JSON");
            shown[what].as_array().is_some_and(|list| list.len() == 1)
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !seen() {
            assert!(Instant::now() < until, "no {what}");
        }
    };
    let mut first = run("read line");
    sees("holders");
    let second = run("sleep 2; echo whole");
    sees("waiters");
    drop(first.stdin.take());
    first.wait().expect("ends");
    let second = second.wait_with_output().expect("ends");
    assert!(second.status.success(), "{second:?}");
    assert_eq!(second.stdout, b"whole\n");
}

#[test]
fn a_server_that_cannot_be_reached_is_69() {
    let (code, out, err) = lockkeeper("redis://127.0.0.1:1", &["run", "x", "echo", "inside"]);
    assert_eq!((code, out.as_str()), (69, ""));
    assert!(err.contains("redis is not available"), "{err}");
}

#[test]
fn the_password_reaches_neither_the_command_nor_a_message() {
    let (_runtime, server) = redis(&["--requirepass", "s3cret"]);
    let url = format!("redis://:s3cret@{}/0?ttl=5s", server.address());
    let (code, out, err) = lockkeeper(&url, &["run", "-v", "x", "env"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("LOCKKEEPER_URL=redis://"), "{out}");
    assert!(!out.contains("s3cret") && !err.contains("s3cret"), "{out} {err}");
    let wrong = url.replace("s3cret", "wr0ng");
    let (code, _, err) = lockkeeper(&wrong, &["run", "x", "true"]);
    assert_eq!(code, 69, "{err}");
    assert!(!err.contains("wr0ng"), "{err}");
}

#[test]
fn a_command_runs_under_a_lock_at_a_server_with_tls() {
    let authority = Authority::new("ca");
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(server::redis_with_tls(&authority, "127.0.0.1", false));
    let url = format!("rediss://default:s3cret@{}", server.address());
    let trusting = format!("{url}?ca={}", authority.ca().display());
    let script = format!("echo $LOCKKEEPER_URL; {BINARY} run -n x true");
    let (code, out, err) = lockkeeper(&trusting, &["run", "-v", "x", "sh", "-c", &script]);
    assert_eq!(code, 75, "the inner one is refused, by the URL that it was given: {err}");
    assert_eq!(out.trim(), trusting.replace(":s3cret", ""), "{err}");
    assert!(!err.contains("s3cret"), "{err}");
    let (code, _, err) = lockkeeper(&url, &["run", "x", "true"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains("name its CA by ca="), "{err}");
    assert!(!err.contains("s3cret"), "{err}");
    let mut trusts = Command::new(BINARY);
    trusts.args(["--url", &url, "run", "x", "true"]).env("SSL_CERT_FILE", authority.ca());
    let output = trusts.output().expect("starts");
    assert!(output.status.success(), "one of the system's CAs: {output:?}");
}
