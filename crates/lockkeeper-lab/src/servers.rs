//! Servers from this machine: in a directory of their own, on a free port of the loopback, ended when
//! dropped. Nothing that is there already is used or changed.

use std::env;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::clock::Instant;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::random::Random;

/// How long a server may take until it is ready.
const START: Duration = Duration::from_secs(30);
/// So many ports are tried: another program may be quicker.
const TRIES: u32 = 5;
/// Where Debian's package puts it, and what it forgets to name.
const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";
const CLASSES: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar";
/// Gives a process a clock that can be set.
const FAKETIME: &str = "faketime";

/// What an experiment needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `redis-server`.
    Redis,
    /// `etcd`.
    Etcd,
    /// ZooKeeper, and Java.
    ZooKeeper,
    /// A clock that can be set for one process.
    Faketime,
}

impl Program {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "ZooKeeper",
            Self::Faketime => FAKETIME,
        }
    }

    /// Says what to install if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] then.
    pub fn check(self) -> Result<()> {
        let (there, packages) = match self {
            Self::Redis => (in_path("redis-server"), "redis-server"),
            Self::Etcd => (in_path("etcd"), "etcd-server"),
            Self::ZooKeeper => {
                (in_path("java") && Path::new(ZOOKEEPER).exists(), "default-jre-headless zookeeper")
            }
            Self::Faketime => (in_path(FAKETIME), "faketime"),
        };
        if there { Ok(()) } else { Err(Error::Missing { program: self.name(), packages }) }
    }
}

fn in_path(command: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

/// A running server; ended when dropped.
#[derive(Debug)]
pub struct Server {
    program: Program,
    command: Vec<String>,
    address: SocketAddr,
    child: Child,
    dir: TempDir,
}

impl Server {
    /// A Redis server that keeps nothing on disk, with these arguments besides.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    pub async fn redis(arguments: &[&str]) -> Result<Self> {
        Self::start(Program::Redis, words(&[&REDIS, arguments]), &[]).await
    }

    /// The same with a clock of its own, which [`set_clock`](Self::set_clock) sets.
    ///
    /// # Errors
    ///
    /// As [`redis`](Self::redis).
    pub async fn redis_with_a_clock() -> Result<Self> {
        Program::Faketime.check()?;
        // The allocator that Debian's redis-server is linked with asks for the time before libfaketime is
        // ready to answer: with that of libc both start.
        let clock = [
            "env",
            "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1 libc.so.6",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "FAKETIME_TIMESTAMP_FILE={dir}/clock",
            "FAKETIME_NO_CACHE=1",
        ];
        Self::start(Program::Redis, words(&[&clock, &REDIS]), &[("clock", "+0")]).await
    }

    /// One etcd server.
    ///
    /// # Errors
    ///
    /// As [`redis`](Self::redis).
    pub async fn etcd() -> Result<Self> {
        Self::start(Program::Etcd, words(&[&ETCD]), &[]).await
    }

    /// One ZooKeeper server, with sessions from one second on.
    ///
    /// # Errors
    ///
    /// As [`redis`](Self::redis).
    pub async fn zookeeper() -> Result<Self> {
        Self::start(Program::ZooKeeper, words(&[&JAVA]), &[("zoo.cfg", ZOO_CFG)]).await
    }

    async fn start(program: Program, command: Vec<String>, files: &[(&str, &str)]) -> Result<Self> {
        program.check()?;
        let mut random = Random::from_seed(Instant::now().as_nanos());
        let mut last = String::new();
        for _ in 0..TRIES {
            let dir = TempDir::with_prefix("lockkeeper-lab-")?;
            let address = free_port(&mut random)?;
            for (name, text) in files {
                std::fs::write(dir.path().join(name), fill(text, address, dir.path()))?;
            }
            let child = spawn(&command, address, dir.path())?;
            let mut server = Self { program, command: command.clone(), address, child, dir };
            match server.ready().await {
                Ok(()) => return Ok(server),
                // Its port was another's.
                Err(error) if server.child.try_wait()?.is_some() => last = error.to_string(),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Other(last))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For [`lockkeeper::Locks::connect`].
    pub fn url(&self) -> String {
        let scheme = match self.program {
            Program::Etcd => "etcd",
            Program::ZooKeeper => "zookeeper",
            Program::Redis | Program::Faketime => "redis",
        };
        format!("{scheme}://{}", self.address)
    }

    /// Its directory: data and log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends it with SIGKILL, as a crash would.
    ///
    /// # Errors
    ///
    /// When it cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again after [`kill`](Self::kill), on the same port. Redis has forgotten everything.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.command, self.address, self.dir.path())?;
        self.ready().await
    }

    /// Stops it with SIGSTOP: it keeps its connections and answers nothing.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn pause(&self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).map_err(std::io::Error::from)?;
        // The signal alone returns while its threads may still run.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), stopped).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn resume(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Sets the clock of one that has its own so far ahead.
    ///
    /// # Errors
    ///
    /// When its directory cannot be written to.
    pub fn set_clock(&self, ahead: Duration) -> Result<()> {
        let [next, clock] = ["clock.next", "clock"].map(|name| self.dir().join(name));
        std::fs::write(&next, format!("+{}", ahead.as_secs()))?;
        // In one step: it may read at any moment.
        std::fs::rename(next, clock)?;
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        let since = Instant::now();
        loop {
            let answers = answers(self.program, self.address, self.child.id()).await;
            // Its port may have become another's meanwhile: then that answers, and ours has ended.
            let ended = self.child.try_wait()?;
            if answers && ended.is_none() {
                return Ok(());
            }
            if ended.is_some() || Instant::now().since(since) > START {
                let log = std::fs::read_to_string(self.dir().join("log")).unwrap_or_default();
                let why = log.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(Error::Server { program: self.program.name(), why });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const REDIS: [&str; 9] =
    ["redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", "{port}"];

const ETCD: [&str; 17] = [
    "etcd",
    "--data-dir",
    "{dir}/data",
    "--listen-client-urls",
    "http://127.0.0.1:{port}",
    "--advertise-client-urls",
    "http://127.0.0.1:{port}",
    "--listen-peer-urls",
    "http://127.0.0.1:0",
    "--initial-advertise-peer-urls",
    "http://127.0.0.1:1",
    "--initial-cluster",
    "default=http://127.0.0.1:1",
    "--logger",
    "zap",
    "--log-level",
    "warn",
];

const JAVA: [&str; 9] = [
    "java",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.forceSync=no",
    "-cp",
    CLASSES,
    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
];

/// Small ticks, so that sessions may be short; nothing is forced to disk.
const ZOO_CFG: &str = "tickTime=500
dataDir={dir}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=*
maxClientCnxns=0
";

fn words(parts: &[&[&str]]) -> Vec<String> {
    let mut words: Vec<String> = parts.concat().into_iter().map(str::to_owned).collect();
    if words[0] == "java" {
        words.push("{dir}/zoo.cfg".into());
    }
    words
}

fn fill(text: &str, address: SocketAddr, dir: &Path) -> String {
    text.replace("{port}", &address.port().to_string()).replace("{dir}", &dir.display().to_string())
}

fn spawn(command: &[String], address: SocketAddr, dir: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    // Else it outlives a lab that is killed.
    let with_us = ["setpriv", "--pdeathsig", "KILL"].map(String::from);
    let with_us = with_us.into_iter().filter(|_| in_path("setpriv"));
    let mut words = with_us.chain(command.iter().map(|word| fill(word, address, dir)));
    let child = Command::new(words.next().unwrap_or_default())
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}

/// Below the ports that the kernel gives to outgoing connections: one of those could take it before the
/// server does.
fn free_port(random: &mut Random) -> Result<SocketAddr> {
    for _ in 0..1000 {
        let number = 15_000 + u16::try_from(random.below(17_000)).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(Error::Other("there is no free port on the loopback".into()))
}

/// Whether it serves, and as far as it can be told whether it is ours.
async fn answers(program: Program, address: SocketAddr, pid: u32) -> bool {
    let (ask, answer) = match program {
        Program::Redis | Program::Faketime => ("INFO server\r\n", format!("process_id:{pid}\r\n")),
        Program::Etcd => ("GET /health HTTP/1.0\r\n\r\n", "\"health\":\"true\"".into()),
        Program::ZooKeeper => ("srvr", "Mode: ".into()),
    };
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(ask.as_bytes()).await?;
        let mut said = Vec::new();
        let mut part = [0; 1024];
        // Redis does not close the connection.
        while !String::from_utf8_lossy(&said).contains(&answer) {
            match stream.read(&mut part).await? {
                0 => return Ok(false),
                count => said.extend_from_slice(&part[..count]),
            }
        }
        std::io::Result::Ok(true)
    };
    matches!(tokio::time::timeout(Duration::from_secs(2), asking).await, Ok(Ok(true)))
}
