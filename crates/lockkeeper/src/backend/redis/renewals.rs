//! Renewals that are sent together: one command for up to a hundred locks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisWrite;
use tokio::sync::oneshot;

use super::Server;
use super::commands::evalsha;
use super::layout::write_state_key;
use super::nodes::Answered;
use super::replicas::renewal_time;
use crate::error::{Error, Result};

/// How long a renewal waits for others to go with it. Leases are renewed long before they end.
const GATHER: Duration = Duration::from_millis(10);
/// So many go in one command, so that it does not hold up the server for others.
const TOGETHER: usize = 100;

/// Renewals that wait to be sent.
#[derive(Default)]
pub(super) struct Renewals {
    waiting: Mutex<Vec<Due>>,
}

struct Due {
    lock: Box<str>,
    field: Box<str>,
    ttl: Duration,
    renewed: oneshot::Sender<Result<bool>>,
}

/// Renews a mutex together with others. `false`: not that simple, to be renewed on its own.
pub(super) async fn renew(
    server: &Arc<Server>,
    lock: &str,
    field: &str,
    ttl: Duration,
) -> Result<bool> {
    let (renewed, answer) = oneshot::channel();
    let first = {
        let mut waiting = server.renewals.waiting.lock();
        waiting.push(Due { lock: lock.into(), field: field.into(), ttl, renewed });
        waiting.len() == 1
    };
    if first {
        let server = Arc::clone(server);
        // Not in the caller's runtime, which may end before it is sent.
        server.requests.runtime().clone().spawn(async move {
            tokio::time::sleep(GATHER).await;
            let mut due = std::mem::take(&mut *server.renewals.waiting.lock());
            // Those in one slot of a cluster go in one command.
            due.sort_by_key(|due| server.nodes.place(&due.lock));
            let mut sending = Vec::new();
            while let Some(first) = due.first() {
                let place = server.nodes.place(&first.lock);
                let here = |due: &&Due| server.nodes.place(&due.lock) == place;
                let together = due.iter().take(TOGETHER).take_while(here).count();
                let rest = due.split_off(together);
                sending.push(send(&server, std::mem::replace(&mut due, rest)));
            }
            futures_util::future::join_all(sending).await;
        });
    }
    answer.await.unwrap_or(Err(Error::ShutDown))
}

async fn send(server: &Server, due: Vec<Due>) {
    let script = &server.scripts.renew_many;
    let mut command = evalsha(script, 2 * due.len());
    for Due { lock, .. } in &due {
        command.arg(&**lock);
        write_state_key(&mut command, lock);
    }
    for Due { field, ttl, .. } in &due {
        command.arg(&**field);
        command.write_arg_fmt(ttl.as_millis());
    }
    let ttl = due.iter().map(|due| due.ttl).min().unwrap_or_default();
    let acknowledged = server.renewed(renewal_time(ttl));
    let lock = due.first().map(|due| due.lock.clone()).unwrap_or_default();
    let step = |_: &str| command.clone();
    let answers = server.nodes.invoke(&lock, script, step, acknowledged).await;
    let answers: Result<Answered<Vec<u8>>> = answers;
    for (at, due) in due.into_iter().enumerate() {
        let answer = match &answers {
            // Another server would let it end earlier than we think.
            Ok(Answered { shortfall: Some(shortfall), .. }) => Err(shortfall.of_renewal()),
            Ok(answers) => Ok(answers.value.get(at) == Some(&1)),
            Err(error) => Err(Error::Unavailable {
                backend: "redis",
                context: format!("a renewal failed: {error}"),
                source: None,
            }),
        };
        // Whoever asked may have given up meanwhile.
        let _ = due.renewed.send(answer);
    }
}
