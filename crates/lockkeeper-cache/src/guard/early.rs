//! How long a value lives, and when it is loaded anew before that.

use std::time::Duration;

use crate::cache::Inner;
use crate::entry::{Filled, Millis, Ticket, Value};
use crate::error::Error;
use crate::events::Event;
use crate::store::{PENDING, millis};

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// How long what is filled under this ticket is kept. Who reads it works out the same: a hit is a plain `GET`, and
    /// does not tell.
    pub(crate) fn lifetime(&self, null: bool, fill: Ticket) -> Duration {
        let ttl = if null { self.settings.null_ttl } else { self.settings.ttl };
        self.guards.shorten(ttl, fill)
    }

    /// Whether this hit should have the value loaded anew.
    pub(crate) fn is_due(&self, name: &str, value: &Value, now: Millis) -> bool {
        let random = self.guards.hot.hit(name);
        // It has no end, and the database nothing newer.
        if value.version == PENDING {
            return false;
        }
        if now >= value.soft {
            return true;
        }
        let Some(early) = self.guards.early else { return false };
        // It was filled when it was loaded; what took less than a millisecond counts as one.
        let cost = Millis::from(value.cost);
        let lifetime = millis(self.lifetime(value.payload.is_none(), value.fill));
        let left = Duration::from_millis((value.made + cost + lifetime).saturating_sub(now));
        let load = Duration::from_millis(cost.max(1));
        let due = early.is_due(left, load, random) && self.guards.hot.is_hot(name);
        if due {
            self.stats.early_refreshes.add();
            self.note(name, Event::Refreshed);
        }
        due
    }

    /// What became of a fill.
    pub(crate) fn filled(&self, name: &str, filled: Filled) {
        let (counter, event) = match filled {
            Filled::Done => return self.stats.fills.add(),
            Filled::Gone => (&self.stats.lost_fills, Event::FillGone),
            Filled::Late => (&self.stats.lost_fills, Event::FillLate),
            Filled::Older => (&self.stats.old_fills, Event::FillOlder),
        };
        counter.add();
        self.note(name, event);
    }

    /// What a flight failed of.
    pub(crate) fn failed(&self, name: &str, error: &Error) {
        // Nobody may wait for it: of a value that is loaded anew before it ends no reader is told.
        let (key, cause) =
            (name.escape_debug(), std::error::Error::source(error).map(ToString::to_string));
        match error {
            Error::Busy { .. } => tracing::debug!(%key, %error, "a value could not be had"),
            _ => tracing::warn!(%key, cause, "a value could not be had: {error}"),
        }
        match error {
            Error::Busy { .. } => self.note(name, Event::Busy),
            Error::Load(_) => self.note(name, Event::LoadFailed),
            Error::Panicked(_) => self.note(name, Event::LoadPanicked),
            Error::Timeout { .. } => self.note(name, Event::LoadTimeout),
            _ => {}
        }
    }
}
