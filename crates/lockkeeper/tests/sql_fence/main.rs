//! Rows that refuse late writers, in real databases.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod late;
mod mariadb;
mod postgres;

use lockkeeper::Token;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    late::main();
}
