//! Locks held by a majority of independent Redis servers, with a fencing token that can be trusted.
//!
//! # How it works
//!
//! Three or more Redis servers that know nothing of each other are the *nodes*. A lock is, at each
//! node, a string that expires: `SET name value NX PX`, which is also how redsync, node-redlock and
//! others take it, so they and this backend exclude each other on the same nodes. All nodes are asked
//! at the same time, and the answer is certain as soon as a majority agrees, one way or the other.
//! What a majority gave after `start` is ours until `start + ttl - drift`, with a drift of 1 % and 2 ms.
//! An attempt that fails is undone at all nodes.
//!
//! Beside its locks each node has a *record*: a counter, and the run (`run_id`) in which it votes.
//!
//! **Tokens.** The request to take a lock carries a proposal: tokens above every counter that this
//! client has seen. A node that takes the lock and whose counter is lower counts up to the proposal in
//! the same step, and says so. If a majority did, the proposal is the token: one round trip. Otherwise
//! there is a second phase: the token is larger than every counter that the majority told, and is
//! written to those same nodes, each of which counts up to it only if the lock is still ours there. It
//! is granted when a majority has written it in time.
//!
//! *Why they grow.* Take two grants A and B of one name, each written at a majority while it held the
//! lock there. Both majorities have a node in common. Each value is taken at most once at a node, so
//! there one of them held the lock first, say A, and had written its token before B took the lock. B's
//! token is larger than the counter which that node told B when B took it, or which it compared with
//! B's proposal; so it is larger than A's. No clock was mentioned: **two grants never have the same
//! token, and the order of tokens is the order at any common node, whatever clocks do.** With clocks
//! that run evenly, A's lease is over before B is granted, so that this is also the order of the grants.
//!
//! One counter serves all names of a node, so nothing has to live for ever on behalf of a name.
//!
//! **Nodes that forgot.** A node that is emptied (a restart without data, `FLUSHALL`) has lost locks
//! that it gave, and its counter. It has lost its record too, and without one the scripts themselves
//! refuse to vote: no client has to remember anything. A restarted node may have data that is older
//! than its last vote (a snapshot, an AOF that is synced once a second), and nothing shows how much
//! older; it is known by its run and treated the same. Some client
//!
//! 1. marks the node, which starts to wait by its own clock;
//! 2. after two seconds, the longest that an attempt may take, asks the other nodes for their counters
//!    and for how long a lease may still be alive that they voted for, and needs a majority of *all*
//!    nodes to answer, without this one;
//! 3. lets it vote once that time is over, with the largest of those counters.
//!
//! *Why that is enough.* With N nodes and majorities of m, 2m > N. A grant that counted the vote of the
//! forgetful node has m - 1 votes of others at least; m of the N - 1 others were asked; and
//! (m - 1) + m > N - 1, so one of them knows that grant. It knew it in time: a vote counts for two seconds
//! after its attempt began, which was before the node forgot, so before step 1. Hence no lease that the
//! node had a part in outlives its silence, and no token that it helped to write is above its counter.
//!
//! If a majority has forgotten, nobody knows what was granted. Then each waits for the default time to
//! live, or the largest that this client has used, and counts on from the time of day in microseconds,
//! which no counter reaches that goes up by less than a million a second: 7,800
//! attempts, of 128 tokens each. New servers look the same; `lockkeeper init`, or
//! [`Url::init`](crate::Url::init), says that they are new and lets them vote at once.
//!
//! # What it promises
//!
//! Never two holders, and tokens that grow, while any minority of the nodes is down, stopped, cut off,
//! restarted with or without its data, or emptied; while clocks run evenly to within 1 %. `explore.rs`
//! goes through every course of small cases. An error says what each node said.
//!
//! # When it breaks
//!
//! - A clock that jumps ahead past a lease, at as many nodes as it takes to make another majority with
//!   those that did not vote (one of three): two may hold the lock. Their tokens still differ and are in
//!   order, so a resource that checks them refuses the one that was overtaken.
//! - A node that forgets *and* whose clock is ahead: it may vote too early, and tokens may then repeat.
//! - A majority that forgets at the same time: leases that are longer than the wait above.
//! - Locks that a server evicts (`maxmemory-policy` other than `noeviction`), a node that is set back to
//!   an old state without a restart, and a client that was given another list of nodes.
//! - Other RedLock clients have no token, and vote at a node that forgot without waiting; nor does such a
//!   node wait for their leases, of which nobody keeps a record.
//!
//! There are no fair locks, readers, permits or latches: a majority can agree on one holder, not on an
//! order, and permits by majority do not work at all (with three nodes and two permits each, three
//! clients can each have a majority).
//!
//! # Cost
//!
//! One round trip to all nodes at the same time to lock, two when other clients have counted on
//! meanwhile; one to release. The slower half of the nodes does not matter. A message from each node wakes the one
//! who has waited longest; whoever waits asks again once a second at the latest, sooner when another
//! library has the lock, which sends no message.

mod admin;
mod again;
mod attend;
mod hold;
mod nodes;
mod readmit;
mod round;
mod trying;
mod votes;

#[cfg(test)]
mod explore;
#[cfg(test)]
mod node;
#[cfg(test)]
mod steps;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use redis::Value;

use self::again::{Outage, absent_for, ask_again, between, time_for};
use self::attend::{attend, look};
use self::hold::RedLockHold;
use self::nodes::{Answers, Looking, Member, Nodes, owner_of, time_of_day, vote, why};
use self::readmit::View;
use self::round::{Decision, Round};
use self::trying::Trying;
use self::votes::{Vote, majority, node_time, valid_until};
use super::redis::layout::lock_key;
use super::{Admin, Backend, Capabilities, Hold, Latches, Patience, Request};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::token::{Token, TokenBlock};
use crate::url::RedLockOptions;
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
const WAITER_LEASE: Duration = Duration::from_secs(5);
/// How long a lease may be that nobody remembers, unless the URL says more.
const UNKNOWN_LEASE: Duration = Duration::from_secs(30);

/// Locks at a majority of Redis servers.
pub struct RedLock {
    place: String,
    nodes: Arc<Nodes>,
}

impl RedLock {
    /// Connects. `place` is the URL without its password.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL or a file that makes no sense, or two addresses of one server;
    /// [`Error::Unavailable`] when no majority can be reached.
    pub async fn connect(place: String, options: &RedLockOptions) -> Result<Arc<Self>> {
        let unknown = options.ttl.unwrap_or_default().max(UNKNOWN_LEASE);
        let nodes = Nodes::new(options, unknown)?;
        let (views, _) = first_look(&nodes, Looking::Mark).await?;
        for view in &views {
            if let View::Voting(memory) = view {
                nodes.counter.fetch_max(memory.counter, Ordering::Relaxed);
            }
        }
        if views.iter().any(|view| matches!(view, View::Unmarked(_) | View::Marked { .. })) {
            attend(&nodes);
        }
        Ok(Arc::new(Self { place, nodes }))
    }

    /// Lets the nodes vote at once if all of them are new.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect), when not all nodes can be reached, and when no majority votes
    /// afterwards.
    pub async fn init(_place: String, options: &RedLockOptions) -> Result<()> {
        let nodes = Nodes::new(options, UNKNOWN_LEASE)?;
        let (views, _) = first_look(&nodes, Looking::Only).await?;
        if views.contains(&View::Unknown) {
            let context = "not all nodes can be reached: are they new?".into();
            return Err(Error::Unavailable { backend: "redlock", context, source: None });
        }
        if views.iter().all(|view| matches!(view, View::Unmarked(_))) {
            look(&nodes, Looking::Found).await;
        }
        let (views, _) = look(&nodes, Looking::Only).await;
        let voting = views.iter().filter(|view| matches!(view, View::Voting(_))).count();
        if voting < majority(views.len()) {
            let context = format!(
                "{voting} of {} nodes vote: the others lost their data, or a client was there before \
                 they were said to be new; they will vote by themselves when every lease from before \
                 is over",
                views.len()
            );
            return Err(Error::Unavailable { backend: "redlock", context, source: None });
        }
        Ok(())
    }

    /// One attempt: what came of it, when it began, and the answers that it did not wait for.
    async fn attempt(
        &self,
        lock: &str,
        request: &Request,
        value: &str,
        member: Member<'_>,
        first: u64,
    ) -> (Round, Decision, Instant, Answers) {
        let (nodes, ttl) = (&self.nodes, request.term.ttl());
        let time = time_for(request);
        let last = |first: u64| first + u64::from(request.tokens.max(1)) - 1;
        let start = Instant::now();
        let mut round = Round::new(nodes.links.len(), first);
        let tokens = (first, last(first));
        let step = nodes.take((lock, value, request.id), ttl, tokens, member);
        let mut answers = nodes.ask_all(step);
        let hear = |round: &mut Round, node, answer| {
            let vote = vote(answer);
            if let Vote::Yes { counter, .. } = vote {
                nodes.counter.fetch_max(counter, Ordering::Relaxed);
            }
            round.hear(node, vote);
        };
        let mut decision = self.gather(&mut round, &mut answers, start, (ttl, time), hear).await;
        if let Decision::Raise(first) = decision {
            let tokens = (first, last(first));
            let mut raised = nodes.ask(round.to_raise(), nodes.raise(lock, value, tokens));
            let hear = |round: &mut Round, node, answer: Result<Value>| {
                round.hear_raised(node, answer.is_ok_and(|done| done == Value::Int(1)));
            };
            decision = self.gather(&mut round, &mut raised, start, (ttl, time), hear).await;
            nodes.leave(raised);
            nodes.counter.fetch_max(tokens.1, Ordering::Relaxed);
        }
        (round, decision, start, answers)
    }

    /// Takes in answers until the decision is certain, or each node has had its time.
    async fn gather(
        &self,
        round: &mut Round,
        answers: &mut Answers,
        start: Instant,
        (ttl, time): (Duration, Duration),
        mut hear: impl FnMut(&mut Round, usize, Result<Value>) + Send,
    ) -> Decision {
        let until = tokio::time::sleep(time);
        tokio::pin!(until);
        loop {
            tokio::select! {
                biased;
                answer = answers.next() => match answer {
                    Some((node, answer)) => hear(round, node, answer),
                    None => round.close(time),
                },
                () = &mut until => round.close(time),
            }
            let fails = |node: usize| self.nodes.links[node].fails.load(Ordering::Relaxed);
            match round.decide(Instant::now().since(start), ttl) {
                // Others have a part of it: to keep ours while a node is waited for that is down is to
                // be in their way.
                Decision::Wait if round.hangs_on(fails) => return Decision::Refused,
                Decision::Wait => {}
                // To say why, and not to take a held lock for an outage.
                Decision::Refused if round.is_open() => {}
                decision => return decision,
            }
        }
    }

    /// Why there was no majority: what each node said.
    fn no_majority(&self, round: &Round) -> Error {
        let said = round.votes().iter().map(|vote| {
            vote.as_ref().map(|vote| match vote {
                Vote::Held { by, .. } => format!("held by {}", owner_of(by)).into(),
                vote => vote.to_string().into(),
            })
        });
        self.nodes.unavailable("the lock", said)
    }

    fn hold(
        &self,
        lock: String,
        request: &Request,
        value: String,
        first: u64,
        expires: Instant,
    ) -> Arc<RedLockHold> {
        let first = Token::new(first).unwrap_or(Token::MIN);
        let hold = Arc::new(RedLockHold {
            nodes: Arc::clone(&self.nodes),
            lock: lock.into(),
            value: value.into(),
            id: request.id,
            tokens: TokenBlock::new(first, request.tokens),
            expires,
            ttl: request.term.ttl(),
            loss: Loss::new(),
        });
        self.nodes.requests.hold(request.id, &hold);
        hold
    }
}

/// Looks at all nodes for the first time; an error when no majority answers.
async fn first_look(nodes: &Arc<Nodes>, what: Looking) -> Result<(Vec<View>, Vec<String>)> {
    let (views, runs) = look(nodes, what).await;
    let known: Vec<&String> = runs.iter().filter(|run| !run.is_empty()).collect();
    for (at, run) in known.iter().enumerate() {
        if known[..at].contains(run) {
            return Err(Error::Config(
                "two of the nodes are the same server: a majority takes three or more of their own"
                    .into(),
            ));
        }
    }
    if known.len() < majority(nodes.links.len()) {
        let mut said = vec![None; nodes.links.len()];
        let mut answers = nodes.ask_all(nodes.look(Looking::Only));
        while let Some((at, answer)) = answers.next().await {
            said[at] = Some(answer.map_or_else(|error| why(&error), |_| "answers".into()).into());
        }
        return Err(nodes.unavailable("connecting", said.into_iter()));
    }
    Ok((views, runs))
}

#[async_trait]
impl Backend for RedLock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair: false,
            read_write: false,
            fair_read_write: false,
            permits: false,
            latches: false,
            token_blocks: true,
            across_processes: true,
            frees_on_death: false,
        }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let (nodes, ttl) = (&self.nodes, request.term.ttl());
        let longest = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        nodes.longest.fetch_max(longest, Ordering::Relaxed);
        let lock = lock_key(&nodes.prefix, &request.name);
        let news = nodes.requests.expect(request.id);
        let mut trying = Trying::new(nodes, &lock, &request);
        let once = request.patience == Patience::TryOnce;
        let name = if once { String::new() } else { nodes.member(&request) };
        let member = Member { name: &name, lease: WAITER_LEASE, since: time_of_day() };
        // Several who try at once may each get some of the nodes: not the first time decides.
        let mut tries_left = if once { 4 } else { u32::MAX };
        let mut outage = Outage::default();
        let (mut waited, mut splits) = (false, 0_u32);
        let (value, first, expires) = loop {
            let first = nodes.propose(request.tokens);
            let in_a_hurry = time_for(&request) < node_time(ttl);
            let value = trying.begin(nodes.value(&request, first), member.name);
            let (round, decision, start, answers) =
                self.attempt(&lock, &request, &value, member, first).await;
            // Also when it is not missed: it will be when the next one fails.
            if round.votes().iter().flatten().any(|vote| matches!(vote, Vote::Absent(_))) {
                attend(nodes);
            }
            match decision {
                Decision::Granted(first) => {
                    trying.granted(&round, answers, waited);
                    break (value, first, valid_until(start, ttl));
                }
                // Not one that is being undone: that may arrive at any time.
                Decision::Found { value, token, left } if !nodes.is_given_up(&value) => {
                    trying.granted(&round, answers, waited);
                    break (value, token, valid_until(start, left));
                }
                _ => nodes.leave(answers),
            }
            trying.undo(&round).await;
            let took = Instant::now().since(start);
            waited = !once;
            tries_left -= 1;
            let contended = round.is_contended();
            let next = if contended {
                outage = Outage::none();
                if once && (round.holder().is_some() || tries_left == 0) {
                    return Ok(None);
                }
                splits = if round.holder().is_none() { splits + 1 } else { 0 };
                ask_again(&round, took, if once { 0 } else { splits })
            } else {
                let absent = absent_for(&round);
                outage.note(absent.is_some(), in_a_hurry, || self.no_majority(&round));
                if once || outage.is_too_long() {
                    return outage.error.map_or(Ok(None), Err);
                }
                absent.unwrap_or_default().clamp(between(50, 150), votes::ROUND / 4)
            };
            let patience = if once { Patience::Forever } else { request.patience };
            if !pause(patience, Some(Instant::now() + next), news.heard()).await {
                return outage.error.map_or(Ok(None), Err);
            }
        };
        drop(trying);
        let hold = self.hold(lock, &request, value, first, expires);
        // What was said to the waiter meanwhile may have been that it is gone already.
        if news.heard().now_or_never().is_some() {
            nodes.requests.check(Arc::clone(&hold) as _);
        }
        Ok(Some(hold))
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLock").field("place", &self.place).finish_non_exhaustive()
    }
}
