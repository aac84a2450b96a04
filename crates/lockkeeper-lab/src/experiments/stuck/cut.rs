//! A way to a Redis server that ends after so many commands, and before the answer to the last of them: what
//! a client that dies there leaves behind.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::error::Result;

/// The way, for all connections of one client. Clones are the same; it ends with the last of them, or
/// when it is cut.
#[derive(Clone, Debug)]
pub(super) struct Way {
    address: SocketAddr,
    rest: Arc<Mutex<Option<u32>>>,
    over: watch::Sender<bool>,
}

impl Way {
    /// An open one to this server.
    pub(super) async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((server.ip(), 0)).await?;
        let (rest, over) = (Arc::default(), watch::Sender::new(false));
        let way = Self { address: listener.local_addr()?, rest, over };
        let its = way.clone();
        tokio::spawn(async move {
            let mut over = its.over.subscribe();
            loop {
                tokio::select! {
                    _ = over.wait_for(|over| *over) => return,
                    Ok((client, _)) = listener.accept() => {
                        tokio::spawn(its.clone().lead(client, server));
                    }
                }
            }
        });
        Ok(way)
    }

    /// Where it begins.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// It ends after so many more commands.
    pub(super) fn cut_after(&self, commands: u32) {
        *self.rest.lock() = Some(commands);
    }

    /// It ends now.
    pub(super) fn cut(&self) {
        self.over.send_replace(true);
    }

    /// When it has ended.
    pub(super) async fn over(&self) {
        // There is a sender as long as there is a way.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    async fn lead(self, client: TcpStream, server: SocketAddr) {
        let Ok(server) = TcpStream::connect(server).await else { return };
        let ((from, back), (answers, to)) = (client.into_split(), server.into_split());
        tokio::select! {
            () = self.over() => {}
            // One of them is gone, and so is the other then.
            _ = self.commands(BufReader::new(from), to) => {}
            _ = self.answers(answers, back) => {}
        }
    }

    async fn commands(
        &self,
        mut from: BufReader<OwnedReadHalf>,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        loop {
            let command = command(&mut from).await?;
            let pass = self.rest.lock().as_mut().is_none_or(|rest| {
                let pass = *rest > 0;
                *rest = rest.saturating_sub(1);
                pass
            });
            if pass {
                to.write_all(&command).await?;
            }
        }
    }

    /// The answer to the last command is not passed on: the server has carried it out, and that is the end.
    async fn answers(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut part = [0; 4096];
        loop {
            let count = from.read(&mut part).await?;
            if count == 0 {
                return Ok(());
            }
            if *self.rest.lock() == Some(0) {
                self.cut();
                return Ok(());
            }
            to.write_all(&part[..count]).await?;
        }
    }
}

/// One command as it was sent: an array of texts with their lengths.
async fn command(from: &mut (impl AsyncBufReadExt + Unpin + Send)) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..number(from, '*', &mut bytes).await? {
        let (length, at) = (number(from, '$', &mut bytes).await?, bytes.len());
        bytes.resize(at + length + 2, 0);
        from.read_exact(&mut bytes[at..]).await?;
    }
    Ok(bytes)
}

/// A line with a number behind a sign.
async fn number(
    from: &mut (impl AsyncBufReadExt + Unpin + Send),
    sign: char,
    bytes: &mut Vec<u8>,
) -> std::io::Result<usize> {
    let at = bytes.len();
    from.read_until(b'\n', bytes).await?;
    let line = std::str::from_utf8(&bytes[at..]).unwrap_or_default();
    let number = line.trim_end().strip_prefix(sign).and_then(|number| number.parse().ok());
    number.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn commands_are_told_apart() {
        let mut sent =
            BufReader::new(&b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\nHELLO\r\n"[..]);
        assert_eq!(command(&mut sent).await.unwrap(), b"*1\r\n$4\r\nPING\r\n");
        assert_eq!(command(&mut sent).await.unwrap(), b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n");
        command(&mut sent).await.unwrap_err();
    }
}
