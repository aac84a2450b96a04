//! What there is, a page at a time.

use lockkeeper::backend::redis::keyspace::Keyspace;

use super::failed;
use crate::store::{Cursor, Page, Result};

/// So many keys a server looks at for one page.
const COUNT: usize = 500;

/// A page of the keys that begin with this, at one server after the other.
pub(super) async fn keys(servers: &Keyspace, prefix: &str, from: Cursor) -> Result<Page> {
    let masters = servers.masters().await.map_err(failed)?;
    // By address and not by number: one may join or leave between two pages.
    let mut rest = masters.iter().skip_while(|master| master.address() < from.part.as_str());
    let Some(master) = rest.next() else { return Ok(Page::default()) };
    let at = if master.address() == from.part { from.at } else { 0 };
    let mut scan = redis::cmd("SCAN");
    let pattern = format!("{}{}*", escaped(servers.prefix()), escaped(prefix));
    scan.arg(at).arg("MATCH").arg(pattern).arg("COUNT").arg(COUNT).arg("TYPE").arg("string");
    let (at, keys): (u64, Vec<Vec<u8>>) = master.query(&scan).await.map_err(failed)?;
    // What is no text, we have not written.
    let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
    let keys = keys.filter_map(|key| key.strip_prefix(servers.prefix()).map(str::to_owned));
    let next = match at {
        0 => rest.next().map(|master| Cursor { part: master.address().to_owned(), at: 0 }),
        at => Some(Cursor { part: master.address().to_owned(), at }),
    };
    Ok(Page { keys: keys.collect(), next })
}

/// A page of the members of a set.
pub(super) async fn members(servers: &Keyspace, key: &str, from: Cursor) -> Result<Page> {
    let mut scan = redis::cmd("ZSCAN");
    scan.arg(key).arg(from.at).arg("COUNT").arg(COUNT);
    let (at, members): (u64, Vec<(Vec<u8>, f64)>) =
        servers.query(key, &scan).await.map_err(failed)?;
    let keys = members.into_iter().filter_map(|(key, _)| String::from_utf8(key).ok());
    let next = (at > 0).then_some(Cursor { at, ..from });
    Ok(Page { keys: keys.collect(), next })
}

/// Text that a pattern takes as it is.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut pattern, letter| {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(letter);
        pattern
    })
}
