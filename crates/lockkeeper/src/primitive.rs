//! What users work with, each written once over the contract.

mod latch;
mod multi;
mod mutex;
mod rw_lock;
mod semaphore;
mod stock;
mod striped;
mod target;

pub use latch::Latch;
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::Semaphore;
pub use stock::StripedStock;
pub use striped::Striped;
