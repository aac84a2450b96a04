//! What users work with, each written once over the contract.

mod job;
mod latch;
mod ledger;
mod multi;
mod mutex;
mod rw_lock;
mod schedule;
mod semaphore;
mod stock;
mod striped;
mod target;

pub use job::{Job, Overlap, Run};
pub use latch::Latch;
pub use ledger::{LastRun, Rerun};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use rw_lock::{RwLock, WriteGuard};
pub use schedule::Schedule;
pub use semaphore::Semaphore;
pub use stock::StripedStock;
pub use striped::Striped;
