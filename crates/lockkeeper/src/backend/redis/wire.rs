//! A connection that brings messages: of the kind that every server has, or also of channels that
//! belong to slots of a cluster.
//!
//! The driver subscribes to those only through its cluster client, or by a plain command where the
//! server may send of its own accord (RESP3).

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{Client, ErrorKind, Msg, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc;

use super::link::pushing;

/// The connection.
pub(super) enum Wire {
    Plain(PubSubSink, PubSubStream),
    /// And the channels that we left ourselves: the server says it in the same words when it leaves us.
    Sharded(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>, Vec<String>),
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A channel and a text.
    Message(String, String),
    /// The server does not send this channel any more.
    Silenced(String),
    /// Nothing of interest.
    Other,
    /// The connection is gone.
    End,
}

impl Wire {
    /// Connects and subscribes.
    pub(super) async fn connect(
        client: &Client,
        sharded: bool,
        own: &str,
        wanted: &[String],
    ) -> RedisResult<Self> {
        let mut wire = if sharded {
            let (sender, pushes) = mpsc::unbounded_channel();
            Self::Sharded(pushing(client, sender).await?, pushes, Vec::new())
        } else {
            let (sink, stream) = client.get_async_pubsub().await?.split();
            Self::Plain(sink, stream)
        };
        wire.subscribe_own(own).await?;
        match &mut wire {
            Self::Plain(sink, _) if !wanted.is_empty() => sink.subscribe(wanted).await?,
            Self::Plain(..) => {}
            // They may be in several slots, and each command must keep to one. All at once: one after
            // the other, many would take longer than we wait for a connection.
            Self::Sharded(connection, ..) => {
                let subscribe = |channel: &String| {
                    let (mut connection, channel) = (connection.clone(), channel.clone());
                    async move { self::sharded("SSUBSCRIBE", &channel, &mut connection).await }
                };
                try_join_all(wanted.iter().map(subscribe)).await?;
            }
        }
        Ok(wire)
    }

    /// The channel of this client, which belongs to no slot.
    pub(super) async fn subscribe_own(&mut self, own: &str) -> RedisResult<()> {
        match self {
            Self::Plain(sink, _) => sink.subscribe(own).await,
            Self::Sharded(connection, ..) => connection.subscribe(own).await,
        }
    }

    /// A channel that others use.
    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Plain(sink, _) => sink.subscribe(channel).await,
            Self::Sharded(connection, ..) => {
                sharded("SSUBSCRIBE", channel, connection).await.map(|_| ())
            }
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Plain(sink, _) => sink.unsubscribe(channel).await,
            Self::Sharded(connection, _, left) => {
                if sharded("SUNSUBSCRIBE", channel, connection).await? {
                    left.push(channel.to_owned());
                }
                Ok(())
            }
        }
    }

    /// Waits for what comes next. Cancel safe.
    pub(super) async fn next(&mut self) -> Heard {
        match self {
            Self::Plain(_, stream) => {
                stream.next().await.map_or(Heard::End, |message| read(&message))
            }
            Self::Sharded(_, pushes, left) => {
                let heard = pushes.recv().await.map_or(Heard::End, pushed);
                if let Heard::Silenced(channel) = &heard
                    && let Some(at) = left.iter().position(|left| left == channel)
                {
                    left.swap_remove(at);
                    return Heard::Other;
                }
                heard
            }
        }
    }
}

/// Whether the server has done it. One that does not have the slot says so: it is not the connection's
/// fault.
async fn sharded(
    command: &str,
    channel: &str,
    connection: &mut MultiplexedConnection,
) -> RedisResult<bool> {
    let answer: Result<Value, RedisError> =
        redis::cmd(command).arg(channel).query_async(connection).await;
    match answer {
        Err(error) if !matches!(error.kind(), ErrorKind::Server(_)) => Err(error),
        answer => Ok(answer.is_ok()),
    }
}

fn read(message: &Msg) -> Heard {
    message
        .get_payload::<String>()
        .map_or(Heard::Other, |text| Heard::Message(message.get_channel_name().to_owned(), text))
}

fn pushed(push: PushInfo) -> Heard {
    match push.kind {
        PushKind::Message | PushKind::SMessage => {
            Msg::from_push_info(push).map_or(Heard::Other, |message| read(&message))
        }
        PushKind::SUnsubscribe => {
            let channel = push.data.first().map(redis::from_redis_value_ref::<String>);
            channel.and_then(Result::ok).map_or(Heard::Other, Heard::Silenced)
        }
        PushKind::Disconnection => Heard::End,
        _ => Heard::Other,
    }
}
