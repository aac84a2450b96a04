//! Loss stops the work: a fixed lease of one second against work that takes a minute.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use lockkeeper::{Error, Locks};

#[tokio::main]
async fn main() -> lockkeeper::Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let locks = Locks::connect(&url).await?.lease(Duration::from_secs(1));
    let guard = locks.mutex("example/slow").lock().await?;
    let work = async {
        for step in 1.. {
            tokio::time::sleep(Duration::from_millis(200)).await;
            println!("step {step}, safe for another {:?}", guard.remaining().unwrap_or_default());
        }
    };
    match guard.protect(work).await {
        Err(Error::Lost { cause, .. }) => println!("stopped in time: {cause}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
