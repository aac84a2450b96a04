//! Servers that take long to find the place in their log.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::cdc::{LogError, MariaDb, Position, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::reader::{Place, Reader, start};

const T: &str = "CREATE TABLE t (id INT PRIMARY KEY)";

/// Longer than a server is silent that has found its place.
const LONG: Duration = Duration::from_secs(8);

/// Kinds of events.
const ROTATE: u8 = 4;
const GTID: u8 = 162;

/// Between a reader and its server: of the log nothing comes through from the first event of this kind on, until it is let through.
/// So it looks when the server goes through files of its log.
struct Slow {
    address: SocketAddr,
    open: watch::Sender<bool>,
    listener: AbortHandle,
}

impl Slow {
    async fn to(server: SocketAddr, kind: u8) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, opened) = watch::channel(false);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let log = Arc::new(AtomicBool::new(false));
                tokio::spawn(up(from_client, to_server, Arc::clone(&log)));
                tokio::spawn(down(from_server, to_client, log, kind, opened.clone()));
            }
        });
        Self { address, open, listener: listening.abort_handle() }
    }

    /// Everything comes through after this time.
    fn open_after(self: &Arc<Self>, time: Duration) {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            sleep(time).await;
            this.open.send_replace(true);
        });
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Until the reader asks for the log, and after that.
async fn up(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, log: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // A command is the first packet of its kind.
        if read > 4 && buffer[3..5] == [0, 0x12] {
            log.store(true, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Packet by packet.
async fn down(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    log: Arc<AtomicBool>,
    kind: u8,
    mut opened: watch::Receiver<bool>,
) {
    loop {
        let mut head = [0; 4];
        if from.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        let mut packet = vec![0; usize::try_from(length).unwrap()];
        if from.read_exact(&mut packet).await.is_err() {
            return;
        }
        if log.load(Ordering::SeqCst) && packet.get(5) == Some(&kind) {
            let _ = opened.wait_for(|open| *open).await;
        }
        if to.write_all(&head).await.is_err() || to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

/// There is something to read behind where it was left.
async fn place() -> (Place, Option<Position>) {
    let place = Place::new(Arc::new(start(&[]).await), &["t id"], T);
    let mut reader = place.open(None).await;
    place.sql("INSERT INTO t VALUES (1)");
    reader.told(&place).await;
    place.sql("INSERT INTO t VALUES (2)");
    (place, reader.position)
}

fn through(slow: &Slow) -> MariaDb {
    MariaDb::new(&format!("mysql://root@{}", slow.address)).unwrap()
}

/// It is found in the end.
async fn is_found_though_late(kind: u8) {
    let (place, position) = place().await;
    let slow = Arc::new(Slow::to(place.database.server.address(), kind).await);
    slow.open_after(LONG);
    let log = through(&slow).open(position.as_ref(), &place.wanted).await.unwrap();
    let mut reader = Reader { log, position };
    assert_eq!(reader.told(&place).await, ["t +2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_look_long_for_where_a_reader_was_left() {
    is_found_though_late(GTID).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_look_long_for_the_file() {
    is_found_though_late(ROTATE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_while_it_looks_is_noticed() {
    let (place, position) = place().await;
    let slow = Slow::to(place.database.server.address(), GTID).await;
    let log = through(&slow).open(position.as_ref(), &place.wanted).await.unwrap();
    let mut reader = Reader { log, position };
    reader.next().await;
    place.database.server.pause();
    let since = Instant::now();
    let error = reader.error().await;
    place.database.server.resume();
    assert!(matches!(error, LogError::Failed(_)), "{error}");
    assert!(Instant::now().since(since) < Duration::from_secs(30));
}
