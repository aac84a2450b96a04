//! One leader among several candidates; when it resigns or dies the next in line takes over.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use lockkeeper::Locks;

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let mut candidates = tokio::task::JoinSet::new();
    for candidate in ["anna", "bert", "carl"] {
        let office = locks.mutex("example/leader").fair();
        candidates.spawn(async move {
            let guard = office.lock().await?;
            println!("{candidate} leads in term {}", guard.token());
            let term = tokio::time::sleep(Duration::from_millis(100));
            match guard.protect(term).await {
                Ok(()) => println!("{candidate} resigns"),
                Err(error) => println!("{candidate} is deposed: {error}"),
            }
            guard.release().await
        });
    }
    candidates.join_all().await.into_iter().collect()
}
