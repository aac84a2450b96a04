//! `init`, `ls`, `show` and `unlock`: preparing a store, looking at it, and forcing it.

use std::ffi::OsString;
use std::fmt::Write as _;

use lockkeeper::backend::Status;
use lockkeeper::{Locks, Name, Owner, Token};
use serde::Serialize;

use crate::args::{self, Init, Ls, Show, Unlock};
use crate::duration::{millis, show as time};
use crate::exit::{Code, Failure};
use crate::output::{print, printable};

/// One name, as scripts read it.
#[derive(Serialize)]
struct StatusJson<'a> {
    name: &'a Name,
    kind: Option<&'a str>,
    holders: Vec<HolderJson<'a>>,
    waiters: Vec<WaiterJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
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
        }
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

pub(crate) async fn show(url: &OsString, one: &Show) -> Result<Code, Failure> {
    let name = args::name(&one.name)?;
    let locks = connect(url).await?;
    let status = locks.admin().show(&name).await?;
    if one.json {
        return print_json(&StatusJson::from(&status));
    }
    print(describe(&status).as_bytes())
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

fn print_json(value: &impl Serialize) -> Result<Code, Failure> {
    let mut text =
        serde_json::to_vec(value).map_err(|error| Failure::system("cannot write JSON", &error))?;
    text.push(b'\n');
    print(&text)
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
