//! Real servers as child processes: a free port, a directory of their own, a log that is kept when
//! the test fails, and an end with the test.
//!
//! A server that is not installed fails the test and says what to install: a test that does not run
//! must not look like one that passes.

use std::fs::File;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::random::Random;
use crate::signal;
use crate::split::Split;

/// How long a server may take until it is ready.
const START: Duration = Duration::from_secs(30);

type Probe = Arc<dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

type Prepare = Arc<dyn Fn(&Path) + Send + Sync>;

/// How to start a server.
#[derive(Clone)]
pub struct Recipe {
    program: PathBuf,
    package: String,
    args: Vec<String>,
    files: Vec<(String, String)>,
    prepare: Prepare,
    /// By SIGQUIT: it has processes of its own, which a SIGKILL would leave behind.
    quits: bool,
    probe: Probe,
}

impl std::fmt::Debug for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recipe").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Recipe {
    /// A program, and the package to install when it is missing.
    pub fn new(program: impl Into<PathBuf>, package: &str) -> Self {
        let probe: Probe = Arc::new(|address| {
            Box::pin(async move { tokio::net::TcpStream::connect(address).await.is_ok() })
        });
        Self {
            program: program.into(),
            package: package.into(),
            args: Vec::new(),
            files: Vec::new(),
            prepare: Arc::new(|_| {}),
            quits: false,
            probe,
        }
    }

    /// What to do in its directory before it is started for the first time.
    #[must_use]
    pub(crate) fn prepared_by(mut self, prepare: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        self.prepare = Arc::new(prepare);
        self
    }

    /// Ended by SIGQUIT, which it takes for a crash, and which ends its own processes as well.
    #[must_use]
    pub(crate) fn quits(mut self) -> Self {
        self.quits = true;
        self
    }

    /// Its arguments; `{port}` and `{dir}` stand for the port and the directory.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The bare program.
    #[must_use]
    pub(crate) fn without_arguments(mut self) -> Self {
        self.args.clear();
        self
    }

    /// A file in its directory; `{port}` and `{dir}` stand for the port and the directory.
    #[must_use]
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.into(), text.into()));
        self
    }

    /// Ready when this says so, instead of when it accepts a connection.
    #[must_use]
    pub fn ready_when<F>(mut self, probe: impl Fn(SocketAddr) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.probe = Arc::new(move |address| Box::pin(probe(address)));
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    ///
    /// When the program is missing, ends at once, or is not ready in time.
    pub async fn start(self) -> Server {
        let dir = TempDir::with_prefix("testkit-").unwrap();
        let port = Port::reserve();
        let log = dir.path().join("log");
        (self.prepare)(dir.path());
        let child = self.spawn(port.address, dir.path(), &log);
        let mut server = Server { recipe: self, dir: Some(dir), log, port, child };
        server.ready().await;
        server
    }

    fn spawn(&self, address: SocketAddr, dir: &Path, log: &Path) -> Child {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let fill = |arg: &str| {
            arg.replace("{port}", &address.port().to_string())
                .replace("{dir}", &dir.display().to_string())
        };
        for (name, text) in &self.files {
            std::fs::write(dir.join(name), fill(text)).unwrap();
        }
        Command::new(&self.program)
            .args(self.args.iter().map(|arg| fill(arg)))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be started ({error}): install it with: apt-get install {}",
                    self.program.display(),
                    self.package
                )
            })
    }
}

/// A Redis server that keeps nothing on disk, with these arguments besides.
pub async fn redis(arguments: &[&str]) -> Server {
    redis_recipe().args(["--port", "{port}"]).args(arguments.to_vec()).start().await
}

/// The same with a clock of its own, which [`Server::set_clock`] sets.
pub async fn redis_with_a_clock() -> Server {
    let Recipe { program, args, .. } = redis_recipe();
    // The allocator that Debian's redis-server is linked with asks for the time before libfaketime is
    // ready to answer: with that of libc both start.
    let preload = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1 libc.so.6";
    let clock = ["FAKETIME_TIMESTAMP_FILE={dir}/clock", "FAKETIME_NO_CACHE=1"];
    Recipe::new("env", "faketime")
        .args([preload, "FAKETIME_DONT_FAKE_MONOTONIC=1"])
        .args(clock)
        .args([program.display().to_string()])
        .args(args)
        .args(["--port", "{port}"])
        .file("clock", "+0")
        .start()
        .await
}

/// The same with TLS on its only port, and a certificate that is good for `host`. With `clients`, it
/// wants a certificate of the same authority from them.
pub async fn redis_with_tls(authority: &Authority, host: &str, clients: bool) -> Server {
    let (cert, key) = authority.sign(host);
    let files = [("cert", &cert), ("key", &key), ("ca-cert", &authority.ca())]
        .map(|(file, path)| [format!("--tls-{file}-file"), path.display().to_string()]);
    let clients = if clients { "yes" } else { "no" };
    let recipe = redis_recipe().args(["--port", "0", "--tls-port", "{port}"]);
    recipe.args(files.concat()).args(["--tls-auth-clients", clients]).start().await
}

/// `$LOCKKEEPER_TEST_REDIS` names another program: an older Redis, or Valkey.
pub(crate) fn redis_recipe() -> Recipe {
    let program = std::env::var_os("LOCKKEEPER_TEST_REDIS").unwrap_or("redis-server".into());
    let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    Recipe::new(program, "redis-server").args(usual)
}

/// What every etcd server is started with; `{port}` and `{dir}` as in [`Recipe::args`].
const ETCD: [&str; 10] = [
    "--data-dir",
    "{dir}/data",
    "--listen-client-urls",
    "http://127.0.0.1:{port}",
    "--advertise-client-urls",
    "http://127.0.0.1:{port}",
    "--logger",
    "zap",
    "--log-level",
    "warn",
];

const ETCD_ALONE: [&str; 6] = [
    "--listen-peer-urls",
    "http://127.0.0.1:0",
    "--initial-advertise-peer-urls",
    "http://127.0.0.1:1",
    "--initial-cluster",
    "default=http://127.0.0.1:1",
];

/// `$LOCKKEEPER_TEST_ETCD` names another program: a newer etcd.
fn etcd_recipe() -> Recipe {
    let program = std::env::var_os("LOCKKEEPER_TEST_ETCD").unwrap_or("etcd".into());
    Recipe::new(program, "etcd-server etcd-client").args(ETCD).ready_when(is_healthy)
}

/// One etcd server, with these arguments besides.
pub async fn etcd(arguments: &[&str]) -> Server {
    etcd_recipe().args(ETCD_ALONE).args(arguments.to_vec()).start().await
}

/// One etcd server with TLS on its only port, and a certificate that is good for `host`. With
/// `clients`, it wants a certificate of the same authority from them.
pub async fn etcd_with_tls(authority: &Authority, host: &str, clients: bool) -> Server {
    // Where it says how it is, to those who speak no TLS.
    let health = Port::reserve();
    let (cert, key) = authority.sign(host);
    let mut arguments = [
        ("--listen-client-urls", "https://127.0.0.1:{port}".to_owned()),
        ("--advertise-client-urls", "https://127.0.0.1:{port}".to_owned()),
        ("--listen-metrics-urls", format!("http://{}", health.address)),
        ("--cert-file", cert.display().to_string()),
        ("--key-file", key.display().to_string()),
    ]
    .map(|(name, value)| [name.to_owned(), value])
    .concat();
    if clients {
        let ca = authority.ca().display().to_string();
        arguments.extend(["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), ca]);
    }
    let recipe = etcd_recipe().args(ETCD_ALONE).args(arguments);
    recipe.ready_when(move |_| is_healthy(health.address)).start().await
}

/// An etcd cluster of so many members on this machine. What the members say to each other can be cut.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members, to be killed, stopped and restarted.
    pub members: Vec<Server>,
    /// What they call each other.
    names: Vec<String>,
    split: Split,
    _peers: Vec<Port>,
}

impl EtcdCluster {
    /// Starts it and waits until it has a leader.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start(size: usize) -> Self {
        Self::start_with(size, |_, recipe| recipe).await
    }

    /// The same, and the clock of the first member is ten days ahead of the others: the one that never
    /// jumps, which is the one that etcd's leases go by.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`], and when the kernel has no namespaces for clocks.
    pub async fn start_with_a_clock_ahead(size: usize) -> Self {
        let ahead = |at, recipe: Recipe| if at == 0 { ahead(recipe) } else { recipe };
        Self::start_with(size, ahead).await
    }

    async fn start_with(size: usize, change: impl Fn(usize, Recipe) -> Recipe) -> Self {
        let peers: Vec<Port> = (0..size).map(|_| Port::reserve()).collect();
        let listening: Vec<SocketAddr> = peers.iter().map(|peer| peer.address).collect();
        let split = Split::before(&listening).await;
        let urls: Vec<String> =
            split.addresses.iter().map(|address| format!("http://{address}")).collect();
        let all: Vec<String> =
            std::iter::zip(0.., &urls).map(|(at, url)| format!("m{at}={url}")).collect();
        let starting = std::iter::zip(0.., &urls).map(|(at, url)| {
            let arguments = [
                "--name".to_owned(),
                format!("m{at}"),
                "--listen-peer-urls".to_owned(),
                format!("http://{}", listening[at]),
                "--initial-advertise-peer-urls".to_owned(),
                url.clone(),
                "--initial-cluster".to_owned(),
                all.join(","),
            ];
            change(at, etcd_recipe().args(arguments)).start()
        });
        let members = futures_util::future::join_all(starting).await;
        let known = etcdctl(&members[0], &["member", "list"]);
        let names = urls.iter().map(|url| name_of(&known, url)).collect();
        Self { members, names, split, _peers: peers }
    }

    /// Nothing goes between this member and the others any more, and nothing says so. Its clients
    /// still reach it.
    pub fn cut_off(&self, at: usize) {
        self.split.cut_off(at, &self.names[at]);
    }

    /// Everything goes again.
    pub fn mend(&self) {
        self.split.mend();
    }

    /// The URL of the cluster, members in this order.
    pub fn url(&self) -> String {
        let members: Vec<String> =
            self.members.iter().map(|member| member.address().to_string()).collect();
        format!("etcd://{}", members.join(","))
    }

    /// The index of the member that leads, as the members themselves see it.
    ///
    /// # Panics
    ///
    /// When there is none for too long.
    pub async fn leader(&self) -> usize {
        let since = Instant::now();
        loop {
            for (at, member) in self.members.iter().enumerate() {
                let metrics = http_get(member.address(), "/metrics").await.unwrap_or_default();
                if metrics.lines().any(|line| line == "etcd_server_is_leader 1") {
                    return at;
                }
            }
            assert!(Instant::now().since(since) < START, "no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What an operator types at an etcd server, and what came of it.
///
/// # Panics
///
/// When there is no `etcdctl`.
pub fn try_etcdctl(server: &Server, words: &[&str]) -> Output {
    Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &server.address().to_string()])
        .args(words)
        .output()
        .unwrap()
}

/// The same, and it must succeed.
///
/// # Panics
///
/// When it does not.
pub fn etcdctl(server: &Server, words: &[&str]) -> String {
    let output = try_etcdctl(server, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A member's name among the others, from the list that each of them has.
fn name_of(members: &str, url: &str) -> String {
    let member = members.lines().find(|member| member.contains(url));
    let member = member.unwrap_or_else(|| panic!("{url} is not in {members:?}"));
    member.split(',').next().unwrap_or_default().to_owned()
}

fn ahead(recipe: Recipe) -> Recipe {
    let days = "864000";
    let program = recipe.program.display().to_string();
    let clock = ["--map-root-user", "--time", "--monotonic", days, "--boottime", days, &program];
    let args = clock.map(str::to_owned).into_iter().chain(recipe.args).collect();
    Recipe { program: "unshare".into(), package: "util-linux".into(), args, ..recipe }
}

async fn is_healthy(address: SocketAddr) -> bool {
    let health = http_get(address, "/health").await.unwrap_or_default();
    health.contains("\"health\":\"true\"")
}

/// What a server says about itself.
///
/// # Errors
///
/// When it does not answer.
pub async fn http_get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(2), asked).await?
}

/// A port for a server, reserved against all other tests of this machine for as long as it is kept.
///
/// Below the ports that the kernel gives to outgoing connections: one of those could take the port
/// before the server does, and a probe could even connect to itself.
#[derive(Debug)]
pub struct Port {
    /// Where the server is to listen.
    pub address: SocketAddr,
    _reserved: File,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let folder = Path::new("/tmp/lockkeeper-test-ports");
        std::fs::create_dir_all(folder).unwrap();
        let mut random = Random::seeded();
        for _ in 0..1000 {
            let number = 15_000 + u16::try_from(random.below(17_000)).unwrap();
            let file = folder.join(number.to_string());
            let Ok(file) = File::options().create(true).append(true).open(file) else { continue };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
            // Not by listening there: a child that is being started would inherit that for a moment,
            // and the server would look ready before it is.
            if file.try_lock().is_ok() && !accepts(address) {
                return Self { address, _reserved: file };
            }
        }
        panic!("no free port");
    }
}

/// A running server; ended when dropped.
#[derive(Debug)]
pub struct Server {
    recipe: Recipe,
    dir: Option<TempDir>,
    log: PathBuf,
    port: Port,
    child: Child,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address
    }

    /// Its directory: data and log.
    ///
    /// # Panics
    ///
    /// Never while the server lives.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("kept until dropped").path()
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    async fn ready(&mut self) {
        let since = Instant::now();
        while !(self.recipe.probe)(self.port.address).await {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{:?} ended at once: {status}\n{}", self.recipe, self.log());
            }
            let waited = Instant::now().since(since);
            assert!(waited < START, "{:?} is not ready\n{}", self.recipe, self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends it with SIGKILL, as a crash would; its data stays.
    ///
    /// # Panics
    ///
    /// When it cannot be ended.
    pub fn kill(&mut self) {
        self.end();
        self.child.wait().unwrap();
    }

    fn end(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        if self.recipe.quits {
            // Stopped, it would not hear it.
            signal::go_on(&self.child);
            signal::quit(&self.child);
        } else {
            self.child.kill().unwrap();
        }
    }

    /// Sets the clock of one that has its own so far ahead.
    ///
    /// # Panics
    ///
    /// When its directory cannot be written to.
    pub fn set_clock(&self, ahead: Duration) {
        let [next, clock] = ["clock.next", "clock"].map(|name| self.dir().join(name));
        std::fs::write(&next, format!("+{}", ahead.as_secs())).unwrap();
        // In one step: it may read at any moment.
        std::fs::rename(next, clock).unwrap();
    }

    /// Stops it with SIGSTOP: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        signal::stop(&self.child);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        signal::go_on(&self.child);
    }

    /// Ends it if it runs and starts it again, on the same port and with the same data.
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Starts it again after [`kill`](Self::kill).
    ///
    /// # Panics
    ///
    /// As [`Recipe::start`].
    pub async fn start_again(&mut self) {
        self.child = self.recipe.spawn(self.port.address, self.dir(), &self.log);
        self.ready().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            let _kept = dir.keep();
            eprintln!("the log of {:?} is kept in {}", self.recipe.program, self.log.display());
        }
    }
}

/// Whether anybody accepts connections there.
pub fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
