//! Looking at a Redis server, and forcing it.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use redis::Value;

use super::answer::strange;
use super::commands::may_pass;
use super::layout::name_of_state;
use super::{NOBODY, Redis};
use crate::backend::{Admin, Eviction, Holding, Status};
use crate::error::Result;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;
use crate::url::Dialect;

/// So many names are looked at at the same time.
const AT_ONCE: usize = 64;

#[async_trait]
impl Admin for Redis {
    /// What has a state of ours by that, mutexes and Redisson's own locks by their form. Takes time in
    /// proportion to the size of the database, in small steps.
    async fn list(&self) -> Result<Vec<Status>> {
        let prefix = &self.prefix;
        let escaped = prefix.replace(['*', '?', '[', ']', '\\'], "?");
        let mut names = Vec::new();
        for node in self.server.nodes.all().await? {
            let commands = &node.commands;
            for pattern in [format!("lockkeeper:{{{escaped}*"), format!("lockkeeper::{escaped}*")] {
                let keys = commands.scan(&pattern, "string").await?;
                names.extend(keys.iter().filter_map(|key| name_of_state(key, prefix)));
            }
            let all = format!("{escaped}*");
            let locks = match self.dialect {
                Dialect::Redisson => {
                    commands.only_locks(commands.scan(&all, "hash").await?).await?
                }
                Dialect::Plain => commands.only_ours(commands.scan(&all, "string").await?).await?,
            };
            names.extend(locks.iter().filter_map(|key| key.strip_prefix(prefix)?.parse().ok()));
        }
        names.sort();
        names.dedup();
        let shown = futures_util::stream::iter(names)
            .map(async |name| match self.show(&name).await {
                // One that makes no sense, or is in use in the other dialect.
                Err(error) if !may_pass(&error) => Ok(Status::unreadable(name)),
                shown => shown,
            })
            .buffered(AT_ONCE);
        let shown: Vec<Status> = shown.try_collect().await?;
        // What was released meanwhile is not there any more.
        Ok(shown.into_iter().filter(|status| status.kind.is_some()).collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let show = &self.server.scripts.show;
        let answer: Vec<Value> = self.server.run(show, &self.lock(name)?, NOBODY, &[]).await?;
        let words: Option<Vec<String>> =
            answer.iter().map(|word| redis::from_redis_value_ref(word).ok()).collect();
        let words = words.filter(|words| words.len() >= 3).ok_or_else(|| strange(&answer))?;
        Ok(status(name, &words))
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        // Who comes after this is not meant, however late the request arrives.
        let seen = self.show(name).await?.holders.iter().map(|holder| holder.token.get()).max();
        let words = [reason, &seen.unwrap_or(0).to_string()];
        let evict = &self.server.scripts.evict;
        let answer: Vec<Value> = self.server.run(evict, &self.lock(name)?, NOBODY, &words).await?;
        let words: Option<Vec<String>> =
            answer.iter().map(|word| redis::from_redis_value_ref(word).ok()).collect();
        let words = words.ok_or_else(|| strange(&answer))?;
        let token = words.first().and_then(|word| word.parse().ok()).and_then(Token::new);
        let token = token.ok_or_else(|| strange(&answer))?;
        Ok(Eviction { holders: words[1..].iter().map(|who| owner(who)).collect(), token })
    }
}

/// The words of `show.lua`.
fn status(name: &Name, words: &[String]) -> Status {
    let number = |word: &str| word.parse::<u64>().ok();
    let now = number(&words[0]).unwrap_or(0);
    let mut status = Status {
        name: name.clone(),
        kind: (!words[1].is_empty()).then(|| words[1].clone()),
        holders: Vec::new(),
        waiters: Vec::new(),
        count: words[2].parse().ok(),
    };
    let mut rest = words[3..].iter().map(String::as_str);
    while let Some(what) = rest.next() {
        let (Some(who), Some(kind)) = (rest.next(), rest.next()) else { break };
        let family = match kind {
            "permit" => "semaphore",
            "mutex" | "fair-mutex" => "mutex",
            _ => "read-write lock",
        };
        status.kind.get_or_insert_with(|| family.to_owned());
        if what == "q" {
            status.waiters.push(owner(who));
            continue;
        }
        let (Some(token), Some(from), Some(to)) = (rest.next(), rest.next(), rest.next()) else {
            break;
        };
        let held = Duration::from_millis(now.saturating_sub(number(from).unwrap_or(now)));
        let left = |to: u64| Duration::from_millis(to.saturating_sub(now));
        status.holders.push(Holding {
            owner: owner(who),
            token: number(token).and_then(Token::new).unwrap_or(Token::MIN),
            held,
            lease_left: number(to).map(left),
        });
    }
    status
}

/// An owner as the server has it: ours, or one of Redisson's, which have the same form, or what
/// another client has put there.
fn owner(text: &str) -> Owner {
    let text = text.strip_suffix(":write").unwrap_or(text);
    Owner::try_from(text.to_owned()).unwrap_or_else(|_| Owner::foreign(text))
}
