//! `init`, `ls`, `show` and `unlock`: preparing a store, looking at it, and forcing it.

use std::ffi::OsString;
use std::fmt::Write as _;

use humantime::format_rfc3339_millis;
use lockkeeper::backend::Status;
use lockkeeper::{LastRun, Locks, Name, Owner, Token};
use serde::Serialize;

use crate::args::{self, Init, Ls, Show, Unlock};
use crate::duration::{millis, show as time};
use crate::exit::{Code, Failure, chain};
use crate::output::{print, print_json, printable};
use crate::report::Report;

/// One name, as scripts read it.
#[derive(Serialize)]
struct StatusJson<'a> {
    name: &'a Name,
    kind: Option<&'a str>,
    holders: Vec<HolderJson<'a>>,
    waiters: Vec<WaiterJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<LastRunJson<'a>>,
}

/// The last run of a job. No exit code: it runs, or it died.
#[derive(Serialize)]
struct LastRunJson<'a> {
    tick: String,
    attempt: u32,
    owner: &'a Owner,
    token: Token,
    started: String,
    schedule: &'a str,
    state: &'static str,
    exit_code: Option<i32>,
    duration_ms: Option<u64>,
}

#[derive(Serialize)]
struct HolderJson<'a> {
    owner: &'a Owner,
    token: Token,
    held_ms: u64,
    lease_left_ms: Option<u64>,
}

#[derive(Serialize)]
struct WaiterJson<'a> {
    owner: &'a Owner,
    position: usize,
}

#[derive(Serialize)]
struct EvictionJson<'a> {
    name: &'a Name,
    reason: &'a str,
    evicted: &'a [Owner],
    token: Token,
}

impl<'a> From<&'a Status> for StatusJson<'a> {
    fn from(status: &'a Status) -> Self {
        let holders = status.holders.iter().map(|holding| HolderJson {
            owner: &holding.owner,
            token: holding.token,
            held_ms: millis(holding.held),
            lease_left_ms: holding.lease_left.map(millis),
        });
        let waiters = status.waiters.iter().zip(1..);
        Self {
            name: &status.name,
            kind: status.kind.as_deref(),
            holders: holders.collect(),
            waiters: waiters.map(|(owner, position)| WaiterJson { owner, position }).collect(),
            count: status.count,
            last_run: None,
        }
    }
}

impl<'a> LastRunJson<'a> {
    fn new(last: &'a LastRun, status: &Status) -> Self {
        Self {
            tick: format_rfc3339_millis(last.tick()).to_string(),
            attempt: last.attempt(),
            owner: last.owner(),
            token: last.token(),
            started: format_rfc3339_millis(last.started()).to_string(),
            schedule: last.schedule(),
            state: state(last, status),
            exit_code: last.code(),
            duration_ms: last.took().map(millis),
        }
    }
}

/// What became of a run: one without an end goes on as long as it has the lock.
fn state(last: &LastRun, status: &Status) -> &'static str {
    match last.code() {
        Some(_) => "ended",
        None if status.holders.iter().any(|holding| holding.token == last.token()) => "running",
        None => "died",
    }
}

async fn connect(url: &OsString) -> Result<Locks, Failure> {
    let (url, _) = args::url(url)?;
    Ok(Locks::connect(url).await?)
}

pub(crate) async fn init(url: &OsString, init: &Init) -> Result<Code, Failure> {
    let (_, url) = args::url(url)?;
    if init.fence.is_empty() && init.unfence.is_empty() {
        url.init().await?;
        return print(format!("{url} is ready\n").as_bytes());
    }
    let mut said = String::new();
    for (tables, on) in [(&init.unfence, false), (&init.fence, true)] {
        for table in tables {
            url.fence(table, on).await?;
            let how = if on { "fenced" } else { "not fenced any more" };
            // Writing to a string does not fail.
            let _ = writeln!(said, "{table} is {how}");
        }
    }
    print(said.as_bytes())
}

pub(crate) async fn ls(url: &OsString, ls: &Ls) -> Result<Code, Failure> {
    let locks = connect(url).await?;
    let all = locks.admin().list().await?;
    if ls.json {
        return print_json(&all.iter().map(StatusJson::from).collect::<Vec<_>>());
    }
    let mut rows = vec![["NAME", "KIND", "HOLDERS", "WAITERS", "HELD BY"].map(String::from)];
    for status in &all {
        let first = status.holders.first().map(|holding| holding.owner.to_string());
        rows.push([
            printable(status.name.as_str()),
            status.kind.clone().unwrap_or_default(),
            status.holders.len().to_string(),
            status.waiters.len().to_string(),
            first.unwrap_or_default(),
        ]);
    }
    print(table(&rows).as_bytes())
}

/// Rows with their columns aligned.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub(crate) async fn show(url: &OsString, one: &Show, report: &Report) -> Result<Code, Failure> {
    let name = args::name(&one.name)?;
    let locks = connect(url).await?;
    // The run first: one that has no end by then, and no lock afterwards, has died or ended since.
    let last = locks.last_run(&name).await;
    let status = locks.admin().show(&name).await?;
    // Tables from before there were jobs, or no right to see them: who has the lock is still worth saying.
    let last = last.unwrap_or_else(|error| {
        report.warn(format!("the last run cannot be read: {}", chain(&error)));
        None
    });
    if one.json {
        let last_run = last.as_ref().map(|last| LastRunJson::new(last, &status));
        return print_json(&StatusJson { last_run, ..StatusJson::from(&status) });
    }
    let mut text = describe(&status);
    if let Some(last) = &last {
        text.push_str(&describe_run(last, &status));
    }
    print(text.as_bytes())
}

/// One line. Writing to a string does not fail.
fn describe_run(last: &LastRun, status: &Status) -> String {
    let tick = format_rfc3339_millis(last.tick());
    let mut text = format!("last run for {tick} by {}, token {}", last.owner(), last.token());
    let _ = write!(text, ", begun {}", format_rfc3339_millis(last.started()));
    if last.attempt() > 1 {
        text.push_str(", after a first try that died");
    }
    let _ = match (last.code(), last.took()) {
        (Some(code), Some(took)) => writeln!(text, ": ended with {code} after {}", time(took)),
        _ => writeln!(text, ": {}", state(last, status)),
    };
    text
}

/// A few short lines. Writing to a string does not fail.
fn describe(status: &Status) -> String {
    let name = printable(status.name.as_str());
    let Some(kind) = &status.kind else { return format!("{name} is free\n") };
    let mut text = match status.count {
        Some(count) => format!("{name} is a {kind}, {count} to go\n"),
        None => format!("{name} is a {kind}\n"),
    };
    for holding in &status.holders {
        let (owner, token, held) = (&holding.owner, holding.token, time(holding.held));
        let _ = write!(text, "held by {owner} for {held}, token {token}");
        if let Some(left) = holding.lease_left {
            let _ = write!(text, ", lease ends in {} unless renewed", time(left));
        }
        text.push('\n');
    }
    for (owner, position) in status.waiters.iter().zip(1..) {
        let _ = writeln!(text, "waiting at {position}: {owner}");
    }
    text
}

pub(crate) async fn unlock(url: &OsString, unlock: &Unlock) -> Result<Code, Failure> {
    let name = args::name(&unlock.name)?;
    let reason = unlock.reason.as_str();
    if reason.trim().is_empty() {
        return Err(Failure::usage("--reason is empty: the holders are told why"));
    }
    let locks = connect(url).await?;
    let eviction = locks.admin().evict(&name, reason).await?;
    let (evicted, token) = (eviction.holders.as_slice(), eviction.token);
    if unlock.json {
        print_json(&EvictionJson { name: &name, reason, evicted, token })?;
    } else {
        let mut text = String::new();
        for owner in evicted {
            let _ = writeln!(text, "{name} taken away from {owner}");
        }
        match evicted {
            [] => text = format!("nobody holds {name}\n"),
            _ => {
                let _ = writeln!(text, "tokens below {token} are stale");
            }
        }
        print(text.as_bytes())?;
    }
    Ok(if evicted.is_empty() { Code::NOTHING } else { Code::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "A     B\nlong  x\n");
    }
}
