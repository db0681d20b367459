//! The heavy integration tests of the test network, as one binary. Each occupies the machine with many
//! processes and depends on their timing, so they run one after another.

#![expect(clippy::unwrap_used, reason = "helpers of a test, where a failure should panic where it happens")]

mod chaos;
mod churn;
mod flood;
mod leftover_processes;
mod memory;

use tokio::sync::{Mutex, MutexGuard};

static MACHINE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test of this binary runs. The test holds the guard until its end.
async fn whole_machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().await
}

/// The same for a test without a runtime.
fn blocking_whole_machine() -> MutexGuard<'static, ()> {
    MACHINE.blocking_lock()
}
