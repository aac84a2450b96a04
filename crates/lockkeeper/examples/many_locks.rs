//! Transfers between accounts need both of them: all or none, in any order, without deadlock.
#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::Locks;

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let mut transfers = tokio::task::JoinSet::new();
    for (from, to) in [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a")] {
        let both = locks.multi([format!("account/{from}"), format!("account/{to}")]);
        transfers.spawn(async move {
            let guard = both.lock().await?;
            println!("from {from} to {to} with {} locks", guard.guards().len());
            guard.release().await
        });
    }
    transfers.join_all().await.into_iter().collect()
}
