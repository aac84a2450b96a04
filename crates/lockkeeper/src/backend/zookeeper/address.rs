//! Where the servers are and how to get in: what a URL says.

use std::time::Duration;

use tokio::time::error::Elapsed;
use zookeeper_client::{Acls, Client, Error as ZkError};
#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::{TlsCa, TlsCerts, TlsIdentity, TlsOptions};

use super::BACKEND;
use super::layout::Dialect;
use crate::error::{Error, Result};
use crate::url::{Access, Servers, ZooKeeperOptions};

/// How long a session lasts that does not say otherwise: longer than a leader's election, and not so
/// long that everybody must wait for the dead.
pub(super) const SESSION: Duration = Duration::from_secs(10);
/// How long to look for a server that answers.
const CONNECT: Duration = Duration::from_secs(5);

/// What a URL says.
#[derive(Clone)]
pub(super) struct Address {
    servers: String,
    /// What all paths begin with: empty, or `/PATH`.
    pub(super) base: String,
    credentials: Option<String>,
    session: Duration,
    pub(super) dialect: Dialect,
    access: Access,
    #[cfg(feature = "zookeeper-tls")]
    tls: Option<TlsOptions>,
}

impl Address {
    pub(super) fn new(servers: &Servers, options: &ZooKeeperOptions) -> Result<Self> {
        let path = &servers.path;
        let odd = |element| matches!(element, "." | ".." | "");
        if !path.is_empty() && path.split('/').any(odd) || path.contains('\0') {
            return Err(Error::Config(format!("/{path:?} is not a path in ZooKeeper")));
        }
        let credentials = servers.credentials.as_ref();
        if options.access == Access::Creator && credentials.is_none() {
            return Err(Error::Config("acl=creator needs USER:PASSWORD@ in the URL".into()));
        }
        Ok(Self {
            servers: servers.hosts.join(","),
            base: if path.is_empty() { String::new() } else { format!("/{path}") },
            credentials: credentials.map(|(user, password)| format!("{user}:{password}")),
            session: options.session.unwrap_or(SESSION),
            dialect: options.dialect,
            access: options.access,
            #[cfg(feature = "zookeeper-tls")]
            tls: servers.tls.as_ref().map(tls).transpose()?,
        })
    }

    pub(super) fn acls(&self) -> Acls<'static> {
        match self.access {
            Access::Open => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    pub(super) async fn connect(&self) -> Result<Client> {
        let client = self.connect_for(self.session).await?;
        // Pings go by what was asked for. A server that allows less must get them more often.
        let allowed = client.session_timeout();
        if allowed < self.session { self.connect_for(allowed).await } else { Ok(client) }
    }

    async fn connect_for(&self, session: Duration) -> Result<Client> {
        // A connection that is silent for a quarter of the timeout is replaced while there is time.
        let mut connector =
            Client::connector().with_session_timeout(session).with_connection_timeout(session / 4);
        if let Some(credentials) = &self.credentials {
            connector = connector.with_auth("digest", credentials.as_bytes());
        }
        #[cfg(feature = "zookeeper-tls")]
        if let Some(tls) = &self.tls {
            let connecting = connector.with_tls(tls.clone()).secure_connect(&self.servers);
            return self.connected(tokio::time::timeout(CONNECT, connecting).await);
        }
        let connecting = connector.connect(&self.servers);
        self.connected(tokio::time::timeout(CONNECT, connecting).await)
    }

    /// What else may be wrong: the client does not say why a server does not do.
    #[cfg(feature = "zookeeper-tls")]
    fn hint(&self) -> &'static str {
        match self.tls {
            Some(_) => {
                ", does it speak TLS on this port, is its certificate for this host and signed by \
                 ca=, and does it want one of ours, see cert= and key="
            }
            None => ", and does it want TLS, then write zookeepers://",
        }
    }

    #[cfg(not(feature = "zookeeper-tls"))]
    fn hint(&self) -> &'static str {
        ""
    }

    fn connected(&self, client: Result<Result<Client, ZkError>, Elapsed>) -> Result<Client> {
        client.unwrap_or(Err(ZkError::Timeout)).map_err(|error| {
            let context = match &error {
                ZkError::AuthFailed => "the server refused user:password@ of the URL".to_owned(),
                ZkError::BadArguments(_) => {
                    return Error::Config(format!("{:?} are no servers: {error}", self.servers));
                }
                _ => {
                    let (servers, hint) = (&self.servers, self.hint());
                    format!("no server of {servers} answers; is ZooKeeper running there{hint}?")
                }
            };
            Error::unavailable(BACKEND, context, error)
        })
    }
}

#[cfg(feature = "zookeeper-tls")]
fn tls(files: &crate::url::TlsFiles) -> Result<TlsOptions> {
    if files.ca.is_none() {
        return Err(Error::Config("zookeepers: needs ca=, the CA of the servers".into()));
    }
    let pem = crate::tls::Pem::read(files)?;
    let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
    let options = || {
        let mut certs = TlsCerts::builder();
        if let Some(ca) = pem.ca {
            certs = certs.with_ca(TlsCa::from_pem(&text(ca))?);
        }
        if let Some((cert, key)) = pem.identity {
            certs = certs.with_identity(TlsIdentity::from_pem(&text(cert), &text(key))?);
        }
        Ok(TlsOptions::new().with_certs(certs.build()?))
    };
    options().map_err(|error: ZkError| Error::Config(format!("ca=, cert= or key=: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let servers = |path: &str| Servers {
            hosts: vec!["a".into()],
            credentials: None,
            path: path.into(),
            tls: None,
        };
        for bad in ["..", "a/../b", "x//y", "/x", "a\0b"] {
            let address = Address::new(&servers(bad), &ZooKeeperOptions::default());
            assert!(matches!(address, Err(Error::Config(_))), "{bad}");
        }
        let options = ZooKeeperOptions { access: Access::Creator, ..Default::default() };
        assert!(matches!(Address::new(&servers(""), &options), Err(Error::Config(_))));
        let address = Address::new(&servers("app/locks"), &ZooKeeperOptions::default());
        assert_eq!(address.expect("valid").base, "/app/locks");
    }
}
