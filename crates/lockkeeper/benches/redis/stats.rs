//! What the server has done.

use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// So many commands say which part of them was sent.
const ENOUGH: u64 = 100;

/// A connection to look at the server with.
pub(crate) struct Stats {
    connection: MultiplexedConnection,
    address: SocketAddr,
}

/// The server's counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Commands, those inside scripts as well.
    pub(crate) commands: u64,
    /// Scripts run, and the time they took in µs.
    pub(crate) scripts: u64,
    pub(crate) script_time: u64,
    /// Time on a processor, in s.
    pub(crate) cpu: f64,
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

    pub(crate) async fn version(&self) -> String {
        let info = self.info().await;
        field(&info, "redis_version:").unwrap_or_default().to_owned()
    }

    pub(crate) async fn sample(&self) -> Sample {
        let info = self.info().await;
        let number = |name: &str| field(&info, name).and_then(|text| text.parse::<f64>().ok());
        let mut sample = Sample {
            cpu: number("used_cpu_sys:").unwrap_or(0.0) + number("used_cpu_user:").unwrap_or(0.0),
            ..Sample::default()
        };
        for line in info.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
            let Some((command, figures)) = line.split_once(':') else { continue };
            let figure = |name: &str| -> u64 {
                let found = figures.split(',').find_map(|pair| pair.strip_prefix(name));
                found.and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            sample.commands += figure("calls=");
            if ["eval", "evalsha", "fcall"].contains(&command) {
                sample.scripts += figure("calls=");
                sample.script_time += figure("usec=");
            }
        }
        sample
    }

    /// Which part of the commands came from clients, and not from inside scripts: looks at all of
    /// them for a while, which slows the server down. `None`: too few to tell.
    pub(crate) async fn sent_part(&self, during: Duration) -> Option<f64> {
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

    /// Forgets everything, so that no measurement finds what another left behind.
    pub(crate) async fn clear(&self) {
        let mut connection = self.connection.clone();
        redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
