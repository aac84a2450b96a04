//! The same by TLS, for a look whether clients get in: every server has a plain port besides, through
//! which the tests see to it.

use super::{Cluster, MASTER, Replicated, SETTLE, Sentinels, ask, has_replicas, replica_recipe};
use crate::authority::Authority;
use crate::server::{Port, redis_recipe};
use crate::wait::within;

/// The settings by which a server has a port for TLS.
fn settings(authority: &Authority, port: &Port) -> Vec<(&'static str, String)> {
    let (cert, key) = authority.sign("127.0.0.1");
    vec![
        ("tls-port", port.address.port().to_string()),
        ("tls-cert-file", cert.display().to_string()),
        ("tls-key-file", key.display().to_string()),
        ("tls-ca-cert-file", authority.ca().display().to_string()),
        ("tls-auth-clients", "no".to_owned()),
        ("tls-replication", "yes".to_owned()),
    ]
}

fn arguments(settings: &[(&str, String)]) -> Vec<String> {
    settings.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]).collect()
}

fn addresses(ports: &[Port]) -> String {
    let addresses: Vec<String> = ports.iter().map(|port| port.address.to_string()).collect();
    addresses.join(",")
}

/// A topology and the way in by TLS.
#[derive(Debug)]
pub struct ByTls<T> {
    /// The servers, with plain ports.
    pub nodes: T,
    /// The URL, without the file of the authority.
    pub url: String,
    _ports: Vec<Port>,
}

/// One master, one replica, three sentinels.
///
/// # Panics
///
/// As [`Recipe::start`](crate::server::Recipe::start).
pub async fn sentinels(authority: &Authority) -> ByTls<Sentinels> {
    let ports: Vec<Port> = (0..5).map(|_| Port::reserve()).collect();
    let master = replica_recipe(&arguments(&settings(authority, &ports[0]))).start().await;
    let port = ports[0].address.port();
    let mut follow = settings(authority, &ports[1]);
    follow.push(("replicaof", format!("127.0.0.1 {port}")));
    let replica = replica_recipe(&arguments(&follow)).start().await;
    has_replicas(&master, 1, None).await;
    let mut watching = Vec::new();
    for port in &ports[2..] {
        let mut config = "port {port}\nbind 127.0.0.1\n".to_owned();
        for (name, value) in settings(authority, port) {
            config.push_str(&format!("{name} {value}\n"));
        }
        let at = ports[0].address.port();
        config.push_str(&format!("sentinel monitor {MASTER} 127.0.0.1 {at} 2\n"));
        let recipe = redis_recipe().without_arguments().file("sentinel.conf", &config);
        watching.push(recipe.args(["{dir}/sentinel.conf", "--sentinel"]).start().await);
    }
    let url = format!("rediss+sentinel://{}/{MASTER}", addresses(&ports[2..]));
    let nodes = Replicated { servers: vec![master, replica] };
    ByTls { nodes: Sentinels { nodes, sentinels: watching }, url, _ports: ports }
}

/// Three masters with a replica each.
///
/// # Panics
///
/// As [`Recipe::start`](crate::server::Recipe::start).
pub async fn cluster(authority: &Authority) -> ByTls<Cluster> {
    let ports: Vec<Port> = (0..6).map(|_| Port::reserve()).collect();
    let nodes = Cluster::start_with(SETTLE, |at| {
        let mut settings = settings(authority, &ports[at]);
        settings.push(("tls-cluster", "yes".to_owned()));
        (arguments(&settings), ports[at].address.port())
    })
    .await;
    for server in &nodes.servers {
        let well =
            async || ask(server.address(), "CLUSTER INFO").await.contains("cluster_state:ok");
        within(SETTLE, "the cluster is well", well).await;
    }
    let url = format!("rediss+cluster://{}", addresses(&ports[..1]));
    ByTls { nodes, url, _ports: ports }
}
