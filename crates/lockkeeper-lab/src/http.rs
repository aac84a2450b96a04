//! As much of HTTP/1.1 as a stock service and those who press its button need: requests without a body,
//! connections that are kept.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::error::{Error, Result};

/// No answer is longer than this.
const LONGEST: usize = 64 * 1024;

/// A service on a port of its own; over when dropped.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Service {
    /// Serves. The handler is given the path and answers with a status and a text.
    ///
    /// # Errors
    ///
    /// When there is no port.
    pub async fn start<H, F>(handler: H) -> Result<Self>
    where
        H: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = (u16, String)> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let handler = Arc::new(handler);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let handler = Arc::clone(&handler);
                connections.spawn(async move {
                    // A client that goes away in the middle had enough.
                    let _ = serve(stream, &*handler).await;
                });
            }
        });
        Ok(Self { address, _tasks: tasks })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve<H, F>(stream: TcpStream, handler: &H) -> Result<()>
where
    H: Fn(String) -> F + Sync,
    F: Future<Output = (u16, String)> + Send,
{
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let (first, _) = head(&mut stream).await?;
        let Some(path) = first.split(' ').nth(1) else { return Ok(()) };
        let (status, body) = handler(path.to_owned()).await;
        let answer = format!("HTTP/1.1 {status} .\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// The first line, and how long the body is; an empty line at the end of the connection.
async fn head(stream: &mut BufReader<TcpStream>) -> Result<(String, usize)> {
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok((String::new(), 0));
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok((first, length));
        }
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                let wrong = |_| Error::Other("a length that is no number".into());
                length = value.parse::<usize>().map_err(wrong)?.min(LONGEST);
            }
            _ if first.is_empty() => first = line.to_owned(),
            _ => {}
        }
    }
}

/// One who asks, on a connection of its own.
#[derive(Debug)]
pub struct Caller {
    stream: BufReader<TcpStream>,
}

impl Caller {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When nobody is there.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the status and the text.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn post(&mut self, path: &str) -> Result<(u16, String)> {
        let request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        let (first, length) = head(&mut self.stream).await?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status =
            status.ok_or_else(|| Error::Other("the service closed a connection".into()))?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_connection_carries_many_requests() {
        let service = Service::start(|path| async move { (200, format!("it was {path}")) }).await;
        let service = service.unwrap();
        let mut caller = Caller::connect(service.address()).await.unwrap();
        for path in ["/a", "/longer"] {
            assert_eq!(caller.post(path).await.unwrap(), (200, format!("it was {path}")));
        }
    }
}
