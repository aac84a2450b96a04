//! Keys of Redis, files and services that refuse late writers; each with a holder in a process of its own
//! that is really stopped past its lease and goes on with its next write.
#![cfg(all(feature = "http", feature = "redis"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod file;
mod fuzz;
mod late;
mod marks;
mod redis;
mod service;

use lockkeeper::Token;
use lockkeeper::fence::{Error, Stale};

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

#[track_caller]
fn stale<T>(written: Result<T, Error>, resource: &str, under: u64, newest: u64) {
    let error = written.err().expect("refused");
    let Some(Stale { resource: of, token: said, newest: seen, .. }) = error.stale() else {
        panic!("{error:?}");
    };
    assert_eq!((of.as_str(), *said, *seen), (resource, token(under), Some(token(newest))));
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    late::main();
}
