//! Who is inside the service, by lock: requests under one token together, under different ones never.
//!
//! Comparing tokens at the door is not enough. A request that was let in may be slow, because its client was
//! stopped in the middle of the body, and would write after the requests of the next holder. So whoever
//! comes with a newer token waits until those with older ones have left, and when they do not, they are shown out.

use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Name;
use crate::token::Token;

/// All locks that somebody is here for.
#[derive(Debug, Default)]
pub(super) struct Turns {
    rooms: Mutex<HashMap<Name, Room>>,
}

#[derive(Debug, Default)]
struct Room {
    /// Requests that have arrived and not left, inside or not. While there are any nothing is forgotten.
    present: usize,
    /// The largest token that has asked to go in.
    newest: Option<Token>,
    /// Who is inside: under which token, and how many.
    inside: Option<(Token, usize)>,
    /// Those with older ones must leave.
    closed_below: Option<Token>,
    changed: Arc<Notify>,
}

/// What a request with this token may do.
#[derive(Debug, PartialEq, Eq)]
enum Door {
    Open,
    Wait,
    Stale(Token),
}

/// How a request got in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    AtOnce,
    /// Its token may have become too old elsewhere.
    AfterWaiting,
}

/// Why a request does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shut {
    /// Somebody newer was here.
    Stale(Token),
    /// Those with older tokens have not left although they must.
    Busy,
}

impl Room {
    fn ask(&mut self, token: Token) -> Door {
        let newest = *self.newest.insert(self.newest.map_or(token, |newest| newest.max(token)));
        match &mut self.inside {
            _ if newest > token => return Door::Stale(newest),
            Some((other, _)) if *other != token => return Door::Wait,
            Some((_, count)) => *count += 1,
            None => self.inside = Some((token, 1)),
        }
        Door::Open
    }

    fn leave(&mut self) {
        match &mut self.inside {
            Some((_, count)) if *count > 1 => *count -= 1,
            _ => self.inside = None,
        }
    }
}

impl Turns {
    /// To be called before the token is compared: nobody can come and go unnoticed in between.
    pub(super) fn arrive(self: &Arc<Self>, name: &Name) -> Arrived {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(name.clone()).or_default();
        room.present += 1;
        let changed = Arc::clone(&room.changed);
        Arrived { turns: Arc::clone(self), name: name.clone(), changed, inside: None }
    }
}

/// A request that is here; it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Arrived {
    turns: Arc<Turns>,
    name: Name,
    changed: Arc<Notify>,
    inside: Option<Token>,
}

impl Arrived {
    fn room<T>(&self, look: impl FnOnce(&mut Room) -> T) -> T {
        look(self.turns.rooms.lock().entry(self.name.clone()).or_default())
    }

    /// Waits until nobody with an older token is inside; after `patience` they must leave, for which they have as long
    /// again.
    pub(super) async fn enter(&mut self, token: Token, patience: Duration) -> Result<Entry, Shut> {
        let (mut door, mut entry) = (self.room(|room| room.ask(token)), Entry::AtOnce);
        for is_closing in [false, true] {
            if door != Door::Wait {
                break;
            }
            entry = Entry::AfterWaiting;
            if is_closing {
                self.room(|room| room.closed_below = room.closed_below.max(Some(token)));
                self.changed.notify_waiters();
            }
            let waiting = self.wait(|room| room.ask(token));
            door = tokio::time::timeout(patience, waiting).await.unwrap_or(Door::Wait);
        }
        match door {
            Door::Stale(newest) => Err(Shut::Stale(newest)),
            Door::Wait => Err(Shut::Busy),
            Door::Open => {
                self.inside = Some(token);
                Ok(entry)
            }
        }
    }

    /// Resolves when it must leave, with the newer token for which.
    pub(super) async fn shown_out(&self) -> Token {
        let token = self.inside;
        let door = self.wait(|room| match room.closed_below {
            Some(newer) if Some(newer) > token => Door::Stale(newer),
            _ => Door::Wait,
        });
        match door.await {
            Door::Stale(newer) => newer,
            // Not what the question above is ever answered with.
            Door::Open | Door::Wait => std::future::pending().await,
        }
    }

    async fn wait(&self, ask: impl Fn(&mut Room) -> Door) -> Door {
        loop {
            // Before the look: what changes after it is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.room(&ask) {
                Door::Wait => changed.await,
                other => return other,
            }
        }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if let hash_map::Entry::Occupied(mut room) =
            self.turns.rooms.lock().entry(self.name.clone())
        {
            if self.inside.is_some() {
                room.get_mut().leave();
            }
            room.get_mut().present -= 1;
            if room.get().present == 0 {
                room.remove();
            }
        }
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const IN: Option<Result<Entry, Shut>> = Some(Ok(Entry::AtOnce));

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    /// Arrives and enters at once, or has to wait.
    fn enter(arrived: &mut Arrived, number: u64) -> Option<Result<Entry, Shut>> {
        arrived.enter(token(number), Duration::from_secs(60)).now_or_never()
    }

    #[tokio::test]
    async fn those_under_one_token_are_inside_together_and_others_are_not() {
        let (turns, name) = (Arc::new(Turns::default()), "x".parse().unwrap());
        let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| turns.arrive(&name));
        assert_eq!((enter(&mut a, 5), enter(&mut b, 5)), (IN, IN));
        assert_eq!(enter(&mut c, 6), None);
        assert_eq!(enter(&mut d, 5), Some(Err(Shut::Stale(token(6)))), "overtaken by who waits");
        drop(a);
        assert_eq!(enter(&mut c, 6), None);
        drop(b);
        assert_eq!(enter(&mut c, 6), IN);
        let mut other = turns.arrive(&"y".parse().unwrap());
        assert_eq!(enter(&mut other, 1), IN, "another lock");
        drop((c, d, other));
        assert!(turns.rooms.lock().is_empty(), "nothing is kept");
    }

    #[tokio::test]
    async fn who_has_arrived_before_a_newer_one_came_and_went_is_not_let_in() {
        let (turns, name) = (Arc::new(Turns::default()), "x".parse().unwrap());
        let mut slow = turns.arrive(&name);
        let mut quick = turns.arrive(&name);
        assert_eq!(enter(&mut quick, 6), IN);
        drop(quick);
        assert_eq!(enter(&mut slow, 5), Some(Err(Shut::Stale(token(6)))));
    }

    #[tokio::test]
    async fn who_does_not_leave_is_shown_out() {
        let (turns, name) = (Arc::new(Turns::default()), "x".parse().unwrap());
        let [mut old, mut new] = [(); 2].map(|()| turns.arrive(&name));
        assert_eq!(enter(&mut old, 5), IN);
        let work = tokio::spawn(async move { old.shown_out().await });
        let entered = new.enter(token(6), Duration::from_millis(20)).await;
        assert_eq!(entered, Ok(Entry::AfterWaiting));
        assert_eq!(work.await.unwrap(), token(6));
        assert_eq!(new.shown_out().now_or_never(), None, "not who has shown the other out");
    }
}
