//! What the body of a transaction has in hand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex as SyncMutex;
use redis::{Arg, Cmd, FromRedisValue};
use tokio::sync::Mutex;

use super::super::commands::{COMMAND_TIME, LOOK_TIME, cause, may_pass};
use super::super::slots::slot;
use super::own::{Own, in_time};
use crate::error::{Error, Result};

/// What belongs to the connection, not to the data: it would take the transaction apart.
const REFUSED: [&str; 23] = [
    "ASKING",
    "AUTH",
    "CLIENT",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "PUNSUBSCRIBE",
    "QUIT",
    "READONLY",
    "READWRITE",
    "RESET",
    "SELECT",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "SYNC",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WATCH",
];

/// A transaction under way: reads now, and writes later, all at once.
///
/// Of no use any more when the body that it was given to has ended.
pub struct Tx(Arc<Shared>);

pub(super) struct Shared {
    /// Taken away when the body has ended.
    own: Mutex<Option<Own>>,
    /// `None` when the body has ended.
    queued: SyncMutex<Option<Vec<Cmd>>>,
    /// The body has ended, and nobody waits for the read that goes on.
    abandoned: AtomicBool,
    /// The connection failed: what was read is not to be trusted.
    broken: AtomicBool,
    /// In a cluster, where all keys are.
    slot: Option<u16>,
}

impl Tx {
    pub(super) fn new(own: Own, slot: Option<u16>) -> (Self, Arc<Shared>) {
        let shared = Arc::new(Shared {
            own: Mutex::new(Some(own)),
            queued: SyncMutex::new(Some(Vec::new())),
            abandoned: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            slot,
        });
        (Self(Arc::clone(&shared)), shared)
    }

    /// Reads, at once. What is read is good if the transaction is committed, and only for keys that are
    /// watched; between two reads anything can happen, and then there is no commit.
    ///
    /// Reading is all that it is good for: a command that writes has its effect whatever becomes of the
    /// transaction, and one that writes a watched key keeps it from ever being committed.
    ///
    /// # Errors
    ///
    /// What the server said, as [`Error::Unavailable`]; [`Error::Config`] for a command that belongs to
    /// the connection, and after the end of the body. When the connection fails, the body is run again
    /// whatever it returns, so return the error.
    pub async fn read<T: FromRedisValue>(&self, command: Cmd) -> Result<T> {
        let command = checked(&command)?;
        self.ask(&command).await
    }

    /// Watches more keys. What was read of them before does not count.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read); [`Error::Unsupported`] for a key in another slot of a cluster.
    pub async fn watch<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> Result<()> {
        let keys: Vec<String> = keys.into_iter().map(|key| key.as_ref().to_owned()).collect();
        if let Some(other) = keys.iter().find(|key| self.0.slot.is_some_and(|at| slot(key) != at)) {
            return Err(several_slots(other));
        }
        if keys.is_empty() {
            return Ok(());
        }
        self.ask(redis::cmd("WATCH").arg(keys)).await
    }

    /// Adds a command to what is carried out at the end, all at once and in this order. Its reply is in
    /// the [`Outcome`](super::Outcome).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a command that belongs to the connection, and after the end of the body.
    pub fn queue(&self, command: Cmd) -> Result<()> {
        let command = checked(&command)?;
        // After the end nobody would carry it out.
        self.0.queued.lock().as_mut().ok_or_else(over)?.push(command);
        Ok(())
    }

    /// Forgets what was queued so far, as `DISCARD` does; it never left this process. What was read is
    /// still checked in the end, and more can be queued. To end it all with nothing written and nothing
    /// checked, return an error.
    pub fn discard(&self) {
        if let Some(queued) = &mut *self.0.queued.lock() {
            queued.clear();
        }
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let mut alone = self.0.own.lock().await;
        let own = alone.as_mut().ok_or_else(over)?;
        let answer = in_time(LOOK_TIME, command.query_async(&mut own.open.connection)).await;
        if self.0.abandoned.load(Ordering::SeqCst) {
            *alone = None;
            return Err(over());
        }
        // Elsewhere for good: to run the body again would not help.
        let redirected = |error: &Error| cause(error)?.redirect_node().map(|(_, slot)| slot);
        let elsewhere = answer.as_ref().err().and_then(redirected);
        if self.0.slot.zip(elsewhere).is_some_and(|(ours, elsewhere)| ours != elsewhere) {
            return Err(several_slots("a key of a command"));
        }
        // Also one that may merely pass: a server that has no data yet, or not any more.
        let failed = |error: &Error| may_pass(error) || redirected(error).is_some();
        if answer.as_ref().err().is_some_and(failed) {
            self.0.broken.store(true, Ordering::SeqCst);
        }
        answer
    }
}

impl Shared {
    /// Ends the body's part: its connection, what it queued, and whether the connection is any good.
    pub(super) async fn end(&self) -> Result<(Own, Vec<Cmd>, bool)> {
        let queued = self.queued.lock().take().unwrap_or_default();
        // A read that goes on behind the body's back: not for ever.
        let own = tokio::time::timeout(COMMAND_TIME, self.own.lock()).await;
        let own = own.ok().and_then(|mut own| own.take());
        let Some(own) = own else {
            self.abandoned.store(true, Ordering::SeqCst);
            // Unless that read sees to it: the connection is closed although somebody has the `Tx`.
            drop(self.own.try_lock().ok().and_then(|mut own| own.take()));
            let context = "the body of a transaction ended while it was still reading";
            return Err(Error::Config(context.into()));
        };
        Ok((own, queued, self.broken.load(Ordering::SeqCst)))
    }
}

fn over() -> Error {
    Error::Config("a transaction was used after its body had ended".into())
}

/// The keys of a transaction in a cluster have to be at one server, and stay together when they move.
pub(super) fn several_slots(what: &str) -> Error {
    Error::Unsupported {
        backend: "redis",
        what: format!(
            "a transaction over several slots of a cluster, and {what:?} is in another one: give all \
             keys the same {{tag}}"
        ),
    }
}

/// What a command is called.
pub(super) fn called(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(Arg::Simple(word)) => String::from_utf8_lossy(word).to_ascii_uppercase(),
        _ => String::new(),
    }
}

/// The bare words of a command, if it may be part of a transaction.
fn checked(command: &Cmd) -> Result<Cmd> {
    let name = called(command);
    if name.is_empty() || REFUSED.contains(&name.as_str()) {
        return Err(Error::Config(format!("{name:?} cannot be part of a transaction")));
    }
    let mut words = Cmd::new();
    for word in command.args_iter() {
        match word {
            Arg::Simple(word) => words.arg(word),
            _ => words.arg(0),
        };
    }
    Ok(words)
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("queued", &self.0.queued.lock().as_ref().map(Vec::len))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_connection_are_refused() {
        for name in ["multi", "EXEC", "Watch", "client", "readonly", "ASKING", "sync", ""] {
            let error = checked(redis::cmd(name).arg("x")).unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{name}: {error}");
        }
        let words = checked(redis::cmd("set").arg("a").arg(7)).unwrap();
        assert_eq!(called(&words), "SET");
        assert_eq!(
            words.get_packed_command(),
            redis::cmd("set").arg("a").arg(7).get_packed_command()
        );
    }
}
