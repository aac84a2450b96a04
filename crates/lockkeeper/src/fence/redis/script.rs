//! Scripts with a condition before them.

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};

use super::super::{Error, Result};

/// A script of Redis that runs only if its holder is not too late. Made once, used often.
///
/// It is written as any other: `KEYS[1]` is the fenced key, then come the other keys and the arguments of
/// the call. The comparison goes before it in the same script, so the server does both in one step. It must
/// begin with a statement; a first line `#!lua …` stays the first.
///
/// ```
/// use lockkeeper::fence::redis::Script;
/// let pay = Script::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// # drop(pay);
/// ```
pub struct Script {
    fenced: Text,
    marked: Text,
}

/// A text and what the server calls it.
struct Text {
    lua: String,
    hash: String,
}

impl Text {
    fn new(before: &str, lua: &str) -> Self {
        let (first, rest) = match lua.starts_with("#!") {
            true => lua.split_once('\n').unwrap_or((lua, "")),
            false => ("", lua),
        };
        let newline = if first.is_empty() { "" } else { "\n" };
        let lua = [first, newline, before, include_str!("own.lua"), rest].concat();
        let hash = redis::Script::new(&lua).get_hash().to_owned();
        Self { lua, hash }
    }
}

/// What a script is conditional on: the key that it is in, and what it must be.
pub(super) struct Condition<'a> {
    pub(super) by: By,
    pub(super) at: &'a [u8],
    pub(super) argument: &'a str,
    /// How long a fence is remembered, in milliseconds, or nothing.
    pub(super) keep: &'a str,
}

#[derive(Clone, Copy)]
pub(super) enum By {
    Token,
    Mark,
}

impl Script {
    /// A script with this text, which is not looked at: a mistake in it is seen when it runs.
    pub fn new(lua: &str) -> Self {
        let fenced = Text::new(include_str!("fence.lua"), lua);
        Self { fenced, marked: Text::new(include_str!("marked.lua"), lua) }
    }

    /// Runs it. The keys and arguments of the condition come before its own.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        condition: &Condition<'_>,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<T, RedisError> {
        let text = match condition.by {
            By::Token => &self.fenced,
            By::Mark => &self.marked,
        };
        let command = |how: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(how).arg(script).arg(keys.len() + 1).arg(condition.at).arg(keys);
            command.arg(condition.argument).arg(condition.keep).arg(arguments);
            command
        };
        match command("EVALSHA", &text.hash).query_async(connection).await {
            // With its text, and not loaded first: it may be forgotten again in between, and in a
            // cluster it must be at the master of these keys.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                command("EVAL", &text.lua).query_async(connection).await
            }
            answer => answer,
        }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("hash", &self.fenced.hash).finish_non_exhaustive()
    }
}

/// The first words of an error that a condition of ours answers with, and the word after it.
pub(super) fn refusal(error: &RedisError) -> Option<(&str, &str)> {
    let word = error.detail().unwrap_or_default().split(' ').next().unwrap_or_default();
    error.code().filter(|code| code.starts_with("LK")).map(|code| (code, word))
}

/// What became of something that was only read, or refused.
pub(super) fn store(context: String, source: RedisError) -> Error {
    Error::Store { context, source: Some(source.into()) }
}

/// What became of a write without an answer of ours.
pub(super) fn written(context: String, source: RedisError) -> Error {
    // Whatever is no answer of the server came on the way to it or from it.
    let on_the_way = source.is_io_error() || source.is_timeout() || source.is_connection_dropped();
    // Or there was one, to something that was done, and it is not what the caller can read.
    let unread = matches!(source.kind(), ErrorKind::Parse | ErrorKind::UnexpectedReturnType);
    match unread || (on_the_way && !source.is_connection_refusal()) {
        true => Error::Unknown { context, source: Some(source.into()) },
        false => store(context, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_says_of_itself_stays_its_first_line() {
        let plain = Script::new("return 1");
        assert!(plain.fenced.lua.starts_with("-- Goes before"));
        assert!(plain.fenced.lua.ends_with("return 1"));
        let said = Script::new("#!lua flags=allow-oom\nreturn 1");
        assert!(said.fenced.lua.starts_with("#!lua flags=allow-oom\n-- Goes before"));
        assert!(said.marked.lua.ends_with("\nreturn 1"));
        assert_ne!(said.marked.hash, said.fenced.hash);
    }
}
