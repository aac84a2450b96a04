//! Where the tests of locks that live with a connection have them.

use std::sync::Arc;

use lockkeeper::Locks;

use super::{Database, System};
use crate::proxy::Proxy;

/// A server, and the URL of our locks there, with `mode=session`.
#[derive(Debug)]
pub struct Place {
    /// The server.
    pub database: Arc<Database>,
    /// Where our locks are.
    pub url: String,
}

impl Place {
    /// A server of its own, with these arguments, and a user of few rights.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn start(system: System, arguments: &[&str]) -> Self {
        let database = system.start(arguments).await;
        Locks::init(&database.url("here")).await.unwrap();
        database.let_app_in();
        let url = format!("{}?mode=session", database.url_of("app", "here"));
        Self { database: Arc::new(database), url }
    }

    /// The server that all have in common who do it no harm.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn share(system: System, prefix: &str) -> Self {
        let database = system.shared().await;
        let url = database.url("here");
        Locks::init(&url).await.unwrap();
        Self { database, url: format!("{url}?mode=session&prefix={prefix}/") }
    }

    /// A client.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn connect(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// A client behind a proxy.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn through(&self) -> (Locks, Proxy) {
        let proxy = Proxy::to(self.database.server.address()).await;
        let direct = self.database.server.address().to_string();
        let url = self.url.replace(&direct, &proxy.address().to_string());
        (Locks::connect(&url).await.unwrap(), proxy)
    }
}
