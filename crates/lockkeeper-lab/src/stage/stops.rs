//! Where somebody stops or stands still, so that what others do comes in between.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::client::StandStill;
use crate::error::Result;
use crate::gate::Gate;
use crate::scene::Actor;
use crate::timeline::Kind;

/// A place where somebody stops until it is let go. Clones are the same place.
#[derive(Clone, Debug)]
pub struct Stop {
    reached: Gate,
    go_on: Gate,
}

impl Stop {
    /// `what` has been done by who comes here.
    pub fn after(what: &'static str) -> Self {
        Self { reached: Gate::new(what), go_on: Gate::new("that somebody is let go") }
    }

    /// Stops here.
    ///
    /// # Errors
    ///
    /// When nobody lets it go in time.
    pub async fn here(&self) -> Result<()> {
        self.reached.open();
        self.go_on.pass().await
    }

    /// Waits until somebody has stopped here.
    ///
    /// # Errors
    ///
    /// When nobody comes in time.
    pub async fn reached(&self) -> Result<()> {
        self.reached.pass().await
    }

    /// Lets it go.
    pub fn let_go(&self) {
        self.go_on.open();
    }
}

/// A place where a whole process stands still, once.
#[derive(Debug)]
pub struct StandsStill {
    reached: Gate,
    pause: Mutex<Option<StandStill>>,
}

impl StandsStill {
    /// The gate is opened just before.
    pub fn new(reached: Gate, pause: StandStill) -> Arc<Self> {
        Arc::new(Self { reached, pause: Mutex::new(Some(pause)) })
    }

    /// Stands still, if it is the first time.
    ///
    /// # Errors
    ///
    /// When nobody lets it go on in time.
    pub fn here(&self, actor: &Actor) -> Result<()> {
        let Some(pause) = self.pause.lock().take() else { return Ok(()) };
        actor.did(Kind::Paused, "stands still");
        self.reached.open();
        pause.now()?;
        actor.did(Kind::Resumed, "goes on");
        Ok(())
    }

    /// Whether it has.
    pub fn is_over(&self) -> bool {
        self.pause.lock().is_none()
    }
}

/// Where somebody stops who uses the database through Lockkeeper.
#[derive(Debug, Default)]
pub struct Stops {
    /// After it has loaded, before it fills.
    pub loaded: Option<Stop>,
    /// The same, and the whole process stands still.
    pub stands_still: Option<Arc<StandsStill>>,
    /// After the write was announced, before the commit.
    pub announced: Option<Stop>,
    /// After the commit.
    pub committed: Option<Stop>,
}
