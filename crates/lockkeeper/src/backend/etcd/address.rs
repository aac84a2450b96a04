//! Where the cluster is, and who we are.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::tls::Pem;
use crate::url::Servers;

/// Where the cluster is, and who we are.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) credentials: Option<(String, String)>,
}

impl Address {
    pub(super) fn new(servers: &Servers, place: &str) -> Result<Self> {
        let tls = servers.tls.as_ref().map(Pem::read).transpose()?.map(tls);
        let endpoint = |host: &String| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let port = if has_port(host) { "" } else { ":2379" };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}{port}"))?;
            match tls.clone() {
                Some(tls) => endpoint.tls_config(tls),
                None => Ok(endpoint),
            }
        };
        let endpoints: Result<Vec<_>, _> = servers.hosts.iter().map(endpoint).collect();
        let endpoints = endpoints.map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            let reason = reason.unwrap_or_else(|| error.to_string());
            Error::Config(format!("{place} cannot be used: {reason}"))
        })?;
        Ok(Self { endpoints, credentials: servers.credentials.clone() })
    }
}

fn tls(pem: Pem) -> ClientTlsConfig {
    let mut config = match pem.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = pem.identity {
        config = config.identity(Identity::from_pem(cert, key));
    }
    config
}

/// Adds to the error of a first connection what TLS, or the lack of it, may have to do with it.
pub(super) fn explain(error: Error, tls: bool) -> Error {
    let Error::Unavailable { backend, context, source: Some(source) } = error else {
        return error;
    };
    let hint = if context.contains(": ") { "" } else { hint(&*source, tls) };
    Error::Unavailable { backend, context: format!("{context}{hint}"), source: Some(source) }
}

fn hint(error: &(dyn StdError + 'static), tls: bool) -> &'static str {
    let (mut next, mut transport, mut kind) = (Some(error), false, None);
    while let Some(error) = next {
        transport |= error.is::<tonic::transport::Error>();
        kind = kind.or_else(|| error.downcast_ref::<io::Error>().map(io::Error::kind));
        next = error.source();
    }
    if !transport {
        return "";
    }
    match kind {
        Some(ErrorKind::ConnectionRefused) => ": nobody listens there; is etcd running?",
        Some(ErrorKind::TimedOut) => "",
        _ if tls => {
            ": the server closed the connection; does it speak TLS on this port, or does it want a \
             certificate? See cert= and key="
        }
        _ => ": does the server want TLS? Then write etcds://",
    }
}

fn has_port(member: &str) -> bool {
    let after = member.rsplit_once(']').map_or(member, |(_, after)| after);
    after.contains(':')
}

#[cfg(test)]
mod tests {
    use super::has_port;

    #[test]
    fn ports_are_found() {
        assert!(has_port("h:1") && has_port("[::1]:1"));
        assert!(!has_port("h") && !has_port("[::1]"));
    }
}
