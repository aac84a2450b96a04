//! A Redis client of few lines: looks at a server, and meddles with it, behind the back of everybody
//! else. It shares no code with what is tested.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::wait::soon;

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Null,
    /// A number.
    Number(i64),
    /// A text or a status; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An error.
    Error(String),
    /// Several.
    Many(Vec<Self>),
}

/// A connection to one server.
#[derive(Debug)]
pub struct Raw {
    stream: Mutex<BufReader<TcpStream>>,
}

impl Raw {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When it cannot.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        Self { stream: Mutex::new(BufReader::new(stream)) }
    }

    /// Sends a command and gives the answer, whatever it is. Words are separated by spaces.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn ask(&self, command: &str) -> Reply {
        let words: Vec<&str> = command.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let mut stream = self.stream.lock().await;
        let answered = async {
            stream.write_all(request.as_bytes()).await.unwrap();
            read(&mut stream).await
        };
        soon(command, answered).await
    }

    /// The number that a command gives.
    ///
    /// # Panics
    ///
    /// When it gives something else.
    pub async fn number(&self, command: &str) -> i64 {
        match self.ask(command).await {
            Reply::Number(number) => number,
            other => panic!("{command}: {other:?}"),
        }
    }

    /// The text that a command gives; `None`: nothing is there.
    ///
    /// # Panics
    ///
    /// When it gives something else.
    pub async fn text(&self, command: &str) -> Option<String> {
        match self.ask(command).await {
            Reply::Text(text) => Some(text),
            Reply::Null => None,
            other => panic!("{command}: {other:?}"),
        }
    }

    /// Whether a key is there.
    ///
    /// # Panics
    ///
    /// As [`Raw::number`].
    pub async fn exists(&self, key: &str) -> bool {
        self.number(&format!("EXISTS {key}")).await == 1
    }

    /// How long a key has to live. `None`: it is not there, or for ever.
    ///
    /// # Panics
    ///
    /// As [`Raw::number`].
    pub async fn left(&self, key: &str) -> Option<Duration> {
        let left = self.number(&format!("PTTL {key}")).await;
        u64::try_from(left).ok().map(Duration::from_millis)
    }

    /// How many listen to a channel.
    ///
    /// # Panics
    ///
    /// When the server does not say.
    pub async fn listeners(&self, channel: &str) -> i64 {
        match self.ask(&format!("PUBSUB NUMSUB {channel}")).await {
            Reply::Many(replies) if let [_, Reply::Number(listeners)] = replies[..] => listeners,
            other => panic!("{channel}: {other:?}"),
        }
    }

    /// All keys that match, in order.
    ///
    /// # Panics
    ///
    /// When the server does not say.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        for _ in 0..10_000 {
            match self.ask(&format!("SCAN {cursor} MATCH {pattern} COUNT 1000")).await {
                Reply::Many(replies) => {
                    let [Reply::Text(next), Reply::Many(found)] = &replies[..] else {
                        panic!("{replies:?}");
                    };
                    cursor.clone_from(next);
                    keys.extend(found.iter().map(|key| match key {
                        Reply::Text(key) => key.clone(),
                        other => panic!("{other:?}"),
                    }));
                }
                other => panic!("{other:?}"),
            }
            if cursor == "0" {
                keys.sort();
                keys.dedup();
                return keys;
            }
        }
        panic!("SCAN does not end");
    }

    /// Keys that live for ever.
    ///
    /// # Panics
    ///
    /// When the server does not say.
    pub async fn immortal(&self) -> Vec<String> {
        let mut immortal = Vec::new();
        for key in self.keys("*").await {
            // It may have gone since.
            if self.number(&format!("PTTL {key}")).await == -1 {
                immortal.push(key);
            }
        }
        immortal
    }
}

type Reading<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// One answer.
fn read(stream: &mut BufReader<TcpStream>) -> Reading<'_> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).expect("the server answers");
        let number = || rest.parse::<i64>().unwrap();
        match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()),
            "$" => {
                let Ok(length) = usize::try_from(number()) else { return Reply::Null };
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await.unwrap();
                Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            "*" => {
                let Ok(length) = usize::try_from(number()) else { return Reply::Null };
                let mut replies = Vec::with_capacity(length);
                for _ in 0..length {
                    replies.push(read(stream).await);
                }
                Reply::Many(replies)
            }
            _ => panic!("not an answer of Redis: {line}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_kind_of_answer_is_understood() {
        let server = crate::server::redis(&[]).await;
        let raw = Raw::connect(server.address()).await;
        assert_eq!(raw.ask("PING").await, Reply::Text("PONG".into()));
        assert_eq!(raw.text("GET a").await, None);
        raw.ask("SET a 7 PX 60000").await;
        raw.ask("RPUSH b one").await;
        assert_eq!(raw.text("GET a").await.as_deref(), Some("7"));
        assert!(
            matches!(raw.ask("INCR b").await, Reply::Error(text) if text.contains("WRONGTYPE"))
        );
        assert!(raw.left("a").await.is_some_and(|left| left <= Duration::from_secs(60)));
        assert_eq!(raw.left("b").await, None);
        assert_eq!(raw.left("c").await, None);
        assert_eq!(raw.keys("*").await, ["a", "b"]);
        assert_eq!(raw.immortal().await, ["b"]);
        assert!(raw.exists("a").await && !raw.exists("c").await);
        assert_eq!(raw.listeners("c").await, 0);
    }
}
