//! ZooKeeper servers: one alone, one shared by the tests of a binary, and an ensemble of three.

pub mod snapshot;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::authority::Authority;
use crate::proxy::Proxy;
use crate::server::{Port, Recipe, Server};
use crate::wait::eventually;

/// Where Debian's package puts it.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// And what it forgets to name.
const CLASSES: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar";

/// Small ticks, so that sessions may be short; nothing is forced to disk.
const CONFIG: &str = "tickTime=500
initLimit=8
syncLimit=4
dataDir={dir}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=*
maxClientCnxns=0
";

/// An empty container goes within this time of becoming empty.
const SOON: Duration = Duration::from_secs(1);

/// Not before a test is over.
const LATE: Duration = Duration::from_secs(3600);

/// `$LOCKKEEPER_TEST_ZOOKEEPER` is the class path of another server.
fn recipe(config: &str, containers: Duration) -> Recipe {
    let classes = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").unwrap_or_else(|_| {
        let there = std::path::Path::new(JAR).exists();
        assert!(there, "{JAR} is missing: install it with: apt-get install zookeeper");
        CLASSES.to_owned()
    });
    let java = [
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.forceSync=no",
        &format!("-Dznode.container.checkIntervalMs={}", containers.as_millis()),
        "-cp",
        &classes,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        "{dir}/zoo.cfg",
    ];
    Recipe::new("java", "default-jre-headless zookeeper")
        .args(java)
        .file("zoo.cfg", config)
        .ready_when(|address| async move { mode(address).await.is_some() })
}

/// What a server says it is: `standalone`, `leader` or `follower`; nothing while it serves nobody.
pub async fn mode(address: SocketAddr) -> Option<String> {
    let said = ask(address, "srvr").await?;
    said.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}

/// The last change that a server knows of; nothing while it serves nobody.
async fn zxid(address: SocketAddr) -> Option<String> {
    let said = ask(address, "srvr").await?;
    said.lines().find_map(|line| line.strip_prefix("Zxid: ")).map(str::to_owned)
}

/// What a server answers to one of its four letter words.
pub async fn ask(address: SocketAddr, word: &str) -> Option<String> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await.ok()?;
        Some(said)
    };
    // A server that has just begun may forget a connection.
    tokio::time::timeout(Duration::from_secs(2), asking).await.ok()?
}

/// One server.
pub async fn alone() -> Server {
    recipe(CONFIG, SOON).start().await
}

/// One server that also speaks TLS, on the port that is returned besides, with a certificate that is
/// good for `host`. With `clients`, it wants a certificate of the same authority from them.
pub async fn with_tls(authority: &Authority, host: &str, clients: bool) -> (Server, Port) {
    let secure = Port::reserve();
    let (cert, key) = authority.sign(host);
    // One file for both is what it reads.
    let both = cert.with_extension("both.pem");
    let text = [cert, key].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    std::fs::write(&both, text).unwrap();
    let config = format!(
        "{CONFIG}secureClientPort={}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={}
ssl.keyStore.type=PEM
ssl.trustStore.location={}
ssl.trustStore.type=PEM
ssl.clientAuth={}
",
        secure.address.port(),
        both.display(),
        authority.ca().display(),
        if clients { "need" } else { "none" },
    );
    (recipe(&config, SOON).start().await, secure)
}

/// A server that all tests that run at the same time have in common; ended with the last of them.
/// Each needs a path of its own.
pub async fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
    in_common(&SHARED, SOON).await
}

/// The same, and empty containers stay: with them goes why their holders were evicted.
pub async fn with_lasting_containers() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
    in_common(&SHARED, LATE).await
}

async fn in_common(shared: &Mutex<Weak<Server>>, containers: Duration) -> Arc<Server> {
    let mut shared = shared.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(recipe(CONFIG, containers).start().await);
    *shared = Arc::downgrade(&server);
    server
}

/// Three servers, of which one may be missing.
#[derive(Debug)]
pub struct Ensemble {
    /// The servers.
    pub servers: Vec<Server>,
    /// Between each server and the ports of the others for followers.
    links: Vec<((usize, usize), Proxy)>,
    _ports: Vec<Port>,
}

impl Ensemble {
    /// Starts three and waits until all of them serve.
    pub async fn start() -> Self {
        let ports: Vec<Port> = (0..6).map(|_| Port::reserve()).collect();
        Self::start_at(ports, Vec::new(), "syncLimit=4").await
    }

    /// Starts three that can be cut off from each other, and take a quarter of a minute to notice. They
    /// do not survive the loss of their leader: what connects them accepts connections to the dead.
    pub async fn start_to_be_cut() -> Self {
        let ports: Vec<Port> = (0..6).map(|_| Port::reserve()).collect();
        let mut links = Vec::new();
        for link in (0..9).map(|at| (at / 3, at % 3)).filter(|(from, to)| from != to) {
            links.push((link, Proxy::to(ports[2 * link.1].address).await));
        }
        Self::start_at(ports, links, "syncLimit=30").await
    }

    async fn start_at(ports: Vec<Port>, links: Vec<((usize, usize), Proxy)>, limit: &str) -> Self {
        let others = |from: usize| -> String {
            let server = |at: usize| {
                let link = links.iter().find(|(link, _)| *link == (from, at));
                let quorum = link.map_or(ports[2 * at].address, |(_, proxy)| proxy.address());
                let election = ports[2 * at + 1].address.port();
                format!("server.{}=127.0.0.1:{}:{election}\n", at + 1, quorum.port())
            };
            (0..3).map(server).collect()
        };
        let starting: Vec<_> = (0..3)
            .map(|at| {
                let config = format!("{CONFIG}{}", others(at)).replace("syncLimit=4", limit);
                // `myid` is wanted among the data.
                let config = config.replace("{dir}/data", "{dir}");
                recipe(&config, SOON).file("myid", &(at + 1).to_string()).start()
            })
            .collect();
        let servers = join_all(starting).await;
        Self { servers, links, _ports: ports }
    }

    /// Nothing goes between this server and the others any more, and nothing says so. Its clients
    /// still reach it.
    pub fn cut_off(&self, at: usize) {
        let concerned = self.links.iter().filter(|((from, to), _)| *from == at || *to == at);
        concerned.for_each(|(_, proxy)| proxy.freeze());
    }

    /// Everything goes again.
    pub fn mend(&self) {
        self.links.iter().for_each(|(_, proxy)| proxy.pass());
    }

    /// Where all of them are, as a URL wants it.
    pub fn addresses(&self) -> String {
        let addresses: Vec<_> =
            self.servers.iter().map(|server| server.address().to_string()).collect();
        addresses.join(",")
    }

    /// Which one leads.
    ///
    /// # Panics
    ///
    /// When nobody does.
    pub async fn leader(&self) -> usize {
        for (at, server) in self.servers.iter().enumerate() {
            if mode(server.address()).await.as_deref() == Some("leader") {
                return at;
            }
        }
        panic!("nobody leads");
    }

    /// Waits until all of them have the same data. For that nobody may write.
    pub async fn in_step(&self) {
        eventually("the same data everywhere", async || {
            let said = join_all(self.servers.iter().map(|server| zxid(server.address()))).await;
            said[0].is_some() && said.iter().all(|zxid| *zxid == said[0])
        })
        .await;
    }

    /// Ends all of them and starts them again with their data.
    pub async fn restart(&mut self) {
        for server in &mut self.servers {
            server.kill();
        }
        join_all(self.servers.iter_mut().map(Server::start_again)).await;
    }
}
