//! By TLS, and what is not expected.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::BoxError;
use lockkeeper_cache::outbox::{Outbox, Relay, Row, mysql, postgres};
use parking_lot::Mutex;
use testkit::authority::Authority;
use testkit::database::System;
use testkit::wait::{eventually, soon};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

/// Where several kinds of cryptography are compiled in and the program has chosen none, as here.
#[tokio::test]
async fn an_outbox_is_read_by_tls() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    for system in [System::Postgres, System::MariaDb] {
        let server = system.start_with_tls(&authority, "localhost").await;
        let create = match system {
            System::Postgres => postgres::CREATE_TABLE,
            System::MariaDb => mysql::CREATE_TABLE,
        };
        server.operator("here", create);
        let port = server.server.address().port();
        let ask = async |host: &str, mode: &str, authority: &Authority| {
            let (user, scheme) = (system.superuser(), system.scheme());
            let ca = authority.ca();
            let options = match system {
                System::Postgres => format!("sslmode={mode}&sslrootcert={}", ca.display()),
                System::MariaDb => format!(
                    "ssl-mode={}&ssl-ca={}",
                    mode.replace("verify-full", "verify_identity").replace('-', "_"),
                    ca.display()
                ),
            };
            let url = format!("{scheme}://{user}@{host}:{port}/here?{options}");
            let outbox: Box<dyn Outbox> = match system {
                System::Postgres => Box::new(postgres::Postgres::new(&url).unwrap()),
                System::MariaDb => Box::new(mysql::MySql::new(&url).unwrap()),
            };
            soon("an answer", outbox.oldest()).await
        };
        for (host, mode) in [("127.0.0.1", "verify-ca"), ("localhost", "verify-full")] {
            assert_eq!(ask(host, mode, &authority).await.unwrap(), None, "{system:?} {mode}");
            assert!(ask(host, mode, &other).await.is_err(), "{system:?} {mode}");
        }
        assert!(ask("127.0.0.1", "verify-full", &authority).await.is_err(), "{system:?}");
    }
}

/// One that panics the first few times.
#[derive(Debug)]
struct Panics {
    outbox: postgres::Postgres,
    left: AtomicUsize,
}

#[async_trait]
impl Outbox for Panics {
    async fn read(&self, age: Duration, after: &str, limit: usize) -> Result<Vec<Row>, BoxError> {
        self.outbox.read(age, after, limit).await
    }

    async fn delete(&self, ids: &[String]) -> Result<(), BoxError> {
        self.outbox.delete(ids).await
    }

    async fn oldest(&self) -> Result<Option<Duration>, BoxError> {
        let less = |left: usize| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        assert!(left.is_err(), "as the test wants it");
        self.outbox.oldest().await
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<String>>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("lockkeeper_cache::outbox")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text<'a>(&'a mut String);
        impl Visit for Text<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        event.record(&mut Text(&mut self.0.lock()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_relay_that_panics_says_so_and_goes_on() {
    let heard = Heard::default();
    let _all = tracing::subscriber::set_default(heard.clone());
    let server = System::Postgres.start(&[]).await;
    server.operator("here", postgres::CREATE_TABLE);
    let outbox = postgres::Postgres::new(&server.url("here")).unwrap();
    let outbox = Panics { outbox, left: AtomicUsize::new(2) };
    let relay = Relay::builder(outbox).every(Duration::from_millis(20)).start();
    eventually("it goes on", async || relay.stats().looks >= 4).await;
    assert_eq!(relay.stats().failures, 2);
    let heard = heard.0.lock().clone();
    assert!(heard.contains("an outbox cannot be relayed"), "{heard}");
    assert!(heard.contains("it panicked"), "{heard}");
    assert!(heard.contains("an outbox is relayed again"), "{heard}");
}
