//! Redis with more than one node, on this machine: servers under Sentinel, and a cluster.
//!
//! A replica is cut off without telling it to be a master: it is stopped, and its master is told to
//! close the connection. What the master then takes in stays with it alone, also when the replica goes
//! on after the master's death.

pub mod tls;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::resp::{Raw, Reply};
use crate::server::{Port, Recipe, Server, redis_recipe};
use crate::wait::within;

/// How long a whole topology may take until it is ready, or has failed over.
pub const SETTLE: Duration = Duration::from_secs(60);

/// What the master is called among the sentinels.
pub const MASTER: &str = "mymaster";

/// The text of an answer, lists one word per line.
fn text(reply: &Reply) -> String {
    match reply {
        Reply::Null => String::new(),
        Reply::Number(number) => number.to_string(),
        Reply::Text(text) => text.clone(),
        Reply::Error(error) => format!("-{error}"),
        Reply::Many(many) => many.iter().map(text).collect::<Vec<_>>().join("\n"),
    }
}

/// What one server answers to one command.
///
/// # Panics
///
/// When it does not answer.
pub async fn ask(address: SocketAddr, command: &str) -> String {
    text(&Raw::connect(address).await.ask(command).await)
}

/// The same, by whoever knows the password if there is one.
async fn ask_with(password: Option<&str>, address: SocketAddr, command: &str) -> String {
    let raw = Raw::connect(address).await;
    if let Some(password) = password {
        raw.ask(&format!("AUTH {password}")).await;
    }
    text(&raw.ask(command).await)
}

/// The same of a server that may be gone.
async fn ask_if_there(address: SocketAddr, command: &str) -> String {
    match tokio::net::TcpStream::connect(address).await {
        Ok(_) => ask(address, command).await,
        Err(_) => String::new(),
    }
}

/// The same, and it must succeed.
async fn tell(address: SocketAddr, command: &str) {
    let answer = ask(address, command).await;
    assert!(!answer.starts_with('-'), "{command}: {answer}");
}

/// Stops the replicas of a master and lets it close their connections: from now on nothing reaches
/// them. [`Server::resume`] mends it, or shows what they have missed.
async fn cut_off<'a>(master: &Server, replicas: impl Iterator<Item = &'a Server>) {
    replicas.for_each(Server::pause);
    ask(master.address(), "CLIENT KILL TYPE replica").await;
    let gone = async || {
        ask(master.address(), "INFO replication").await.lines().any(|l| l == "connected_slaves:0")
    };
    within(SETTLE, "the replicas are cut off", gone).await;
}

fn replica_recipe(arguments: &[String]) -> Recipe {
    let usual = ["--port", "{port}", "--repl-diskless-sync-delay", "0", "--repl-timeout", "60"];
    redis_recipe().args(usual).args(arguments.to_vec())
}

/// Whether a replica has everything that its master had.
async fn is_linked(replica: &Server, password: Option<&str>) -> bool {
    let replication = ask_with(password, replica.address(), "INFO replication").await;
    replication.lines().any(|line| line == "master_link_status:up")
}

/// Waits until so many replicas have told their master what they have: earlier it does not count them.
async fn has_replicas(master: &Server, replicas: usize, password: Option<&str>) {
    let known = async || {
        let replication = ask_with(password, master.address(), "INFO replication").await;
        replication.lines().filter(|line| line.contains("state=online")).count() == replicas
    };
    within(SETTLE, "the master has its replicas", known).await;
}

/// A master and replicas, without anybody who watches over them.
#[derive(Debug)]
pub struct Replicated {
    /// The master first.
    pub servers: Vec<Server>,
}

impl Replicated {
    /// Starts a master with so many replicas, and waits until they are in step.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start(replicas: usize, arguments: &[&str]) -> Self {
        let password = arguments.iter().position(|argument| *argument == "--requirepass");
        let password = password.map(|at| arguments[at + 1]);
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let master = replica_recipe(&arguments).start().await;
        let port = master.address().port().to_string();
        let follow = ["--replicaof".to_owned(), "127.0.0.1".to_owned(), port];
        let arguments = [arguments, follow.to_vec()].concat();
        let starting = (0..replicas).map(|_| replica_recipe(&arguments).start());
        let followers = futures_util::future::join_all(starting).await;
        for replica in &followers {
            within(SETTLE, "a replica follows", || is_linked(replica, password)).await;
        }
        has_replicas(&master, replicas, password).await;
        Self { servers: std::iter::once(master).chain(followers).collect() }
    }

    /// The master as it was at the start.
    pub fn master(&self) -> &Server {
        &self.servers[0]
    }

    /// Nothing reaches the replicas any more.
    pub async fn cut_off_replicas(&self) {
        cut_off(self.master(), self.servers[1..].iter()).await;
    }

    /// The replicas go on, and find their master again if it lives.
    pub fn mend(&self) {
        self.servers[1..].iter().for_each(Server::resume);
    }
}

/// One master, two replicas, three sentinels.
#[derive(Debug)]
pub struct Sentinels {
    /// The servers; the first was the master at the start.
    pub nodes: Replicated,
    /// Those who watch over them.
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all of them, and waits until all know each other. A master that does not answer for
    /// `down_after` is replaced.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start(down_after: Duration) -> Self {
        Self::start_with(down_after, &[], "").await
    }

    /// The same with these arguments for the servers, and these lines in the files of the sentinels.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start_with(down_after: Duration, arguments: &[&str], lines: &str) -> Self {
        let nodes = Replicated::start(2, arguments).await;
        let port = nodes.master().address().port();
        let config = format!(
            "port {{port}}\nbind 127.0.0.1\nsentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER} {}\n\
             sentinel failover-timeout {MASTER} 10000\nsentinel parallel-syncs {MASTER} 2\n{lines}\n",
            down_after.as_millis()
        );
        let program = redis_recipe().without_arguments();
        let sentinel = || {
            program
                .clone()
                .file("sentinel.conf", &config)
                .args(["{dir}/sentinel.conf", "--sentinel"])
        };
        let starting = (0..3).map(|_| sentinel().start());
        let sentinels = futures_util::future::join_all(starting).await;
        let started = Self { nodes, sentinels };
        let password = lines.lines().find_map(|line| line.strip_prefix("requirepass "));
        for sentinel in &started.sentinels {
            let known = async || {
                let question = format!("SENTINEL MASTER {MASTER}");
                let known = ask_with(password, sentinel.address(), &question).await;
                known.contains("num-slaves\n2\n") && known.contains("num-other-sentinels\n2\n")
            };
            within(SETTLE, "the sentinels know each other", known).await;
        }
        started
    }

    /// Sentinels that all tests that run at the same time have in common, and that are in no hurry to
    /// replace anybody; ended with the last of the tests.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Sentinels>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(sentinels) = shared.upgrade() {
            return sentinels;
        }
        let sentinels = Arc::new(Self::start(SETTLE).await);
        *shared = Arc::downgrade(&sentinels);
        sentinels
    }

    /// `redis+sentinel://…`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// The index of the server that the sentinels call the master, once they agree on another than
    /// `not` and it says so itself.
    ///
    /// # Panics
    ///
    /// When they do not agree in time.
    pub async fn master_other_than(&self, not: usize) -> usize {
        let found = async || self.agreed_other_than(not).await;
        within(SETTLE, "another master", async || found().await.is_some()).await;
        found().await.expect("just seen")
    }

    async fn agreed_other_than(&self, not: usize) -> Option<usize> {
        let mut agreed = None;
        for sentinel in &self.sentinels {
            let ask_for = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}");
            let answer = ask(sentinel.address(), &ask_for).await;
            let port: u16 = answer.lines().nth(1)?.parse().ok()?;
            let servers = &self.nodes.servers;
            let at = servers.iter().position(|server| server.address().port() == port)?;
            if *agreed.get_or_insert(at) != at {
                return None;
            }
        }
        // The old one may be stopped, and is not asked.
        agreed = agreed.filter(|at| *at != not);
        let role = ask_if_there(self.nodes.servers[agreed?].address(), "ROLE").await;
        agreed.filter(|_| role.starts_with("master"))
    }
}

/// Three masters with a replica each.
#[derive(Debug)]
pub struct Cluster {
    /// The masters of the start, then their replicas in the same order.
    pub servers: Vec<Server>,
    ids: Vec<String>,
    _buses: Vec<Port>,
}

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

impl Cluster {
    /// Starts it and waits until all nodes agree. A master that does not answer for `node_timeout` is
    /// replaced.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start(node_timeout: Duration) -> Self {
        Self::start_with(node_timeout, |_| (Vec::new(), 0)).await
    }

    /// The same with these arguments for each, and the port that it goes by among the others, if that
    /// is not its own.
    async fn start_with(
        node_timeout: Duration,
        more: impl Fn(usize) -> (Vec<String>, u16),
    ) -> Self {
        let buses: Vec<Port> = (0..6).map(|_| Port::reserve()).collect();
        let starting = buses.iter().enumerate().map(|(at, bus)| {
            let settings = [
                ("--cluster-enabled", "yes".to_owned()),
                ("--cluster-port", bus.address.port().to_string()),
                ("--cluster-node-timeout", node_timeout.as_millis().to_string()),
                ("--cluster-replica-validity-factor", "0".to_owned()),
            ];
            let settings = settings.map(|(name, value)| [name.to_owned(), value]).concat();
            replica_recipe(&[settings, more(at).0].concat()).start()
        });
        let servers = futures_util::future::join_all(starting).await;
        let mut ids = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            // Different from the start, or the first to meet would quarrel about it.
            tell(server.address(), &format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1)).await;
            ids.push(ask(server.address(), "CLUSTER MYID").await);
        }
        let cluster = Self { servers, ids, _buses: buses };
        for (at, server) in cluster.servers.iter().enumerate().take(3) {
            let first = SLOTS / 3 * u16::try_from(at).unwrap();
            let last = if at == 2 { SLOTS - 1 } else { first + SLOTS / 3 - 1 };
            tell(server.address(), &format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await;
        }
        for (at, (server, bus)) in cluster.servers.iter().zip(&cluster._buses).enumerate().skip(1) {
            let port = match more(at).1 {
                0 => server.address().port(),
                port => port,
            };
            let meet = format!("CLUSTER MEET 127.0.0.1 {port} {}", bus.address.port());
            tell(cluster.servers[0].address(), &meet).await;
        }
        for server in &cluster.servers {
            let all = async || {
                let nodes = ask(server.address(), "CLUSTER NODES").await;
                cluster.ids.iter().all(|id| nodes.contains(id.as_str()))
                    && !nodes.contains("handshake")
            };
            within(SETTLE, "the nodes know each other", all).await;
        }
        for at in 0..3 {
            let replicate = format!("CLUSTER REPLICATE {}", cluster.ids[at]);
            tell(cluster.servers[at + 3].address(), &replicate).await;
        }
        cluster.settled().await;
        cluster
    }

    /// A cluster that all tests that run at the same time have in common, and that is in no hurry to
    /// replace anybody; ended with the last of the tests.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::start(SETTLE).await);
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// All nodes say that all is well, and know who follows whom.
    async fn settled(&self) {
        for server in &self.servers {
            let well = async || {
                let info = ask(server.address(), "CLUSTER INFO").await;
                let nodes = ask(server.address(), "CLUSTER NODES").await;
                let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
                info.contains("cluster_state:ok") && replicas == 3
            };
            within(SETTLE, "the cluster is well", well).await;
        }
        for (master, replica) in self.servers.iter().zip(&self.servers[3..]) {
            within(SETTLE, "a replica follows", || is_linked(replica, None)).await;
            has_replicas(master, 1, None).await;
        }
    }

    /// `redis+cluster://…`, with the first two nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{},{}", self.servers[0].address(), self.servers[1].address())
    }

    /// The slot of a key.
    ///
    /// # Panics
    ///
    /// When the server does not say.
    pub async fn slot(&self, key: &str) -> u16 {
        let living = self.servers.iter().find(|server| crate::server::accepts(server.address()));
        let answer = ask(living.unwrap().address(), &format!("CLUSTER KEYSLOT {key}")).await;
        answer.parse().unwrap()
    }

    /// Who has a slot, as this server sees it.
    async fn owner_seen_by(&self, server: &Server, slot: u16) -> Option<usize> {
        let nodes = ask_if_there(server.address(), "CLUSTER NODES").await;
        let line = nodes.lines().find(|line| {
            let has = |range: &str| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let numbers = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
                numbers.is_some_and(|(first, last)| (first..=last).contains(&slot))
            };
            line.contains("master") && !line.contains("fail") && line.split(' ').skip(8).any(has)
        })?;
        self.ids.iter().position(|id| line.starts_with(id.as_str()))
    }

    /// The index of the master that has a slot, once it is another than `not` and says so itself. That one is not asked: it may hang.
    ///
    /// # Panics
    ///
    /// When there is none in time.
    pub async fn owner_other_than(&self, slot: u16, not: Option<usize>) -> usize {
        let found = async || {
            for (at, server) in self.servers.iter().enumerate() {
                if not != Some(at) && self.owner_seen_by(server, slot).await == Some(at) {
                    return Some(at);
                }
            }
            None
        };
        within(SETTLE, "a slot has a master", async || found().await.is_some()).await;
        found().await.expect("just seen")
    }

    /// Cuts the replica of a master of the start off.
    pub async fn cut_off_replica_of(&self, master: usize) {
        cut_off(&self.servers[master], std::iter::once(&self.servers[master + 3])).await;
    }

    /// The first half of moving a slot: keys that are not at the old master are asked for at the new.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let [importing, migrating] = [("IMPORTING", from), ("MIGRATING", to)]
            .map(|(what, at)| format!("CLUSTER SETSLOT {slot} {what} {}", self.ids[at]));
        tell(target.address(), &importing).await;
        tell(source.address(), &migrating).await;
    }

    /// The second half: its keys go over, then the slot.
    pub async fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.servers[from], &self.servers[to]);
        loop {
            let keys = ask(source.address(), &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await;
            if keys.is_empty() {
                break;
            }
            let keys: Vec<&str> = keys.lines().collect();
            let port = target.address().port();
            let go = format!("MIGRATE 127.0.0.1 {port}  0 5000 KEYS {}", keys.join(" "));
            tell(source.address(), &go).await;
        }
        // Two who take slots at the same time may claim the same epoch, and one of them loses a slot by
        // that: then it is told again.
        for _ in 0..10 {
            for at in [to, from].into_iter().chain((0..3).filter(|at| ![to, from].contains(at))) {
                let node = format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[to]);
                tell(self.servers[at].address(), &node).await;
            }
            for _ in 0..50 {
                if self.all_see(slot, to).await {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ask(target.address(), "CLUSTER BUMPEPOCH").await;
        }
        panic!("slot {slot} does not move");
    }

    async fn all_see(&self, slot: u16, owner: usize) -> bool {
        for server in &self.servers {
            if self.owner_seen_by(server, slot).await != Some(owner) {
                return false;
            }
        }
        true
    }

    /// Moves a slot with its keys, while everybody works.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        self.finish_move(slot, from, to).await;
    }
}
