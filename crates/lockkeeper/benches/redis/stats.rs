//! What the server has done.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::harness::figure::Figure;
use crate::harness::server::{Counts, Crowd, Note, Sample, Server};

const OWN_SCRIPT: Figure = Figure::new(2, 3, "server time per script", "µs");
pub(crate) const SENT: Figure = Figure::new(5, 0, "commands per hand-over, {n} clients", "");
const IN_ALL: Figure = Figure::new(5, 1, "the same and inside scripts, {n} clients", "");
const SENT_PER_GRANT: Figure = Figure::new(5, 2, "commands per grant, {n} clients", "");

/// Commands, those inside scripts as well.
pub(crate) const COMMANDS: usize = 0;
/// Scripts run.
pub(crate) const SCRIPTS: usize = 1;
/// The time that scripts took, in µs.
const SCRIPT_TIME: usize = 2;

/// So many commands say which part of them was sent.
const ENOUGH: u64 = 100;

/// A connection to look at the server with.
pub(crate) struct Stats {
    pub(crate) connection: MultiplexedConnection,
    address: SocketAddr,
}

impl Stats {
    pub(crate) async fn connect(url: &str, address: SocketAddr) -> Self {
        // It answers late when it is busy, which is what we want to see.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(url).unwrap();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Self { connection: connection.await.unwrap(), address }
    }

    async fn info(&self) -> String {
        let mut connection = self.connection.clone();
        let info = redis::cmd("INFO").arg("all").query_async(&mut connection).await;
        info.unwrap_or_else(|error| panic!("the server is gone ({error}): did somebody end it?"))
    }

    /// How many of these keys are there.
    pub(crate) async fn exist(&self, keys: &[String]) -> u64 {
        let mut connection = self.connection.clone();
        let mut there = 0;
        for some in keys.chunks(1000) {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(some);
            there += exists.query_async::<u64>(&mut connection).await.unwrap();
        }
        there
    }
}

#[async_trait]
impl Server for Stats {
    async fn version(&self) -> String {
        let info = self.info().await;
        field(&info, "redis_version:").unwrap_or_default().to_owned()
    }

    async fn sample(&self) -> Sample {
        let info = self.info().await;
        let number = |name: &str| field(&info, name).and_then(|text| text.parse::<f64>().ok());
        let cpu = number("used_cpu_sys:").unwrap_or(0.0) + number("used_cpu_user:").unwrap_or(0.0);
        let mut counts = Counts::default();
        for line in info.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
            let Some((command, figures)) = line.split_once(':') else { continue };
            let figure = |name: &str| -> u64 {
                let found = figures.split(',').find_map(|pair| pair.strip_prefix(name));
                found.and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            counts[COMMANDS] += figure("calls=");
            if ["eval", "evalsha", "fcall"].contains(&command) {
                counts[SCRIPTS] += figure("calls=");
                counts[SCRIPT_TIME] += figure("usec=");
            }
        }
        Sample { cpu, counts }
    }

    async fn clear(&self) {
        let mut connection = self.connection.clone();
        redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    }

    fn pairs(&self, counts: Counts, _pairs: f64, note: Note<'_>) {
        note(OWN_SCRIPT, counts[SCRIPT_TIME] as f64 / counts[SCRIPTS].max(1) as f64);
    }

    /// Which part of the commands came from clients, and not from inside scripts: looks at all of
    /// them for a while, which slows the server down. `None`: too few to tell.
    async fn look_closely(&self, during: Duration) -> Option<f64> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(b"MONITOR\r\n").await.unwrap();
        let mut lines = BufReader::with_capacity(1 << 20, stream).split(b'\n');
        let (mut all, mut inside) = (0_u64, 0_u64);
        let looking = async {
            while let Ok(Some(line)) = lines.next_segment().await {
                // The answer to MONITOR itself is no command.
                if line.starts_with(b"+OK") {
                    continue;
                }
                all += 1;
                // The time, then `[DB lua]` or `[DB ADDRESS]`.
                let head = &line[..line.len().min(32)];
                inside += u64::from(head.windows(5).any(|part| part == b" lua]"));
            }
        };
        let _ = tokio::time::timeout(during, looking).await;
        (all >= ENOUGH).then(|| (all - inside) as f64 / all as f64)
    }

    fn crowd(&self, crowd: Crowd, note: Note<'_>) -> Result<(), String> {
        let commands = crowd.counts[COMMANDS] as f64;
        note(IN_ALL, commands / crowd.passes);
        let sent_part = crowd.closely.ok_or("too few commands to tell which part was sent")?;
        note(SENT, commands * sent_part / crowd.passes);
        note(SENT_PER_GRANT, commands * sent_part / crowd.grants);
        Ok(())
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
