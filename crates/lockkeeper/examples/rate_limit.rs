//! At most three uploads at a time, over all processes that use the same store.
#![allow(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::Locks;

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?;
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut uploads = tokio::task::JoinSet::new();
    for upload in 1..=9 {
        let slots = locks.semaphore("example/uploads", 3);
        let under_way = Arc::clone(&under_way);
        uploads.spawn(async move {
            let permit = slots.acquire().await?;
            let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
            println!("upload {upload} begins; {now} under way");
            tokio::time::sleep(Duration::from_millis(100)).await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        });
    }
    uploads.join_all().await.into_iter().collect()
}
