//! One request while it tries: nothing of it stays at any node unless it is granted.

use std::sync::Arc;

use futures_util::StreamExt;

use super::WAITER_LEASE;
use super::attend::attend;
use super::nodes::{Answers, Nodes, vote};
use super::round::Round;
use super::votes::{Vote, node_time};
use crate::backend::Request;

/// An attempt that may have left something: undone when dropped, unless it is settled.
pub(super) struct Trying<'a> {
    nodes: &'a Arc<Nodes>,
    lock: &'a str,
    request: &'a Request,
    /// The value of the attempt that is under way, if any is.
    value: Option<String>,
    /// Who waits; nothing while nobody does.
    member: String,
    holds: bool,
}

impl<'a> Trying<'a> {
    pub(super) fn new(nodes: &'a Arc<Nodes>, lock: &'a str, request: &'a Request) -> Self {
        Self { nodes, lock, request, value: None, member: String::new(), holds: false }
    }

    /// From now on there may be something to undo.
    pub(super) fn begin(&mut self, value: String, member: &str) -> String {
        member.clone_into(&mut self.member);
        self.value.insert(value).clone()
    }
}

impl Trying<'_> {
    /// Undoes the attempt. Waits for nodes that are known to have taken the lock; sees to the others in
    /// the background.
    pub(super) async fn undo(&mut self, round: &Round) {
        let Some(value) = self.value.take() else { return };
        let ttl = self.request.term.ttl();
        let (mut taken, mut unsure) = (Vec::new(), Vec::new());
        for (node, vote) in round.votes().iter().enumerate() {
            match vote {
                Some(Vote::Yes { .. }) => taken.push(node),
                None | Some(Vote::Silent(_)) => unsure.push(node),
                // Whoever undoes it may be pausing after a failure.
                Some(Vote::Mine { value: earlier, .. }) if self.nodes.is_given_up(earlier) => {
                    let step = self.nodes.retract(self.lock, earlier);
                    self.nodes.undo(vec![node], earlier, step, ttl);
                }
                Some(_) => {}
            }
        }
        if !unsure.is_empty() {
            self.nodes.undo(unsure, &value, self.nodes.retract(self.lock, &value), ttl);
        }
        if !taken.is_empty() {
            let step = self.nodes.retract(self.lock, &value);
            let undone = self.nodes.undo(taken, &value, step, ttl);
            let _ = tokio::time::timeout(node_time(ttl), undone).await;
        }
    }

    /// Granted: it has left the queue where it took the lock, and now leaves it everywhere else, also
    /// where the answer is still to come. `waited`: an earlier attempt may have put it into any of them.
    pub(super) fn granted(&mut self, round: &Round, mut answers: Answers, waited: bool) {
        (self.value, self.holds) = (None, true);
        let member = std::mem::take(&mut self.member);
        let queued = |vote: &Option<Vote>| match vote {
            Some(Vote::Yes { .. }) => false,
            Some(Vote::Held { .. }) => true,
            _ => waited,
        };
        let others = round.votes().iter().enumerate().filter(|(_, vote)| queued(vote));
        let others: Vec<usize> = others.map(|(node, _)| node).collect();
        if !others.is_empty() {
            let step = self.nodes.release(self.lock, "", &member);
            self.nodes.undo(others, "", step, WAITER_LEASE);
        }
        if answers.is_empty() {
            return;
        }
        let (nodes, lock) = (Arc::clone(self.nodes), self.lock.to_owned());
        self.nodes.runtime().spawn(async move {
            while let Some((node, answer)) = answers.next().await {
                match vote(answer) {
                    Vote::Held { .. } if !member.is_empty() => {
                        let step = nodes.release(&lock, "", &member);
                        nodes.undo(vec![node], "", step, WAITER_LEASE);
                    }
                    // However late it says so.
                    Vote::Absent(_) => attend(&nodes),
                    _ => {}
                }
            }
        });
    }
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if !self.holds {
            self.nodes.requests.forget(self.request.id);
        }
        if self.value.is_some() || !self.member.is_empty() {
            let value = self.value.take().unwrap_or_default();
            let all = (0..self.nodes.links.len()).collect();
            let ttl = self.request.term.ttl();
            let step = self.nodes.release(self.lock, &value, &self.member);
            self.nodes.undo(all, &value, step, ttl);
        }
    }
}
