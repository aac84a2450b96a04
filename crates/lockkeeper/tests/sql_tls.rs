//! `postgres:` and `mysql:` by TLS, and what they say when they cannot.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use lockkeeper::Locks;
use testkit::authority::{Authority, trusting};
use testkit::database::{Database, System};
use testkit::greeting::{PASSWORD, hand_over, misconfigured, unavailable};

const HOST: &str = "127.0.0.1";
const SYSTEMS: [System; 2] = [System::Postgres, System::MariaDb];

/// A server that lets nobody in without TLS; a user with a password, and one with a certificate.
async fn start(system: System, authority: &Authority, host: &str) -> Database {
    let database = system.start_with_tls(authority, host).await;
    Locks::init(&database.url("here")).await.unwrap();
    match system {
        System::Postgres => {
            let sql = format!(
                "CREATE USER app SUPERUSER PASSWORD '{PASSWORD}'; CREATE USER certified SUPERUSER"
            );
            database.operator("here", &sql);
            let rules = "hostssl all certified 127.0.0.1/32 trust clientcert=verify-ca\n\
                         hostssl all app 127.0.0.1/32 scram-sha-256\n\
                         host all postgres 127.0.0.1/32 trust\n";
            std::fs::write(database.server.dir().join("data/pg_hba.conf"), rules).unwrap();
            database.operator("here", "SELECT pg_reload_conf()");
        }
        System::MariaDb => {
            let sql = format!(
                "CREATE USER app IDENTIFIED BY '{PASSWORD}' REQUIRE SSL; GRANT ALL ON *.* TO app; \
                 CREATE USER certified REQUIRE X509; GRANT ALL ON *.* TO certified"
            );
            database.operator("here", &sql);
        }
    }
    database
}

fn app(database: &Database) -> String {
    database.url_of(&format!("app:{PASSWORD}"), "here")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_lock_and_wake_each_other() {
    for system in SYSTEMS {
        let authority = Authority::new("ca");
        let mut database = start(system, &authority, HOST).await;
        let url = format!("{}{}", app(&database), trusting(&authority));
        let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
        hand_over(&one, &two).await;
        database.server.restart().await;
        hand_over(&one, &two).await;
        let session = Locks::connect(&format!("{url}&mode=session")).await.unwrap();
        session.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_a_certificate_gets_ours() {
    for system in SYSTEMS {
        let authority = Authority::new("ca");
        let database = start(system, &authority, HOST).await;
        let url = format!("{}{}", database.url_of("certified", "here"), trusting(&authority));
        let (cert, key) = authority.sign("client");
        let with = format!("{url}&cert={}&key={}", cert.display(), key.display());
        let locks = Locks::connect(&with).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        unavailable(&url, "cert= and key=").await;
        let another = Authority::new("another");
        let (cert, key) = another.sign("client");
        let (cert, key) = (cert.display(), key.display());
        unavailable(&format!("{url}&cert={cert}&key={key}"), "cert= and key=").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_we_have_no_reason_to_trust_is_refused() {
    for system in SYSTEMS {
        let authority = Authority::new("ca");
        let database = start(system, &authority, HOST).await;
        unavailable(&format!("{}?tls=on", app(&database)), "name its CA by ca=").await;
        // The second one is a CA that was made again: the same name and another key.
        for another in [Authority::new("another"), Authority::new("ca")] {
            let url = format!("{}{}", app(&database), trusting(&another));
            unavailable(&url, "not signed by a CA that we trust").await;
        }
        let database = start(system, &authority, "elsewhere.test").await;
        let url = format!("{}{}", app(&database), trusting(&authority));
        unavailable(&url, "another host name").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_found_out() {
    for system in SYSTEMS {
        let authority = Authority::new("ca");
        let database = start(system, &authority, HOST).await;
        unavailable(&app(&database), "tls=on").await;
        // MariaDB is started without, PostgreSQL has it off by default.
        let plain = system.start(&[]).await;
        let url = format!("{}{}", plain.url("here"), trusting(&authority));
        unavailable(&url, "leave out tls=on").await;
    }
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://me:{PASSWORD}@127.0.0.1:1/db?ca=/nowhere/ca.pem");
        misconfigured(&url, "ca=/nowhere/ca.pem cannot be read").await;
    }
}
