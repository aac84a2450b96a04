//! One stream on which all leases of a client are kept alive.
//!
//! The leader answers by itself. One that was stopped, and does not know yet that there is a new one,
//! answers for a lease that it has no say in any more. So an answer counts only if a question to the
//! majority, asked afterwards, is answered in the same term: then nobody else led in between.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{mpsc, oneshot};

use super::client::{Client, Link, duration, unanswered};
use super::proto::etcdserverpb as pb;
use crate::error::{Error, Result};

type Ask = (i64, oneshot::Sender<Kept>);

/// An answer that does not count yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    lasts: Duration,
    term: u64,
}

impl Kept {
    /// How long the lease lasts, if a later answer of the majority has this header. Zero: it has ended.
    pub(super) fn confirmed_by(self, header: Option<&pb::ResponseHeader>) -> Result<Duration> {
        if header.is_some_and(|header| header.raft_term == self.term) {
            return Ok(self.lasts);
        }
        let context = "the leader changed while a lease was renewed".to_owned();
        Err(Error::Unavailable { backend: "etcd", context, source: None })
    }
}

/// Asks for longer lives.
pub(super) struct KeepAlive {
    client: Arc<Client>,
    asks: mpsc::UnboundedSender<Ask>,
    /// What the majority is asked. All that counts is who answers; but we must be allowed to ask.
    probe: pb::RangeRequest,
}

impl KeepAlive {
    /// Must be called inside a tokio runtime.
    pub(super) fn start(client: &Arc<Client>, probe: pb::RangeRequest) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        tokio::spawn(serve(Arc::clone(client), asked));
        Self { client: Arc::clone(client), asks, probe }
    }

    /// Lets a lease start again. An error: not known.
    pub(super) async fn ask(&self, lease: i64) -> Result<Kept> {
        let (tell, answer) = oneshot::channel();
        let number = self.client.link().number();
        let _ = self.asks.send((lease, tell));
        // An error: the stream has ended, and is opened again.
        self.client.answer(number, answer).await?.map_err(|_ended| unanswered())
    }

    /// Lets a lease start again; how long it then lasts. Zero: it has ended. An error: not known.
    pub(super) async fn keep(&self, lease: i64) -> Result<Duration> {
        let kept = self.ask(lease).await?;
        kept.confirmed_by(self.client.range(self.probe.clone()).await?.header.as_ref())
    }
}

/// Opens a stream when there is something to ask, until nobody is left to ask.
async fn serve(client: Arc<Client>, mut asked: mpsc::UnboundedReceiver<Ask>) {
    while let Some(first) = asked.recv().await {
        let link = client.entered().await;
        if let Err(status) = one_stream(&client, &link, first, &mut asked).await {
            tracing::debug!(%status, "the stream of keep-alives has ended");
            client.failed_on(link.number(), &status);
        }
    }
}

/// Serves one stream until it ends. Whoever has no answer then hears so by the end of its channel.
async fn one_stream(
    client: &Client,
    link: &Link,
    first: Ask,
    asked: &mut mpsc::UnboundedReceiver<Ask>,
) -> Result<(), tonic::Status> {
    let (send, mut sent) = mpsc::unbounded_channel();
    let messages = stream::poll_fn(move |context| sent.poll_recv(context));
    let mut lease = pb::lease_client::LeaseClient::new(link.channel());
    // The server opens its side with its first answer.
    let open = async move {
        lease.lease_keep_alive(link.stream(messages)).await.map(tonic::Response::into_inner)
    };
    let mut answers = std::pin::pin!(stream::once(open).try_flatten());
    let mut waiting: HashMap<i64, VecDeque<oneshot::Sender<Kept>>> = HashMap::new();
    let mut next = Some(first);
    loop {
        if let Some((id, tell)) = next.take() {
            waiting.entry(id).or_default().push_back(tell);
            let _ = send.send(pb::LeaseKeepAliveRequest { id });
        }
        tokio::select! {
            ask = asked.recv() => match ask {
                Some(ask) => next = Some(ask),
                None => return Ok(()),
            },
            answer = answers.next() => match answer {
                Some(Ok(answer)) => {
                    if let Some(tells) = waiting.get_mut(&answer.id) {
                        if let Some(tell) = tells.pop_front() {
                            let term = answer.header.as_ref().map_or(0, |header| header.raft_term);
                            let _ = tell.send(Kept { lasts: duration(answer.ttl), term });
                        }
                        if tells.is_empty() {
                            waiting.remove(&answer.id);
                        }
                    }
                }
                Some(Err(status)) => return Err(status),
                None => return Ok(()),
            },
            () = client.replaced(link) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_in_its_own_term_only() {
        let kept = Kept { lasts: Duration::from_secs(5), term: 7 };
        let in_term = |raft_term| pb::ResponseHeader { raft_term, ..Default::default() };
        assert_eq!(kept.confirmed_by(Some(&in_term(7))).ok(), Some(kept.lasts));
        assert!(kept.confirmed_by(Some(&in_term(8))).is_err());
        assert!(kept.confirmed_by(None).is_err());
    }
}
