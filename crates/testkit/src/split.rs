//! What the members of an etcd cluster say to each other, so that one of them can be cut off.
//!
//! A member has one address for all others, so a proxy in front of it has to find out who calls: they
//! say so in the first request of each connection.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The header by which members say who they are.
const FROM: &str = "x-server-from: ";
/// More than any first request is long.
const LONGEST_HEAD: usize = 16 << 10;

/// Proxies in front of all members; ended when dropped.
#[derive(Debug)]
pub(crate) struct Split {
    /// Where the members are to be reached, in their order.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Who is cut off, by number, and by the name that they have among themselves.
    cut: Arc<watch::Sender<(BTreeSet<usize>, BTreeSet<String>)>>,
    listeners: Vec<AbortHandle>,
}

impl Split {
    pub(crate) async fn before(members: &[SocketAddr]) -> Self {
        let cut = Arc::new(watch::Sender::new((BTreeSet::new(), BTreeSet::new())));
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        for (at, member) in members.iter().copied().enumerate() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            let cut = Arc::clone(&cut);
            let listening = tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, at, member, cut.subscribe()));
                }
            });
            listeners.push(listening.abort_handle());
        }
        Self { addresses, cut, listeners }
    }

    /// Nothing goes to or from this member any more, and nothing says so.
    pub(crate) fn cut_off(&self, number: usize, name: &str) {
        self.cut.send_modify(|(numbers, names)| {
            numbers.insert(number);
            names.insert(name.to_owned());
        });
    }

    /// Everything goes again, over new connections.
    pub(crate) fn mend(&self) {
        self.cut.send_replace(Default::default());
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        self.listeners.iter().for_each(AbortHandle::abort);
    }
}

async fn pass(
    mut client: TcpStream,
    to: usize,
    member: SocketAddr,
    mut cut: watch::Receiver<(BTreeSet<usize>, BTreeSet<String>)>,
) {
    let Some((head, from)) = first_request(&mut client).await else { return };
    let is_cut =
        |cut: &(BTreeSet<usize>, BTreeSet<String>)| cut.0.contains(&to) || cut.1.contains(&from);
    let mut passing = cut.clone();
    let piped = async {
        let Some(mut member) = connect(member).await else { return };
        let _ = (client.set_nodelay(true), member.set_nodelay(true));
        if member.write_all(&head).await.is_ok() {
            let _ = copy_bidirectional(&mut client, &mut member).await;
        }
    };
    tokio::select! {
        biased;
        _ = passing.wait_for(&is_cut) => {}
        () = piped => return,
    }
    // Open and silent, until there is a way again; then a new connection must be made.
    let _ = cut.wait_for(|cut| !is_cut(cut)).await;
}

/// Connects to a member that may not be there yet: whoever is refused waits for seconds before it tries
/// again.
async fn connect(member: SocketAddr) -> Option<TcpStream> {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect(member).await {
            return Some(stream);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

/// The first request of a connection up to its body, and who sent it.
async fn first_request(client: &mut TcpStream) -> Option<(Vec<u8>, String)> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > LONGEST_HEAD || client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let from = text.lines().find_map(|line| line.strip_prefix(FROM)).unwrap_or_default();
    Some((head, from.trim().to_owned()))
}
