//! What the server says to a request, and in which words requests are put.

use std::time::Duration;

use redis::Value;

use super::WAITER_LEASE;
use crate::backend::{Kind, Request};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::token::{Token, TokenBlock};

/// The answer to a request.
pub(super) enum Answer {
    Granted(TokenBlock),
    /// When to ask again at the latest, and whether clients of Redisson have to do with it.
    Queued(Instant, bool),
    Busy,
}

impl Answer {
    pub(super) fn read(answer: &[Value], request: &Request) -> Result<Self> {
        match answer {
            [Value::Int(1), Value::Int(first), Value::Int(count)] => {
                block(*first, *count).map(Self::Granted).ok_or_else(|| strange(answer))
            }
            [Value::Int(0), Value::Int(next), Value::Int(strangers)] => {
                let heartbeat = WAITER_LEASE / 3;
                let next = u64::try_from(*next).map_or(heartbeat, Duration::from_millis);
                Ok(Self::Queued(Instant::now() + next.min(heartbeat), *strangers == 1))
            }
            [Value::Int(-1)] => Ok(Self::Busy),
            [Value::Int(-2)] => {
                let (name, owner) = (request.name.clone(), request.owner.clone());
                Err(Error::Upgrade { name, owner })
            }
            [Value::Int(-3), family] => {
                Err(wrong_kind(&request.name, family, request.kind.family()))
            }
            _ => Err(strange(answer)),
        }
    }
}

/// What the server says to a request that waits, without being asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It has been granted, after this question of its was answered; for this long at first.
    Granted { question: u32, tokens: TokenBlock, lease: Duration },
    /// Ask again after this time: others have their chance until then.
    Later(Duration),
}

impl Word {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
        match words.as_slice() {
            ["grant", question, first, count, lease] => {
                let tokens = block(first.parse().ok()?, count.parse().ok()?)?;
                let (question, lease) = (question.parse().ok()?, millis(lease)?);
                Some(Self::Granted { question, tokens, lease })
            }
            ["later", time] => millis(time).map(Self::Later),
            _ => None,
        }
    }
}

pub(super) fn block(first: i64, count: i64) -> Option<TokenBlock> {
    let first = u64::try_from(first).ok().and_then(Token::new)?;
    Some(TokenBlock::new(first, u32::try_from(count).ok().filter(|count| *count > 0)?))
}

pub(super) fn strange(answer: &[Value]) -> Error {
    let context = format!("the server gave an answer that makes no sense: {answer:?}");
    Error::Unavailable { backend: "redis", context, source: None }
}

pub(super) fn wrong_kind(name: &Name, family: &Value, asked: &'static str) -> Error {
    let family: String = redis::from_redis_value_ref(family).unwrap_or_default();
    let known = ["semaphore", "latch", "read-write lock", "mutex"];
    let used_as = known.into_iter().find(|known| *known == family).unwrap_or("something else");
    Error::WrongKind { name: name.clone(), used_as, asked }
}

/// A kind as the scripts know it, and of how many permits.
pub(super) fn kind_words(kind: Kind) -> (&'static str, u32) {
    match kind {
        Kind::Mutex => ("mutex", 1),
        Kind::FairMutex => ("fair-mutex", 1),
        Kind::Read => ("read", 1),
        Kind::Write => ("write", 1),
        Kind::FairRead => ("fair-read", 1),
        Kind::FairWrite => ("fair-write", 1),
        Kind::Permit { of } => ("permit", of),
    }
}

pub(super) fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_ignored() {
        let tokens = TokenBlock::new(Token::new(9).unwrap(), 2);
        let lease = Duration::from_secs(5);
        let granted = Word::Granted { question: 3, tokens, lease };
        assert_eq!(Word::parse("grant 3 9 2 5000"), Some(granted));
        assert_eq!(Word::parse("later 20"), Some(Word::Later(Duration::from_millis(20))));
        for strange in
            ["", "grant", "grant 3 0 1 50", "grant 3 9 0 50", "grant 3 9 1 x", "later -1"]
        {
            assert_eq!(Word::parse(strange), None, "{strange}");
        }
    }
}
