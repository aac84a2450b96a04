//! The master as the sentinels know it.
//!
//! A sentinel that was cut off, or has not heard yet, still names the old master, so all are asked at
//! once, and the answer of the highest epoch counts. A server is talked to only if it says itself that it
//! is a master.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Client, RedisResult, Value};
use tokio::sync::watch;

use super::commands::{COMMAND_TIME, failed};
use super::connect::Door;
use super::link::open;
use crate::error::{Error, Result};

/// How long one sentinel may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// How often they are asked although nothing is wrong: a master that was cut off together with us does
/// not know that there is another.
const LOOK: Duration = Duration::from_secs(2);

/// The sentinels, and what they said last.
pub(super) struct Sentinels {
    door: Door,
    sentinels: Vec<String>,
    master: String,
    known: watch::Sender<Known>,
}

/// Where the master is, since which epoch, and how often it has been elsewhere before.
#[derive(Clone, Debug, Default)]
struct Known {
    address: String,
    epoch: u64,
    moves: u64,
}

/// What one sentinel says.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    epoch: u64,
    address: String,
}

impl Sentinels {
    /// Starts to watch the master of this name.
    pub(super) fn start(door: Door, sentinels: Vec<String>, master: String) -> Arc<Self> {
        let known = watch::Sender::new(Known::default());
        let sentinels = Arc::new(Self { door, sentinels, master, known });
        tokio::spawn(look_now_and_then(Arc::downgrade(&sentinels)));
        sentinels
    }

    pub(super) fn moves(&self) -> u64 {
        self.known.borrow().moves
    }

    /// Waits until the master is another one than then.
    pub(super) async fn moved(&self, since: u64) {
        // Fails only when we are gone.
        let _ = self.known.subscribe().wait_for(|known| known.moves != since).await;
    }

    /// The master, which says so itself, and how often it was another one before.
    pub(super) async fn find(&self) -> Result<(Client, u64)> {
        let before = self.moves();
        let Said { epoch, address } = self.ask_all().await?;
        let client = self.door.to(&address)?;
        let checking = tokio::time::timeout(COMMAND_TIME, check_role(&client, &address)).await;
        checking.unwrap_or_else(|_| Err(unavailable(format!("{address} does not answer"))))?;
        let mut found = None;
        self.known.send_if_modified(|known| {
            // Somebody else has heard of a newer one while we asked.
            if known.moves != before && epoch < known.epoch {
                return false;
            }
            let moved = known.address != address;
            if moved && !known.address.is_empty() {
                tracing::warn!(from = known.address, to = address, "the master is another one");
            }
            *known = Known { address, epoch, moves: known.moves + u64::from(moved) };
            found = Some(known.moves);
            moved
        });
        let moves = found.ok_or_else(|| unavailable("the master is another one by now".into()))?;
        Ok((client, moves))
    }

    /// Where the master is, by what the sentinels say.
    async fn ask_all(&self) -> Result<Said> {
        let asked = self.sentinels.iter().map(|sentinel| self.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut said, mut refused) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(answer) => said.push(answer),
                Err(error) => refused = Some(error),
            }
        }
        let (answers, known) = (said.len(), self.known.borrow().epoch);
        match newest(said) {
            // Who was cut off knows less than we do already. Unless most of them say so: then they were
            // set up anew.
            Some(said) if said.epoch < known && 2 * answers <= self.sentinels.len() => {
                Err(unavailable("the sentinels that answer know an old master only".into()))
            }
            Some(said) => Ok(said),
            None => Err(refused.unwrap_or_else(|| unavailable("there is no sentinel".into()))),
        }
    }

    async fn ask(&self, sentinel: &str) -> Result<Said> {
        let asking = async {
            // Sentinels often want no password where the servers do.
            match self.ask_as(sentinel, false).await {
                Err(error) if needs_password(&error) => self.ask_as(sentinel, true).await,
                answer => answer,
            }
        };
        let answer = tokio::time::timeout(ANSWER, asking).await;
        answer.unwrap_or_else(|_| Err(unavailable(format!("sentinel {sentinel} does not answer"))))
    }

    async fn ask_as(&self, sentinel: &str, with_password: bool) -> Result<Said> {
        let client = self.door.to_sentinel(sentinel, with_password)?;
        let asking = format!("asking sentinel {sentinel}");
        let explain = |error| failed(&asking, error);
        let mut connection = open(&client).await.map_err(explain)?;
        // The first knows during a fail-over already who will be the master, the second the epoch. Both
        // at once, so that the old one does not come with the new epoch.
        let mut ask = redis::pipe();
        ask.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        ask.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        let said: (RedisResult<Value>, RedisResult<Value>) =
            ask.ignore_errors().query_async(&mut connection).await.map_err(explain)?;
        let address = said.0.map_err(explain)?;
        match said.1 {
            Err(error) if error.to_string().contains("No such master") => {
                let master = &self.master;
                Err(Error::Config(format!("sentinel {sentinel} knows no master called {master:?}")))
            }
            Err(error) => Err(explain(error)),
            Ok(master) => read(&address, &master)
                .ok_or_else(|| unavailable(format!("sentinel {sentinel} makes no sense"))),
        }
    }
}

/// Looks whether there is another master while nobody complains.
async fn look_now_and_then(sentinels: Weak<Sentinels>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(sentinels) = sentinels.upgrade() else { return };
        let known = sentinels.known.borrow().address.clone();
        if let Ok(said) = sentinels.ask_all().await
            && !known.is_empty()
            && said.address != known
            && let Err(error) = sentinels.find().await
        {
            tracing::debug!(%error, "there is another master, and it is not ready");
        }
    }
}

/// Refuses a server that is no master.
async fn check_role(client: &Client, address: &str) -> Result<()> {
    let explain = |error| failed("connecting to the master", error);
    let mut connection = open(client).await.map_err(explain)?;
    let role: Vec<Value> =
        redis::cmd("ROLE").query_async(&mut connection).await.map_err(explain)?;
    let role = role.first().and_then(|role| redis::from_redis_value_ref::<String>(role).ok());
    match role.as_deref() {
        Some("master") => Ok(()),
        _ => Err(unavailable(format!("{address} is not a master (any more): a fail-over?"))),
    }
}

/// The answers of a sentinel: host and port, and a list of names and values.
fn read(address: &Value, master: &Value) -> Option<Said> {
    let (host, port): (String, String) = redis::from_redis_value_ref(address).ok()?;
    let words: Vec<String> = redis::from_redis_value_ref(master).ok()?;
    let epoch = words.chunks_exact(2).find(|pair| pair[0] == "config-epoch")?[1].parse().ok()?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(Said { epoch, address: format!("{host}:{port}") })
}

fn newest(said: Vec<Said>) -> Option<Said> {
    said.into_iter().max_by_key(|said| said.epoch)
}

fn needs_password(error: &Error) -> bool {
    super::commands::cause(error).is_some_and(|error| error.code() == Some("NOAUTH"))
}

fn unavailable(context: String) -> Error {
    Error::Unavailable { backend: "redis", context, source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answer_counts() {
        let list = |words: &[&str]| {
            let words = words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec()));
            Value::Array(words.collect())
        };
        let said = read(&list(&["::1", "7"]), &list(&["name", "m", "config-epoch", "3"])).unwrap();
        assert_eq!(said, Said { epoch: 3, address: "[::1]:7".into() });
        let old = Said { epoch: 2, address: "old:1".into() };
        assert_eq!(newest(vec![old, said]).unwrap().address, "[::1]:7");
        assert_eq!(newest(vec![]), None);
        assert_eq!(read(&Value::Nil, &list(&[])), None);
    }
}
