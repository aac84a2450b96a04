//! `lab`: shows how home-made locks and caches fail, and that these do not.

use std::fmt::Write as _;
use std::future::pending;
use std::io::{self, Write};
use std::path::Path;

use lockkeeper::clock::Instant;
use lockkeeper_lab::{Experiment, Findings, Progress, Setting, catalogue, report, text};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Lab, LabCommand, LabRun};
use crate::exit::{Code, Failure};
use crate::output::{print, print_json};

/// `url`: if it was given on the command line. What the environment says is not for experiments.
pub(crate) async fn lab(url: Option<&str>, lab: Lab) -> Result<Code, Failure> {
    match lab.command {
        None | Some(LabCommand::List) => print(list().as_bytes()),
        Some(LabCommand::Run(run)) => experiments(url, &run).await,
    }
}

/// Ends with the number of the signal that asks for the end.
fn stopped() -> Result<impl Future<Output = i32>, Failure> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = Vec::new();
    for kind in kinds {
        let heard = signal(kind).map_err(|error| Failure::system("cannot hear signals", &error))?;
        signals.push((kind, heard));
    }
    Ok(async move {
        let [(_, one), (_, two), (_, three)] = signals.as_mut_slice() else {
            return pending().await;
        };
        tokio::select! {
            _ = one.recv() => kinds[0].as_raw_value(),
            _ = two.recv() => kinds[1].as_raw_value(),
            _ = three.recv() => kinds[2].as_raw_value(),
        }
    })
}

fn list() -> String {
    let widest = catalogue::ALL.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Experiment { name, title, needs, .. } in catalogue::ALL {
        let needs: Vec<&str> = needs.iter().map(|program| program.name()).collect();
        let needs =
            if needs.is_empty() { String::new() } else { format!(" ({})", needs.join(", ")) };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:widest$}  {title}{needs}");
    }
    text
}

async fn experiments(url: Option<&str>, run: &LabRun) -> Result<Code, Failure> {
    let chosen = chosen(run)?;
    let (url, stopped) = (url.map(redis).transpose()?, stopped()?);
    let seed = run.seed.unwrap_or_else(|| Instant::now().as_nanos() % 1_000_000);
    if let Some(folder) = &run.report {
        // Before minutes of work, and not after them.
        std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    }
    say(&format!("seed {seed}"));
    let (setting, mut tell) = (Setting::new(seed, url), progress);
    let ended = tokio::select! {
        findings = lockkeeper_lab::run(&chosen, &setting, &mut tell) => Ok(findings),
        // The servers that were started end as they are dropped.
        signal = stopped => Err(Code::of_signal(signal)),
    };
    if let Err(error) = setting.clean().await {
        say(&format!("keys that begin with lockkeeper-lab: may be left at the server: {error}"));
    }
    let findings = match ended {
        Ok(findings) => findings,
        Err(code) => return Ok(code),
    };
    if let Some(folder) = &run.report {
        let page = folder.join("index.html");
        std::fs::write(&page, report::page(&findings))
            .map_err(|error| cannot_write(&page, &error))?;
        say(&format!("the report is in {}", page.display()));
    }
    if run.json {
        print_json(&findings)?;
    } else {
        print(text::draw(&findings).as_bytes())?;
    }
    Ok(judge(&findings))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::system(&format!("cannot write to {}", path.display()), error)
}

fn chosen(run: &LabRun) -> Result<Vec<&'static Experiment>, Failure> {
    if run.all {
        return Ok(catalogue::ALL.iter().collect());
    }
    let find = |name: &String| {
        let unknown = || {
            Failure::usage(format!("there is no experiment {name:?}: see `lockkeeper lab list`"))
        };
        catalogue::find(name).ok_or_else(unknown)
    };
    run.names.iter().map(find).collect()
}

/// Experiments speak to a single Redis server as clients do that know no Lockkeeper.
fn redis(url: &str) -> Result<String, Failure> {
    let known = ["redis://", "rediss://"].iter().any(|scheme| url.starts_with(scheme));
    if known && !url.contains('?') {
        return Ok(url.to_owned());
    }
    Err(Failure::usage("for the lab, --url is that of one Redis server, without options"))
}

fn progress(progress: Progress<'_>) {
    match progress {
        Progress::Begins { at, of, experiment, variant } => {
            say(&format!("{at} of {of}: {}: {}", experiment.name, variant.title));
        }
        Progress::Ended(finding) => {
            let wrong = finding.variants.iter().filter_map(|verdict| {
                verdict.wrong.as_ref().map(|why| format!("{}: {why}", verdict.name))
            });
            let skipped = finding.skipped.iter().map(|why| format!("skipped: {why}"));
            for line in skipped.chain(wrong) {
                say(&format!("{}: {line}", finding.name));
            }
        }
    }
}

fn judge(findings: &Findings) -> Code {
    let (wrong, skipped) = (findings.wrong(), findings.skipped());
    for line in wrong.iter().chain(&skipped) {
        say(line);
    }
    match (wrong.is_empty(), skipped.is_empty()) {
        (true, true) => {
            say("every experiment came out as it must");
            Code::SUCCESS
        }
        (false, _) => Code::FAILED,
        (true, false) => Code::UNAVAILABLE,
    }
}

/// On standard error: standard output is for what was found.
fn say(text: &str) {
    // If nobody reads it there is nobody to tell.
    let _ = io::stderr().write_all(format!("lockkeeper: {text}\n").as_bytes());
}
