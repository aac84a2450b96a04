//! Runs experiments, one after the other, and judges what came out.

use std::time::Duration;

use lockkeeper::clock::Instant;
use serde::Serialize;

use crate::bench::{Bench, prefix, remove};
use crate::error::Error;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::within;
use crate::outcome::Outcome;

/// No variant takes longer than this, whatever happens in it.
const LONGEST: Duration = Duration::from_secs(120);

/// What was run, and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// With this the random numbers can be had again.
    pub seed: u64,
    /// How long all of it took.
    pub seconds: f64,
    /// In the order in which they were run.
    pub experiments: Vec<Finding>,
}

/// What came out of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// See [`Experiment::name`].
    pub name: &'static str,
    /// See [`Experiment::title`].
    pub title: &'static str,
    /// See [`Experiment::about`].
    pub about: &'static str,
    /// Why it was not run, if it was not: what to install.
    pub skipped: Option<String>,
    /// Nothing if it was skipped.
    pub variants: Vec<Verdict>,
}

/// What came out of a variant.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// See [`Variant::name`].
    pub name: &'static str,
    /// See [`Variant::title`].
    pub title: &'static str,
    /// See [`Variant::role`].
    pub role: Role,
    /// See [`Variant::expect`].
    pub expect: Expect,
    /// What is wrong with it, if anything: not what was to come out, or no outcome at all.
    pub wrong: Option<String>,
    /// Nothing if it came to none.
    pub outcome: Option<Outcome>,
}

/// How far it is.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Begins with a variant of an experiment, which is so many of so many.
    Begins {
        /// From 1 on.
        at: usize,
        /// Of so many.
        of: usize,
        /// Which experiment.
        experiment: &'static Experiment,
        /// Which variant.
        variant: &'static Variant,
    },
    /// Is done with an experiment.
    Ended(&'a Finding),
}

/// What to run them with.
#[derive(Clone, Debug)]
pub struct Setting {
    seed: u64,
    url: Option<String>,
    /// Part of all names, so that nobody else has them.
    id: String,
}

impl Setting {
    /// With this seed for the random numbers. `url`: a Redis server that has other users, for those experiments that do
    /// no harm there.
    pub fn new(seed: u64, url: Option<String>) -> Self {
        Self { seed, url, id: format!("{:x}", Instant::now().as_nanos()) }
    }

    /// Removes what was written to a server that has other users, also by a run that was not waited for.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn clean(&self) -> crate::Result<()> {
        match &self.url {
            Some(url) => within(LONGEST, "the removal of keys", remove(url, &prefix(&self.id)))
                .await
                .flatten(),
            None => Ok(()),
        }
    }
}

/// Runs these. Nothing that goes wrong in one keeps the others from being run.
pub async fn run(
    experiments: &[&'static Experiment],
    setting: &Setting,
    tell: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Findings {
    let since = Instant::now();
    let mut found = Vec::new();
    for (at, experiment) in (1..).zip(experiments) {
        let mut finding = Finding {
            name: experiment.name,
            title: experiment.title,
            about: experiment.about,
            skipped: missing(experiment, setting),
            variants: Vec::new(),
        };
        if finding.skipped.is_none() {
            for variant in experiment.variants {
                tell(Progress::Begins { at, of: experiments.len(), experiment, variant });
                finding.variants.push(try_out(experiment, variant, setting).await);
            }
        }
        tell(Progress::Ended(&finding));
        found.push(finding);
    }
    let seconds = Instant::now().since(since).as_secs_f64();
    Findings { seed: setting.seed, seconds, experiments: found }
}

/// All that must be installed, said at once.
fn missing(experiment: &Experiment, setting: &Setting) -> Option<String> {
    if experiment.anywhere && setting.url.is_some() {
        return None;
    }
    let missing = experiment.needs.iter().filter_map(|program| program.check().err());
    let missing: Vec<String> = missing.map(|error| error.to_string()).collect();
    if missing.is_empty() { None } else { Some(missing.join("; ")) }
}

async fn try_out(experiment: &Experiment, variant: &'static Variant, setting: &Setting) -> Verdict {
    let id = format!("{}:{}:{}", setting.id, experiment.name, variant.name);
    let url = setting.url.clone().filter(|_| experiment.anywhere);
    let bench = Bench::new(setting.seed, &id, url);
    let result = within(LONGEST, "its end", (variant.run)(&bench)).await.flatten();
    Verdict {
        name: variant.name,
        title: variant.title,
        role: variant.role,
        expect: variant.expect,
        wrong: wrong(variant.expect, &result),
        outcome: result.ok(),
    }
}

fn wrong(expect: Expect, result: &Result<Outcome, Error>) -> Option<String> {
    match (result, expect) {
        (Err(error), _) => Some(format!("came to no outcome: {error}")),
        (Ok(outcome), expect) if expect.met_by(outcome.violations) => None,
        (Ok(_), Expect::Broken) => Some("is broken and showed no violation".into()),
        (Ok(outcome), Expect::Sound) => {
            Some(format!("must be sound and showed {} violations", outcome.violations))
        }
    }
}

impl Findings {
    /// What did not come out as it must: experiment, variant, why.
    pub fn wrong(&self) -> Vec<String> {
        let all = self.experiments.iter().flat_map(|finding| {
            finding.variants.iter().filter_map(move |verdict| {
                let why = verdict.wrong.as_ref()?;
                Some(format!("{}/{} {why}", finding.name, verdict.name))
            })
        });
        all.collect()
    }

    /// What was not run, and why.
    pub fn skipped(&self) -> Vec<String> {
        let skipped = self.experiments.iter().filter_map(|finding| {
            finding.skipped.as_ref().map(|why| format!("{} was skipped: {why}", finding.name))
        });
        skipped.collect()
    }
}
