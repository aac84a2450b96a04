//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lockkeeper::{Name, Overlap, Rerun, Schedule, Url};

use crate::duration;
use crate::exit::Failure;

const EXIT_CODES: &str = "\
Exit codes of run:
  the command's own; 128+N when signal N ended it
   64  usage: an option, name, URL or duration makes no sense
   69  the store cannot be reached or used
   75  the lock is busy, or was not free in time (see -E)
   76  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found";

const SCHEDULE: &str = "On a schedule";

const RUN: &str = "\
The command runs as it is, without a shell, in a process group of its own. It sees LOCKKEEPER_NAME, \
LOCKKEEPER_TOKEN, LOCKKEEPER_OWNER and LOCKKEEPER_URL (without a password). INT, TERM, HUP, QUIT, \
USR1, USR2, WINCH and TSTP are passed on to the whole group.

When the command ends, what is left of its group gets TERM, after --grace KILL, and only then is the \
lock released. A process that leaves the group (setsid, jobs of an interactive shell) is not \
followed.

When the lease is about to end, the group gets TERM so early that --grace is over before the lease \
is, and KILL before it ends. --grace counts up to a third of the time to live. A command that is \
stopped with ctrl-Z stops the renewal as well: it is killed before the lease ends, so continue it \
before. When this process is killed, the whole group is killed.

With --once-per or --every the command is run again and again, each tick on one of all nodes that run \
the same NAME: at the store is written through which tick it has come, so a node that is late, or \
whose clock is wrong, repeats nothing. Of ticks that nobody was there for, the latest is run; a NAME \
that never ran begins with its next tick. The command also sees LOCKKEEPER_TICK and \
LOCKKEEPER_ATTEMPT. What it exits with is written down for `show`; INT, TERM, HUP or QUIT end this \
process when the command has ended.";

const LAB: &str = "\
Nothing has to be set up: what an experiment needs (redis-server, etcd, ZooKeeper) is started on the \
loopback and ended with it. With --url redis://HOST on the command line, experiments with a single \
Redis server that do no harm there use that one: with keys of their own, removed afterwards. \
The others still start their own.

Exit codes:
    0  every experiment came out as it must
    1  one did not: a broken program showed no violation, or a sound one did
   64  usage
   69  an experiment was skipped, as a server is not installed";

/// Runs commands under locks that stop the work when they are lost.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// Where the locks are: file:, file:/DIR, redis://HOST, redis+sentinel://HOST,HOST/MASTER, redis+cluster://HOST,HOST, etcd://HOST,HOST, zookeeper://HOST,HOST/PATH, postgres://USER:PASSWORD@HOST/DATABASE or mysql://USER:PASSWORD@HOST/DATABASE, by TLS with rediss:, etcds: and zookeepers:; with options such as ?ttl=10s
    #[arg(long, global = true, env = "LOCKKEEPER_URL", hide_env_values = true)]
    #[arg(value_name = "URL", default_value = "file:")]
    pub(crate) url: OsString,

    /// Whether the URL is from the command line, and not from the environment.
    #[arg(skip)]
    pub(crate) url_given: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// What this process was started with.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let url_given = matches.value_source("url") == Some(ValueSource::CommandLine);
        Ok(Self { url_given, ..Self::from_arg_matches(&matches)? })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(override_usage = "lockkeeper [--url URL] run [OPTIONS] NAME [--] CMD [ARG]...")]
    #[command(after_help = EXIT_CODES, after_long_help = format!("{RUN}\n\n{EXIT_CODES}"))]
    Run(Run),
    /// List all locks that are held or waited for
    Ls(Ls),
    /// Show who holds a lock and who waits for it
    Show(Show),
    /// Take a lock away from its holders; exits with 1 when nobody holds it
    Unlock(Unlock),
    /// Make the tables in a database, once, as a user who may, or say that the nodes of a RedLock are
    /// new; for other stores there is nothing to do
    Init(Init),
    /// Invalidate a cache from the log of a database
    #[cfg(feature = "cdc")]
    #[command(subcommand)]
    Cdc(crate::cdc::args::Cdc),
    /// Show how home-made locks and caches fail, on servers that it starts, and that Lockkeeper does not
    #[command(after_help = LAB)]
    Lab(Lab),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(Debug, Parser)]
pub(crate) struct Run {
    /// Wait for at most this long, such as 1.5s or 2m; 0: do not wait. Default: for ever
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    #[arg(conflicts_with_all = ["no_wait", "schedule"])]
    wait: Option<Duration>,

    /// Do not wait
    #[arg(long, short = 'n', conflicts_with = "schedule")]
    no_wait: bool,

    /// Time to live at the store, renewed every third of it while the command runs
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "lease")]
    pub(crate) ttl: Option<Duration>,

    /// Hold for this long and never renew; the command is ended before it is over
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "schedule")]
    pub(crate) lease: Option<Duration>,

    /// Share the lock with others that use --shared
    #[arg(long, short = 's', conflicts_with_all = ["slots", "schedule"])]
    pub(crate) shared: bool,

    /// Let up to N run at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(conflicts_with = "schedule")]
    pub(crate) slots: Option<u32>,

    /// Strictly in the order of arrival
    #[arg(long, conflicts_with = "schedule")]
    pub(crate) fair: bool,

    /// Exit with this code instead of 75 when the lock is busy
    #[arg(long, short = 'E', value_name = "N", default_value_t = 75, hide_default_value = true)]
    pub(crate) conflict_exit_code: u8,

    /// End the command after holding the lock for this long
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    /// What happens to the command when the lock is lost: TERM and after --grace KILL, KILL at
    /// once, or nothing
    #[arg(long, value_enum, default_value = "term", value_name = "ACTION")]
    pub(crate) on_lost: OnLost,

    /// The time between TERM and KILL
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "5s")]
    pub(crate) grace: Duration,

    /// Stay, and run the command at every tick of this schedule in UTC, each on one of all nodes that do
    /// the same: minute, hour, day, month, day of the week, with six fields the second first
    #[arg(long, value_name = "CRON", group = "schedule", help_heading = SCHEDULE)]
    once_per: Option<OsString>,

    /// The same, every so often, counted from the start of 1970
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    #[arg(group = "schedule", help_heading = SCHEDULE)]
    every: Option<Duration>,

    /// Do not stay: run the command for the latest tick if nobody has it, else exit with 75 (see -E);
    /// for a crontab on every node
    #[arg(long, requires = "schedule", help_heading = SCHEDULE)]
    pub(crate) now: bool,

    /// Keep the lock for at least this long from the start of a run, so that no node begins another,
    /// whatever its clock says
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "0s")]
    #[arg(requires = "schedule", hide_default_value = true, help_heading = SCHEDULE)]
    pub(crate) at_least: Duration,

    /// What becomes of a tick while the command still runs for one before: it is left out, or run when
    /// that has ended
    #[arg(long, value_enum, default_value = "skip", value_name = "HOW")]
    #[arg(requires = "schedule", help_heading = SCHEDULE)]
    overlap: OnOverlap,

    /// Whether a tick whose node died, or lost the lock, is run once more
    #[arg(long, value_enum, default_value = "never", value_name = "WHEN")]
    #[arg(requires = "schedule", help_heading = SCHEDULE)]
    rerun: OnDeath,

    /// Say how long it waited, who held the lock, and under which token it runs
    #[arg(long, short = 'v')]
    pub(crate) verbose: bool,

    /// Report on standard error as lines of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,

    /// The command and its arguments; options of lockkeeper come before it
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// How long to wait; `None`: for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }

    /// When to run it again and again. Checked here and not by the parser, which would print a hostile
    /// pattern as it is.
    pub(crate) fn schedule(&self) -> Result<Option<Schedule>, Failure> {
        match (&self.once_per, self.every) {
            (Some(pattern), _) => {
                let wrong = || Failure::usage("the schedule is not UTF-8");
                Ok(Some(Schedule::cron(pattern.to_str().ok_or_else(wrong)?)?))
            }
            (None, Some(period)) => Ok(Some(Schedule::every(period)?)),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn overlap(&self) -> Overlap {
        match self.overlap {
            OnOverlap::Skip => Overlap::Skip,
            OnOverlap::Wait => Overlap::Wait,
        }
    }

    pub(crate) fn rerun(&self) -> Rerun {
        match self.rerun {
            OnDeath::Never => Rerun::Never,
            OnDeath::Once => Rerun::Once,
        }
    }
}

/// What becomes of a tick while the command still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnOverlap {
    Skip,
    Wait,
}

/// What becomes of a tick whose node died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnDeath {
    Never,
    Once,
}

/// What to do with the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    Term,
    Kill,
    Ignore,
}

#[derive(Debug, Parser)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) command: Option<LabCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the experiments
    List,
    /// Run experiments: the naive program, its repairs, Lockkeeper
    Run(LabRun),
}

#[derive(Debug, Parser)]
pub(crate) struct LabRun {
    /// The experiments
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub(crate) names: Vec<String>,

    /// Run all of them
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// Where chance is involved, take the same again; it is printed
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a page with pictures to DIR/index.html
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Parser)]
pub(crate) struct Ls {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct Show {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Parser)]
pub(crate) struct Init {
    /// Instead, make this table of yours refuse writes under an old token, or none, by a trigger
    /// (PostgreSQL, MySQL); may be given several times
    #[arg(long, value_name = "TABLE")]
    pub(crate) fence: Vec<String>,

    /// Instead, remove that trigger again
    #[arg(long, value_name = "TABLE")]
    pub(crate) unfence: Vec<String>,
}

#[derive(Debug, Parser)]
pub(crate) struct Unlock {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: OsString,

    /// Why; the holders are told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The name of a lock. Checked here and not by the parser, which would print a hostile name as it is.
pub(crate) fn name(text: &OsString) -> Result<Name, Failure> {
    let text = text.to_str().ok_or_else(|| {
        Failure::usage(format!("the name {text:?} cannot be used: it is not UTF-8"))
    })?;
    Ok(text.parse::<Name>()?)
}

/// The store's URL, as it was given and taken apart.
pub(crate) fn url(text: &OsString) -> Result<(&str, Url), Failure> {
    let text = text.to_str().ok_or_else(|| Failure::usage("the URL is not UTF-8"))?;
    Ok((text, text.parse::<Url>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_end_at_the_command() {
        let words = ["lockkeeper", "run", "x", "-n", "sh", "-c", "exit 3", "--", "--url", "y"];
        let args = Args::try_parse_from(words).expect("parses");
        let Command::Run(run) = args.command else { panic!("{args:?}") };
        assert_eq!(run.command, ["sh", "-c", "exit 3", "--", "--url", "y"]);
        assert_eq!(run.patience(), Some(Duration::ZERO));
    }
}
