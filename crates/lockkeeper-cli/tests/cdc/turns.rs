//! Several processes of one name: one follows, and another takes over.

use std::sync::Arc;

use rustix::process::Signal;
use testkit::database::System;
use testkit::on_both_databases;

use super::world::{Process, Shop, until_read};

on_both_databases! {
    of_two_processes_one_follows_and_the_other_takes_over_when_it_is_killed
}

async fn of_two_processes_one_follows_and_the_other_takes_over_when_it_is_killed(system: System) {
    let shop = Arc::new(Shop::open(system).await);
    let (users, file) = (shop.users().await, shop.file(""));
    let first = Process::start(&file);
    first.until("following");
    let second = Process::start(&file);
    second.until("standby");
    assert_eq!(first.pages.health().await.1["state"], "following");
    let (status, health) = second.pages.health().await;
    assert_eq!((status, health["state"].as_str()), (200, Some("standby")), "well, too: {health}");
    until_read(&users, 1, "Anna").await;
    shop.sql("UPDATE users SET name = 'Carl' WHERE id = 1").await;
    until_read(&users, 1, "Carl").await;
    assert_eq!(second.pages.metric("changes_total").await, Some(0.0), "one of them is enough");

    first.running.signal(Signal::KILL);
    shop.sql("UPDATE users SET name = 'Dora' WHERE id = 1").await;
    second.until("takeover");
    second.until("following");
    until_read(&users, 1, "Dora").await;
    assert_eq!(second.pages.metric("takeovers_total").await, Some(1.0));
    assert_eq!(
        second.pages.metric("resets_total").await,
        Some(0.0),
        "it went on where the other was"
    );

    // One that is told to end makes room at once: no lease is waited for.
    let third = Process::start(&file);
    third.until("standby");
    second.running.signal(Signal::TERM);
    second.until("stopped");
    third.until("following");
    shop.sql("UPDATE users SET name = 'Emil' WHERE id = 1").await;
    until_read(&users, 1, "Emil").await;
}
