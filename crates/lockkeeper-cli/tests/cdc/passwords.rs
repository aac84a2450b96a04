//! Passwords: used, and seen nowhere.

use std::fs;

use rustix::process::Signal;
use testkit::database::System;
use testkit::server;

use super::harness::Running;
use super::world::{Process, Shop, command, output};

/// In the URL, or in files.
fn files(shop: &Shop, redis: &str) -> Vec<String> {
    let database = shop.database.url_of("cdc", "here");
    let with_password = shop.database.url_of("cdc:db-s3cret", "here");
    let folder = shop.folder.path();
    fs::write(folder.join("db.pw"), "db-s3cret\n").expect("write");
    fs::write(folder.join("cache.pw"), "cache-s3cret").expect("write");
    let (rule, common) = (shop.rule(), "name = 'shop'\nlisten = '127.0.0.1:0'");
    vec![
        format!(
            "{common}\ndatabase = '{with_password}'\ncache = 'redis://:cache-s3cret@{redis}'\n{rule}"
        ),
        format!(
            "{common}\ndatabase = '{database}'\ndatabase_password_file = 'db.pw'\ncache = 'redis://{redis}'\n\
             cache_password_file = '{}'\nlocks = 'redis://{redis}?ttl=3s'\nlocks_password_file = 'cache.pw'\n{rule}",
            folder.join("cache.pw").display()
        ),
    ]
}

async fn shop_with_passwords() -> Shop {
    let mut shop = Shop::open(System::MariaDb).await;
    shop.redis = server::redis(&["--requirepass", "cache-s3cret"]).await;
    shop.database.operator("", "CREATE USER cdc IDENTIFIED BY 'db-s3cret'");
    shop.database.operator("", "GRANT ALL ON *.* TO cdc");
    shop
}

fn is_clean(text: &str) {
    assert!(!text.contains("s3cret") && !text.contains("wr0ng"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_the_url_or_in_a_file_is_used_and_seen_nowhere() {
    let shop = shop_with_passwords().await;
    for text in files(&shop, &shop.redis.address().to_string()) {
        let file = shop.write(&text);
        let path = file.to_str().expect("UTF-8");
        for json in [&[][..], &["--json"]] {
            let said = output(&[&["check", "--config", path], json].concat());
            assert_eq!(said.code, 0, "{said:?}");
            is_clean(&format!("{said:?}"));
        }
        let process = Process::start(&file);
        is_clean(&process.until("following").to_string());
        for page in ["/metrics", "/health"] {
            is_clean(&process.pages.page(page).await.1);
        }
        let pid = process.running.pid().as_raw_nonzero();
        for shown in ["cmdline", "environ", "comm"] {
            let bytes = fs::read(format!("/proc/{pid}/{shown}")).expect("read");
            is_clean(&String::from_utf8_lossy(&bytes));
        }
        process.running.signal(Signal::TERM);
        is_clean(&format!("{:?}", process.running.output()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_wrong_is_not_shown_either() {
    let shop = shop_with_passwords().await;
    let good = files(&shop, &shop.redis.address().to_string()).remove(0);
    for (wrong, state) in [("db-s3cret", "waiting"), ("cache-s3cret", "connecting")] {
        let file = shop.write(&good.replace(wrong, "wr0ng"));
        let path = file.to_str().expect("UTF-8");
        let said = output(&["check", "--config", path]);
        assert_eq!(said.code, 69, "{said:?}");
        is_clean(&format!("{said:?}"));
        let process = Process::start(&file);
        process.pages.until_healthy(503, state).await;
        is_clean(&process.pages.health().await.1.to_string());
        process.running.signal(Signal::TERM);
        is_clean(&format!("{:?}", process.running.output()));
        // And as people see it.
        let running = Running::new(&mut command(&["run", "--config", path]));
        let part = if state == "waiting" { "WARN" } else { "tried again" };
        is_clean(&running.error_line(part));
        running.signal(Signal::TERM);
        is_clean(&format!("{:?}", running.output()));
    }
}

#[test]
fn one_that_comes_by_the_environment_is_not_in_the_help() {
    for words in [&["--help"][..], &["check", "--help"], &["run", "--help"]] {
        let mut command = command(words);
        let url = "postgres://a:s3cret@127.0.0.1:1/b";
        is_clean(&format!("{:?}", Running::new(command.env("LOCKKEEPER_URL", url)).output()));
    }
    let words = ["check", "--table", "a.b", "--key", "{id}"];
    let mut command = command(&words);
    let url = "postgres://a:s3cret@127.0.0.1:1/b";
    let said = Running::new(command.env("LOCKKEEPER_URL", url)).output();
    assert_eq!(said.code, 69, "{said:?}");
    is_clean(&format!("{said:?}"));
}
