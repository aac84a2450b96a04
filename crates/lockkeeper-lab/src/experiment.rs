//! What an experiment is: a failure, the program that has it, and those that close it.

use std::fmt;
use std::pin::Pin;

use serde::Serialize;

use crate::bench::Bench;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::servers::Program;

/// A failure that people meet.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// What it is called on the command line, in kebab-case.
    pub name: &'static str,
    /// What it is about, in a few words.
    pub title: &'static str,
    /// Why it goes wrong, for somebody who has never seen it. What happened on this run is told by the
    /// outcomes of the variants.
    pub about: &'static str,
    /// What must be installed.
    pub needs: &'static [Program],
    /// Whether it may use a server that has other users: it keeps to [`Bench::key`], starts and stops no
    /// server, and counts nothing that others do.
    pub anywhere: bool,
    /// Whether it is in the half that every test run does: over within two seconds.
    pub fast: bool,
    /// The naive program first, then what is usually made of it, Lockkeeper last.
    pub variants: &'static [Variant],
}

/// One program of an experiment.
#[derive(Clone, Copy)]
pub struct Variant {
    /// What it is called, in kebab-case.
    pub name: &'static str,
    /// What it does, in a few words.
    pub title: &'static str,
    /// Whose idea it is.
    pub role: Role,
    /// What must come out.
    pub expect: Expect,
    /// Runs it on a bench of its own.
    pub run: Run,
}

/// Runs a variant.
pub type Run = for<'a> fn(&'a Bench) -> Running<'a>;

/// A variant on its way to an outcome.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Outcome>> + Send + 'a>>;

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whose idea a variant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What everybody writes first.
    Naive,
    /// What is usually made of it.
    Repair,
    /// The same with Lockkeeper.
    Lockkeeper,
}

/// What must come out of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// At least one violation, or the experiment shows nothing.
    Broken,
    /// None.
    Sound,
}

impl Expect {
    /// Whether so many violations are what was to come out.
    pub fn met_by(self, violations: u64) -> bool {
        match self {
            Self::Broken => violations > 0,
            Self::Sound => violations == 0,
        }
    }
}
