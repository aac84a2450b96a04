//! `lab`.

use std::fs;

use redis::Commands;
use rustix::process::Signal;
use serde_json::Value;
use testkit::server;

use super::harness::{Store, eventually, lives};

#[test]
fn the_list_names_every_experiment_and_what_it_needs() {
    let listed = Store::new().output(&["lab", "list"]);
    assert_eq!(listed.code, 0);
    assert!(listed.out.lines().any(|line| line.starts_with("oversell ")), "{}", listed.out);
    assert!(listed.out.contains("(redis-server)"), "{}", listed.out);
    assert_eq!(Store::new().output(&["lab"]).out, listed.out);
}

#[test]
fn an_unknown_experiment_is_a_mistake() {
    let output = Store::new().output(&["lab", "run", "nonsense"]);
    assert_eq!(output.code, 64);
    assert!(output.err.contains("lab list"), "{}", output.err);
}

/// And not to standard output, where the JSON is.
#[test]
fn a_run_says_how_far_it_is_and_ends_with_one_object() {
    let store = Store::new();
    let report = store.directory.path().join("new/report");
    let words = ["lab", "run", "check-then-delete", "--seed", "7", "--json", "--report"];
    let output = store.output(&[&words[..], &[report.to_str().expect("UTF-8")]].concat());
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.err.contains("1 of 1: check-then-delete: GET, compare, DEL"), "{}", output.err);
    let found: Value = serde_json::from_str(&output.out).expect("one object");
    assert_eq!(found["seed"], 7);
    let variants = found["experiments"][0]["variants"].as_array().expect("variants");
    let names: Vec<_> = variants.iter().map(|variant| &variant["name"]).collect();
    assert_eq!(names, ["get-del", "script", "lockkeeper"]);
    assert!(variants[0]["outcome"]["violations"].as_u64() > Some(0), "{}", output.out);
    assert_eq!(variants[2]["outcome"]["violations"], 0);
    let page = fs::read_to_string(report.join("index.html")).expect("the page");
    assert!(page.contains("<svg"));
}

#[test]
fn what_is_not_installed_is_said_with_the_way_to_install_it() {
    let store = Store::new();
    let env = format!("PATH={}", store.directory.path().display());
    // By its path: env looks for what it starts where it is told to.
    let mut command = store.command_under(&["/usr/bin/env", &env], &["lab", "run", "oversell"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("apt-get install redis-server"), "{said}");
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(found.contains("skipped"), "{found}");
}

/// What others keep there stays, and nothing of ours does.
#[tokio::test]
async fn a_server_that_others_use_is_left_as_it_was() {
    let server = server::redis(&[]).await;
    let client = redis::Client::open(format!("redis://{}", server.address())).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connects");
    let set = redis::cmd("SET").arg("theirs").arg(1).query_async::<()>(&mut connection).await;
    set.expect("set");
    let url = format!("redis://{}", server.address());
    let words = ["--url", &url, "lab", "run", "crashed-holder", "check-then-delete"];
    let output = Store::new().output(&words);
    assert_eq!(output.code, 0, "{output:?}");
    let keys = redis::cmd("KEYS").arg("*").query_async::<Vec<String>>(&mut connection).await;
    assert_eq!(keys.expect("keys"), ["theirs"]);
    let info = redis::cmd("INFO").arg("commandstats").query_async::<String>(&mut connection).await;
    assert!(info.expect("info").contains("cmdstat_set"), "the experiments ran there");
}

/// Also when it is interrupted at a moment at which there are keys that never end.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_leaves_nothing_at_the_server() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let mut connection = client.get_connection().expect("connects");
    let mut keys = || connection.keys::<_, Vec<String>>("*").expect("keys");
    let mut running = Store::new().start(&["--url", &url, "lab", "run", "crashed-holder"]);
    eventually("a lock", || keys().iter().any(|key| key.ends_with(":lock-0")).then_some(()));
    running.signal(Signal::INT);
    assert_eq!(running.code(), 130);
    assert_eq!(keys(), [""; 0]);
}

#[test]
fn servers_end_with_a_lab_that_is_killed() {
    let running = Store::new().start(&["lab", "run", "crashed-holder"]);
    let lab = running.pid().as_raw_nonzero();
    let children = || {
        let threads = fs::read_dir(format!("/proc/{lab}/task")).into_iter().flatten().flatten();
        let children =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        children.collect::<String>().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let is_redis = |pid: &String| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "redis-server")
    };
    let server = eventually("a server", || children().into_iter().find(is_redis));
    running.signal(Signal::KILL);
    eventually("the server ends", || (!lives(&server)).then_some(()));
}
