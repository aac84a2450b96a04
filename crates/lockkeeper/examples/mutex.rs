//! One at a time: ten tasks count to a hundred together. Run it twice at once with `file:` as the
//! argument and the two processes take turns.
#![allow(clippy::print_stdout, reason = "an example")]

use lockkeeper::Locks;

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 1..=10 {
        let mutex = locks.mutex("example/counter");
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = mutex.lock().await?;
                println!("task {task} under token {}", guard.token());
                guard.release().await?;
            }
            lockkeeper::Result::Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect()
}
