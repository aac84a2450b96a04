//! A fencing token refuses a holder that comes too late, which no lock alone can do.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use lockkeeper::{Locks, Token};

/// What the lock protects. A database does the same with
/// `UPDATE … SET value = $1, fence = $2 WHERE id = $3 AND fence <= $2`.
#[derive(Default)]
struct Account {
    balance: i64,
    fence: Option<Token>,
}

impl Account {
    fn write(&mut self, token: Token, balance: i64) -> Result<(), String> {
        match self.fence {
            Some(newer) if newer > token => Err(format!("token {token} is older than {newer}")),
            _ => {
                (self.balance, self.fence) = (balance, Some(token));
                Ok(())
            }
        }
    }
}

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let mut account = Account::default();

    let sleepy = locks.lease(Duration::from_millis(200)).mutex("example/account").lock().await?;
    println!("one holds it under token {} and falls asleep", sleepy.token());

    let quick = locks.mutex("example/account").lock().await?;
    println!("the lease ended; another holds it under token {}", quick.token());
    println!("the other writes: {:?}", account.write(quick.token(), 100));
    println!("the sleeper wakes up and writes: {:?}", account.write(sleepy.token(), -1));
    println!("the balance is {}", account.balance);
    quick.release().await
}
