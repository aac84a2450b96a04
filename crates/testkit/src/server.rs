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
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::random::Random;
use crate::signal;

/// How long a server may take until it is ready.
const START: Duration = Duration::from_secs(30);

type Probe = Arc<dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// How to start a server.
#[derive(Clone)]
pub struct Recipe {
    program: PathBuf,
    package: String,
    args: Vec<String>,
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
        Self { program: program.into(), package: package.into(), args: Vec::new(), probe }
    }

    /// Its arguments; `{port}` and `{dir}` stand for the port and the directory.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
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
        let child = self.spawn(port.address, dir.path(), &log);
        let mut server = Server { recipe: self, dir: Some(dir), log, port, child };
        server.ready().await;
        server
    }

    fn spawn(&self, address: SocketAddr, dir: &Path, log: &Path) -> Child {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let fill = |arg: &String| {
            arg.replace("{port}", &address.port().to_string())
                .replace("{dir}", &dir.display().to_string())
        };
        Command::new(&self.program)
            .args(self.args.iter().map(fill))
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
fn redis_recipe() -> Recipe {
    let program = std::env::var_os("LOCKKEEPER_TEST_REDIS").unwrap_or("redis-server".into());
    let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    Recipe::new(program, "redis-server").args(usual)
}

/// A port for a server, reserved against all other tests of this machine for as long as it is kept.
///
/// Below the ports that the kernel gives to outgoing connections: one of those could take the port
/// before the server does, and a probe could even connect to itself.
#[derive(Debug)]
struct Port {
    address: SocketAddr,
    _reserved: File,
}

impl Port {
    fn reserve() -> Self {
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
        self.child.kill().unwrap();
        self.child.wait().unwrap();
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
        self.child = self.recipe.spawn(self.port.address, self.dir(), &self.log);
        self.ready().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
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
