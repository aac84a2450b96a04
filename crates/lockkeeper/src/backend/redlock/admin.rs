//! Looking at the nodes, and forcing them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use redis::Value;

use super::RedLock;
use super::nodes::{Looking, Nodes, Shown, Step, owner_of, time_of_day, view, why};
use super::readmit::View;
use super::votes::majority;
use crate::backend::redis::layout::lock_key;
use crate::backend::{Admin, Eviction, Holding, Status};
use crate::error::Result;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// So many names are looked at at the same time.
const AT_ONCE: usize = 16;

/// What every node answers; an error unless a majority does.
async fn everywhere(nodes: &std::sync::Arc<Nodes>, what: &str, step: Step) -> Result<Vec<Value>> {
    let mut said: Vec<Option<Cow<'_, str>>> = vec![None; nodes.links.len()];
    let mut heard = Vec::new();
    let mut answers = nodes.ask_all(step);
    while let Some((at, answer)) = answers.next().await {
        match answer {
            Ok(answer) => {
                heard.push(answer);
                said[at] = Some("answered".into());
            }
            Err(error) => said[at] = Some(why(&error).into()),
        }
    }
    if heard.len() < majority(nodes.links.len()) {
        return Err(nodes.unavailable(what, said.into_iter()));
    }
    Ok(heard)
}

/// The value that a majority of the nodes has, with what one of them says about it.
fn holder(shown: &[Shown], nodes: usize) -> Option<&Shown> {
    let mut votes: HashMap<&str, (usize, &Shown)> = HashMap::new();
    for shown in shown.iter().filter(|shown| !shown.value.is_empty()) {
        let (count, best) = votes.entry(&shown.value).or_insert((0, shown));
        *count += 1;
        // One that has not heard of the second phase does not know the token.
        if shown.token > best.token {
            *best = shown;
        }
    }
    votes.into_values().find(|(count, _)| *count >= majority(nodes)).map(|(_, shown)| shown)
}

#[async_trait]
impl Admin for RedLock {
    /// Mutexes of ours, by their form. Takes time in proportion to the size of the databases.
    async fn list(&self) -> Result<Vec<Status>> {
        let prefix = &self.nodes.prefix;
        let escaped = prefix.replace(['*', '?', '[', ']', '\\'], "?");
        let pattern = format!("{escaped}*");
        let mut said: Vec<Option<Cow<'_, str>>> = Vec::new();
        let mut names = Vec::new();
        for link in &self.nodes.links {
            let found = async {
                let keys = link.commands.scan(&pattern, "string").await?;
                link.commands.only_ours(keys).await
            };
            match found.await {
                Ok(found) => {
                    names.extend(
                        found.iter().filter_map(|key| key.strip_prefix(prefix)?.parse().ok()),
                    );
                    said.push(None);
                }
                Err(error) => said.push(Some(why(&error).into())),
            }
        }
        let answered = said.iter().filter(|said| said.is_none()).count();
        if answered < majority(said.len()) {
            return Err(self.nodes.unavailable("listing", said.into_iter()));
        }
        names.sort();
        names.dedup();
        let shown = futures_util::stream::iter(names)
            .map(async |name: Name| self.show(&name).await)
            .buffered(AT_ONCE);
        let shown: Vec<Status> = shown.try_collect().await?;
        // What was released meanwhile, or is held by no majority, is not there.
        Ok(shown.into_iter().filter(|status| status.kind.is_some()).collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let lock = lock_key(&self.nodes.prefix, name);
        let answers = everywhere(&self.nodes, "looking", self.nodes.show(&lock)).await?;
        let shown: Vec<Shown> = answers.iter().filter_map(Shown::read).collect();
        let mut status = Status {
            name: name.clone(),
            kind: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            count: None,
        };
        if let Some(holder) = holder(&shown, self.nodes.links.len()) {
            status.holders.push(Holding {
                owner: owner(owner_of(&holder.value)),
                token: Token::new(holder.token).unwrap_or(Token::MIN),
                held: held(&holder.value),
                lease_left: Some(holder.left),
            });
        }
        let longest = shown.iter().max_by_key(|shown| shown.waiters.len());
        let mut waiters: Vec<&String> = longest.iter().flat_map(|shown| &shown.waiters).collect();
        for waiter in shown.iter().flat_map(|shown| &shown.waiters) {
            if !waiters.contains(&waiter) {
                waiters.push(waiter);
            }
        }
        status.waiters = waiters.into_iter().map(|who| owner(who)).collect();
        let in_use = !status.holders.is_empty() || !status.waiters.is_empty();
        status.kind = in_use.then(|| "mutex".to_owned());
        Ok(status)
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let (nodes, lock) = (&self.nodes, lock_key(&self.nodes.prefix, name));
        let answers = everywhere(nodes, "looking", nodes.show(&lock)).await?;
        let shown: Vec<Shown> = answers.iter().filter_map(Shown::read).collect();
        // Who comes after this is not meant, however late the request arrives.
        let values: Vec<String> = match holder(&shown, nodes.links.len()) {
            Some(holder) => vec![holder.value.clone()],
            // Those that are in the way where the others are down.
            None => {
                let values = shown.iter().map(|shown| shown.value.clone());
                let values: BTreeSet<String> = values.filter(|value| !value.is_empty()).collect();
                values.into_iter().collect()
            }
        };
        let views = everywhere(nodes, "reading the counters", nodes.look(Looking::Only)).await?;
        let counters = views.iter().filter_map(|answer| match view(answer).0 {
            View::Voting(memory) => Some(memory.counter),
            _ => None,
        });
        let token = counters.max().unwrap_or(0) + 1;
        // First the counters: whoever takes it next must get a larger token.
        let raised = everywhere(nodes, "raising", nodes.raise(&lock, "", (token, token))).await?;
        if raised.iter().filter(|done| **done == Value::Int(1)).count()
            < majority(nodes.links.len())
        {
            return Err(nodes.unavailable("raising the token", std::iter::empty()));
        }
        let holders = values.iter().map(|value| owner(owner_of(value))).collect();
        for value in &values {
            everywhere(nodes, "evicting", nodes.evict(&lock, value, reason)).await?;
        }
        Ok(Eviction { holders, token: Token::new(token).unwrap_or(Token::MIN) })
    }
}

fn owner(text: &str) -> Owner {
    Owner::try_from(text.to_owned()).unwrap_or_else(|_| Owner::foreign(text))
}

/// For how long a lock of ours has been held: by our clock and that of its holder, for people only.
fn held(value: &str) -> Duration {
    let since = value.rsplit('#').next().and_then(|since| since.parse().ok()).unwrap_or(u64::MAX);
    let now = u64::try_from(time_of_day().as_micros()).unwrap_or(0);
    Duration::from_micros(now.saturating_sub(since))
}
