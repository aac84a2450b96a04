//! `cdc check`: what is missing before a database can be followed.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper::{Error, Locks};
use lockkeeper_cache::cdc::{Finding, Rule, Severity, Source, Wanted};
use lockkeeper_cache::store::Cursor;
use lockkeeper_cache::{Invalidate, Store, Touched};
use serde::Serialize;
use tokio::time::timeout;

use super::args::Check;
use super::config::{self, Config, Database};
use super::run;
use crate::exit::{Code, Failure, chain};
use crate::output::{print, print_json, printable};

/// How long each server may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// What was found at one server.
#[derive(Debug, Default, Serialize)]
struct Part {
    /// Why it cannot be reached or used.
    error: Option<String>,
    findings: Vec<FindingJson>,
}

#[derive(Debug, Serialize)]
struct FindingJson {
    severity: &'static str,
    what: String,
    fix: Option<String>,
}

/// All that was found.
#[derive(Debug, Serialize)]
struct Found {
    database: Part,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locks: Option<Part>,
    exit_code: u8,
}

pub(super) async fn check(check: &Check) -> Result<Code, Failure> {
    let mut found = match &check.config {
        Some(file) => {
            let config = Config::read(file)?;
            let (wanted, source) = (config.wanted(), config.database.source());
            let database = database(source, &wanted).await;
            let (cache, locks) = (Some(cache(&config).await), Some(locks(&config).await));
            Found { database, cache, locks, exit_code: 0 }
        }
        None => {
            let (source, wanted) = on_the_command_line(check)?;
            let database = database(source.source(), &wanted).await;
            Found { database, cache: None, locks: None, exit_code: 0 }
        }
    };
    let code = found.code();
    found.exit_code = code.0;
    if check.json {
        print_json(&found)?;
    } else {
        print(found.to_text().as_bytes())?;
    }
    Ok(code)
}

/// What the options ask for, without a file.
fn on_the_command_line(check: &Check) -> Result<(Database, Wanted), Failure> {
    let Check { url, table, key, .. } = check;
    if table.len() != key.len() {
        return Err(Failure::usage(format!(
            "{} --table and {} --key: each table has the key that follows it",
            table.len(),
            key.len()
        )));
    }
    let rules = table.iter().zip(key).map(|(table, key)| Rule::new(table, key));
    let rules = rules.collect::<Result<Vec<_>, _>>();
    let rules = rules.map_err(|error| Failure::usage(error.to_string()))?;
    let url = url.as_ref().and_then(|url| url.to_str());
    let url = url.ok_or_else(|| Failure::usage("the URL is not UTF-8"))?;
    let source = Database::new(url).map_err(|why| Failure::usage(format!("--url: {why}")))?;
    Ok((source, config::wanted(rules.iter())))
}

/// No answer in time is an answer.
async fn in_time<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let slow = |_| Err(format!("no answer within {PATIENCE:?}"));
    timeout(PATIENCE, asked).await.unwrap_or_else(slow)
}

async fn database(source: &dyn Source, wanted: &Wanted) -> Part {
    let asked = async { source.check(wanted).await.map_err(|error| chain(&*error)) };
    match in_time(asked).await {
        Ok(findings) => {
            Part { error: None, findings: findings.into_iter().map(FindingJson::from).collect() }
        }
        Err(error) => Part { error: Some(error), findings: Vec::new() },
    }
}

/// Does what a follower does with the cache, to a key that nobody has.
async fn cache(config: &Config) -> Part {
    let tried = async {
        let store = run::store(config).await?;
        store.list("lockkeeper cdc check", Cursor::default()).await.map_err(|e| chain(&e))?;
        let positions = store.positions().ok_or("it cannot keep the position")?;
        positions.forget("lockkeeper cdc check").await.map_err(|error| chain(&error))?;
        for cache in run::caches(config, store)?.values() {
            let nobody = Touched { key: "lockkeeper cdc check".into(), version: 0 };
            cache.invalidate_touched(&[nobody]).await.map_err(|error| chain(&error))?;
        }
        Ok(())
    };
    Part { error: in_time(tried).await.err(), findings: Vec::new() }
}

/// Takes a lock that nobody else has.
async fn locks(config: &Config) -> Part {
    let tried = async {
        let locks = Locks::connect(&config.locks).await?;
        // Whoever has it does the same at this moment, and may.
        if let Some(guard) = locks.mutex("lockkeeper cdc check").try_lock().await? {
            guard.release().await?;
        }
        Ok(())
    };
    let tried = async { tried.await.map_err(|error: Error| chain(&error)) };
    Part { error: in_time(tried).await.err(), findings: Vec::new() }
}

impl From<Finding> for FindingJson {
    fn from(finding: Finding) -> Self {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        Self { severity, what: finding.what, fix: finding.fix }
    }
}

impl Found {
    fn parts(&self) -> impl Iterator<Item = (&'static str, &Part)> {
        let others = [("cache", self.cache.as_ref()), ("locks", self.locks.as_ref())];
        let others = others.into_iter().filter_map(|(name, part)| Some((name, part?)));
        std::iter::once(("database", &self.database)).chain(others)
    }

    fn code(&self) -> Code {
        if self.parts().any(|(_, part)| part.error.is_some()) {
            return Code::UNAVAILABLE;
        }
        let is_error = |finding: &FindingJson| finding.severity == "error";
        match self.parts().any(|(_, part)| part.findings.iter().any(is_error)) {
            true => Code::MISCONFIGURED,
            false => Code::SUCCESS,
        }
    }

    /// Statements are on lines of their own, to be copied. Writing to a string does not fail.
    fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, part) in self.parts() {
            match &part.error {
                Some(error) => {
                    let _ = writeln!(text, "{name}: cannot be used: {}", printable(error));
                }
                None if part.findings.is_empty() => {
                    let _ = writeln!(text, "{name}: nothing is wrong");
                }
                None => {
                    let _ = writeln!(text, "{name}:");
                }
            }
            for FindingJson { severity, what, fix } in &part.findings {
                let _ = writeln!(text, "  {severity}: {}", printable(what));
                for line in fix.iter().flat_map(|fix| fix.lines()) {
                    let _ = writeln!(text, "    {}", printable(line));
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(severities: &[&'static str], cache: Option<&str>) -> Found {
        let findings = severities.iter().map(|severity| FindingJson {
            severity,
            what: "x is \u{1b}off".into(),
            fix: Some("SET x = on;\nSET y = on;".into()),
        });
        let database = Part { error: None, findings: findings.collect() };
        let cache = cache.map(|error| Part { error: Some(error.into()), findings: Vec::new() });
        Found { database, cache, locks: None, exit_code: 0 }
    }

    #[test]
    fn warnings_alone_are_no_failure_and_a_server_that_is_away_is_another_one() {
        assert_eq!(found(&[], None).code(), Code::SUCCESS);
        assert_eq!(found(&["warning"], None).code(), Code::SUCCESS);
        assert_eq!(found(&["warning", "error"], None).code(), Code::MISCONFIGURED);
        assert_eq!(found(&["error"], Some("away")).code(), Code::UNAVAILABLE);
    }

    #[test]
    fn statements_are_on_lines_of_their_own() {
        let text = found(&["error"], Some("away")).to_text();
        assert_eq!(
            text,
            "database:\n  error: x is \\u{1b}off\n    SET x = on;\n    SET y = on;\n\
             cache: cannot be used: away\n"
        );
        assert_eq!(found(&[], None).to_text(), "database: nothing is wrong\n");
    }
}
