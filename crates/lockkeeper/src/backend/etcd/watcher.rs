//! One stream on which a client watches keys.
//!
//! Whoever watches hears *that* something happened, and asks. A watch begins with such a word as soon
//! as the server has set it up: what happened before that the watch does not tell. So does every
//! watch that had to be set up again, because the connection was lost or the history compacted.
//!
//! Watches begin at the present. One that begins in the past is served by a slower path of the server,
//! which looks only every 100 ms; that is good enough for a hold that is watched only in case
//! somebody takes it away.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;

use super::RETRY;
use super::client::{Client, Link};
use super::proto::etcdserverpb::watch_request::RequestUnion;
use super::proto::{etcdserverpb as pb, mvccpb};
use crate::backend::register::Register;
use crate::owner::RequestId;

/// The word that goes with a deletion.
pub(super) const GONE: &str = "gone";

/// The number of no watch.
const NOBODY: i64 = -1;

/// What to watch, and for whom.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) request: RequestId,
    pub(super) key: Vec<u8>,
    /// Empty: one key alone.
    pub(super) range_end: Vec<u8>,
    /// Only deletions.
    pub(super) deletions: bool,
    /// From this revision on; zero: from now on.
    pub(super) from: i64,
}

enum Command {
    Add(i64, Spec),
    Remove(i64),
}

/// Watches keys.
pub(super) struct Watcher {
    commands: mpsc::UnboundedSender<Command>,
    next: AtomicI64,
}

/// A key that is watched for as long as this is kept.
#[derive(Debug)]
pub(super) struct Watch {
    commands: mpsc::UnboundedSender<Command>,
    id: i64,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Command")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Remove(self.id));
    }
}

impl Watcher {
    /// Must be called inside a tokio runtime.
    pub(super) fn start(client: &Arc<Client>, requests: &Arc<Register>) -> Self {
        let (commands, commanded) = mpsc::unbounded_channel();
        tokio::spawn(serve(Arc::clone(client), Arc::clone(requests), commanded));
        Self { commands, next: AtomicI64::new(1) }
    }

    pub(super) fn watch(&self, spec: Spec) -> Watch {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let _ = self.commands.send(Command::Add(id, spec));
        Watch { commands: self.commands.clone(), id }
    }
}

type Watches = HashMap<i64, Spec>;

/// Opens a stream when there is something to watch, until nobody is left to watch for.
async fn serve(
    client: Arc<Client>,
    requests: Arc<Register>,
    mut commanded: mpsc::UnboundedReceiver<Command>,
) {
    let mut watches = Watches::new();
    loop {
        while watches.is_empty() {
            match commanded.recv().await {
                Some(Command::Add(id, spec)) => drop(watches.insert(id, spec)),
                Some(Command::Remove(_)) => {}
                None => return,
            }
        }
        let link = client.entered().await;
        match one_stream(&client, &link, &requests, &mut watches, &mut commanded).await {
            End::Over => return,
            End::Moved => {}
            End::Failed(status) => {
                tracing::debug!(%status, "the stream of watches has ended");
                client.failed_on(link.number(), &status);
                tokio::time::sleep(RETRY).await;
            }
        }
        watches.values_mut().for_each(|spec| spec.from = 0);
    }
}

/// Why a stream has ended.
enum End {
    /// Nobody is left.
    Over,
    /// There is a better connection, or a new stream is needed.
    Moved,
    Failed(tonic::Status),
}

async fn one_stream(
    client: &Client,
    link: &Link,
    requests: &Register,
    watches: &mut Watches,
    commanded: &mut mpsc::UnboundedReceiver<Command>,
) -> End {
    let (send, mut sent) = mpsc::unbounded_channel();
    let messages = stream::poll_fn(move |context| sent.poll_recv(context));
    let mut watch = pb::watch_client::WatchClient::new(link.channel());
    // The server opens its side with its first answer.
    let open =
        async move { watch.watch(link.stream(messages)).await.map(tonic::Response::into_inner) };
    let mut answers = std::pin::pin!(stream::once(open).try_flatten());
    let say = |union| drop(send.send(pb::WatchRequest { request_union: Some(union) }));
    watches.iter().for_each(|(id, spec)| say(create(*id, spec)));
    loop {
        tokio::select! {
            command = commanded.recv() => match command {
                Some(Command::Add(id, spec)) => {
                    say(create(id, &spec));
                    watches.insert(id, spec);
                }
                Some(Command::Remove(watch_id)) => {
                    if watches.remove(&watch_id).is_some() {
                        say(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id }));
                    }
                }
                None => return End::Over,
            },
            answer = answers.next() => match answer {
                Some(Ok(answer)) => {
                    let spec = watches.get(&answer.watch_id);
                    let refused = answer.canceled && answer.compact_revision == 0;
                    // A new one is refused for its token, on some servers without its number.
                    if refused && (spec.is_some() || answer.watch_id == NOBODY) {
                        return End::Failed(tonic::Status::unauthenticated(answer.cancel_reason));
                    }
                    let Some(spec) = spec else { continue };
                    if answer.canceled {
                        // Its history is gone. The server does not give the number away again on
                        // this stream, and would not say which watch it refuses.
                        return End::Moved;
                    }
                    if answer.created {
                        if spec.from == 0 {
                            requests.hear(spec.request, None);
                        }
                    } else if !answer.events.is_empty() {
                        let gone = |event: &mvccpb::Event| event.r#type() == DELETE;
                        let word = answer.events.iter().any(gone).then_some(GONE);
                        requests.hear(spec.request, word);
                    }
                }
                Some(Err(status)) => return End::Failed(status),
                None => return End::Moved,
            },
            () = client.replaced(link) => return End::Moved,
        }
    }
}

const DELETE: mvccpb::event::EventType = mvccpb::event::EventType::Delete;

fn create(watch_id: i64, spec: &Spec) -> RequestUnion {
    let no_put = pb::watch_create_request::FilterType::Noput as i32;
    RequestUnion::CreateRequest(pb::WatchCreateRequest {
        key: spec.key.clone(),
        range_end: spec.range_end.clone(),
        start_revision: spec.from,
        filters: if spec.deletions { vec![no_put] } else { Vec::new() },
        watch_id,
        ..Default::default()
    })
}
