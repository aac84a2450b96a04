//! `lockkeeper`: runs a command under a lock, and looks at locks.
//!
//! ```text
//!   lockkeeper run  ── lock at the store, kept by the library
//!     ├── guardian    in a process group of its own: ends the command if `run` dies or is stopped
//!     └── command     in a process group of its own: signals and deadlines act on the whole group
//! ```
//!
//! Everything runs on the main thread: the kernel ties the death of the command to the thread that
//! started it.

mod args;
#[cfg(feature = "cdc")]
mod cdc;
mod child;
mod deadline;
mod duration;
mod exit;
mod group;
mod guardian;
mod lab;
mod manual;
mod output;
mod report;
mod run;
mod scheduled;
mod show;
mod signals;
mod supervisor;
mod terminal;
mod wait;

use std::env;
use std::ffi::OsStr;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Args, Command};
use crate::exit::{Code, Failure};
use crate::report::Report;

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    // Our own helpers are no part of the interface, so the parser does not know them.
    let first = words.next();
    let code = match first.as_deref().and_then(OsStr::to_str) {
        Some(child::WORD) => child::exec(words),
        Some(guardian::WORD) => guardian::watch(),
        _ => match Args::read() {
            Ok(args) => start(args),
            Err(error) => {
                // Nobody reads the help any more: nothing to do about that.
                let _ = error.print();
                if error.use_stderr() { Code::USAGE } else { Code::SUCCESS }
            }
        },
    };
    code.into()
}

fn start(args: Args) -> Code {
    let report = match &args.command {
        Command::Run(run) => Report::new(run.verbose, run.json),
        #[cfg(feature = "cdc")]
        Command::Cdc(cdc) => Report::new(false, cdc.json()),
        _ => Report::new(false, false),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report.failure(&Failure::system("cannot start", &error)),
    };
    let ended = runtime.block_on(dispatch(args, &report));
    // A thread that is still busy with the store must not keep us.
    runtime.shutdown_background();
    ended.unwrap_or_else(|failure| report.failure(&failure))
}

async fn dispatch(args: Args, report: &Report) -> Result<Code, Failure> {
    let url = args.url;
    match args.command {
        Command::Run(run) => run::run(&url, &run, report).await,
        Command::Ls(ls) => show::ls(&url, &ls).await,
        Command::Show(one) => show::show(&url, &one, report).await,
        Command::Unlock(unlock) => show::unlock(&url, &unlock).await,
        Command::Init(init) => show::init(&url, &init).await,
        #[cfg(feature = "cdc")]
        Command::Cdc(cdc) => cdc::cdc(&cdc).await,
        Command::Lab(lab) => {
            let given = args.url_given.then(|| args::url(&url)).transpose()?;
            lab::lab(given.map(|(text, _)| text), lab).await
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "lockkeeper", &mut script);
            output::print(&script)
        }
        Command::Man => {
            let page = manual::page(Args::command())
                .map_err(|error| Failure::system("cannot write the man page", &error))?;
            output::print(&page)
        }
    }
}
