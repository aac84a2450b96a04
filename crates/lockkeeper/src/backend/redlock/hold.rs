//! A hold at a majority of the nodes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::Value;

use super::nodes::{Nodes, Step, absence, why};
use super::votes::{ROUND, certain, majority, node_time, valid_until};
use crate::backend::register::Check;
use crate::backend::{Hold, Release, Renewal};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::{Cause, Loss};
use crate::owner::RequestId;
use crate::token::TokenBlock;

pub(super) struct RedLockHold {
    pub(super) nodes: Arc<Nodes>,
    pub(super) lock: Box<str>,
    pub(super) value: Box<str>,
    pub(super) id: RequestId,
    pub(super) tokens: TokenBlock,
    pub(super) expires: Instant,
    pub(super) ttl: Duration,
    pub(super) loss: Loss,
}

/// What a majority says to a holder.
enum Outcome {
    Held,
    Lost(Cause),
}

impl RedLockHold {
    /// Asks all nodes whether the lock is ours; with a time, to let it begin anew.
    async fn ask(&self, step: Step, time: Duration) -> Result<Outcome> {
        let nodes = &self.nodes;
        let needed = majority(nodes.links.len());
        let mut answers = nodes.ask_all(step);
        let mut said: Vec<Option<Cow<'_, str>>> = vec![None; nodes.links.len()];
        let (mut yes, mut no, mut reason) = (0, 0, None);
        let until = tokio::time::sleep(time);
        tokio::pin!(until);
        loop {
            // Lost, once no majority can be had although every other node says yes.
            if certain(yes, said.len() - yes - no, needed) == Some(false) {
                nodes.leave(answers);
                return Ok(Outcome::Lost(reason.map_or(Cause::Gone, Cause::Evicted)));
            }
            if yes >= needed {
                nodes.leave(answers);
                return Ok(Outcome::Held);
            }
            let (at, answer) = tokio::select! {
                answer = answers.next() => match answer {
                    Some(answer) => answer,
                    None => return Err(nodes.unavailable("keeping the lock", said.into_iter())),
                },
                () = &mut until => {
                    nodes.leave(answers);
                    return Err(nodes.unavailable("keeping the lock", said.into_iter()));
                }
            };
            let words = match answer {
                Ok(Value::Array(words)) => words,
                Ok(_) => Vec::new(),
                Err(error) => {
                    said[at] = Some(why(&error).into());
                    continue;
                }
            };
            said[at] = Some(match words.as_slice() {
                [Value::Int(1)] => {
                    yes += 1;
                    "yes".into()
                }
                [Value::Int(0), evicted] => {
                    no += 1;
                    let evicted: String = redis::from_redis_value_ref(evicted).unwrap_or_default();
                    reason = reason.or((!evicted.is_empty()).then_some(evicted));
                    "does not know the hold".into()
                }
                [Value::Int(-1), why, left] => {
                    no += 1;
                    super::attend::attend(nodes);
                    absence(why, left).to_string().into()
                }
                other => format!("an answer that makes no sense: {other:?}").into(),
            });
        }
    }
}

#[async_trait]
impl Check for RedLockHold {
    async fn check(&self) {
        match self.ask(self.nodes.renew(&self.lock, &self.value, None), ROUND / 2).await {
            Ok(Outcome::Lost(cause)) => self.loss.declare(cause),
            Ok(Outcome::Held) => {}
            // The next renewal asks again.
            Err(error) => tracing::debug!(%error, "could not check a hold"),
        }
    }
}

#[async_trait]
impl Hold for RedLockHold {
    fn tokens(&self) -> TokenBlock {
        self.tokens
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(self.expires)
    }

    fn loss(&self) -> &Loss {
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let start = Instant::now();
        let longest = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.nodes.longest.fetch_max(longest, Ordering::Relaxed);
        let step = self.nodes.renew(&self.lock, &self.value, Some(ttl));
        Ok(match self.ask(step, node_time(ttl)).await? {
            Outcome::Lost(cause) => Renewal::Lost(cause),
            Outcome::Held if Instant::now().since(start) >= ROUND => {
                // We were stopped meanwhile: what a node has forgotten since may count here.
                return Err(self.nodes.unavailable("keeping the lock in time", std::iter::empty()));
            }
            Outcome::Held => Renewal::Held(Some(valid_until(start, ttl))),
        })
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let what = "read locks".into();
        Err(crate::error::Error::Unsupported { backend: "redlock", what })
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        let nodes = &self.nodes;
        let needed = majority(nodes.links.len());
        let mut answers = nodes.ask_all(nodes.release(&self.lock, &self.value, ""));
        let mut said: Vec<Option<Cow<'_, str>>> = vec![None; nodes.links.len()];
        let (mut gone, mut released) = (0, 0);
        let until = tokio::time::sleep(node_time(self.ttl));
        tokio::pin!(until);
        // Free once a majority has it no more; which of them it was that had it may take all answers.
        let answer = loop {
            if released >= needed {
                break Ok(Release::Released);
            }
            if gone - released > nodes.links.len() - needed {
                break Ok(Release::NotHeld);
            }
            let next = tokio::select! {
                answer = answers.next() => answer,
                () = &mut until => None,
            };
            match next {
                Some((at, Ok(answer))) => {
                    gone += 1;
                    released += usize::from(answer == Value::Int(1));
                    said[at] = Some("released".into());
                }
                Some((at, Err(error))) => said[at] = Some(why(&error).into()),
                None if gone >= needed => break Ok(Release::Released),
                None => break Err(nodes.unavailable("releasing", said.clone().into_iter())),
            }
        };
        let failed = said
            .iter()
            .enumerate()
            .filter(|(_, said)| said.as_deref().is_some_and(|said| said != "released"));
        let mut failed: Vec<usize> = failed.map(|(at, _)| at).collect();
        if answers.is_empty() && failed.is_empty() {
            return answer;
        }
        // Where it was not heard it is said again: the key would be in the way there.
        let step = nodes.release(&self.lock, &self.value, "");
        let (nodes, value, ttl) = (Arc::clone(nodes), self.value.clone(), self.ttl);
        self.nodes.runtime().spawn(async move {
            while let Some((at, answer)) = answers.next().await {
                if answer.is_err() {
                    failed.push(at);
                }
            }
            if !failed.is_empty() {
                nodes.undo(failed, &value, step, ttl);
            }
        });
        answer
    }
}

impl Drop for RedLockHold {
    fn drop(&mut self) {
        self.nodes.requests.forget(self.id);
    }
}

impl fmt::Debug for RedLockHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLockHold")
            .field("lock", &self.lock)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
