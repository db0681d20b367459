//! The heavy integration tests of the test network, as one binary. Each occupies the machine with many
//! processes and depends on their timing, so they run one after another.

#![expect(clippy::unwrap_used, reason = "helpers of a test, where a failure should panic where it happens")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

mod chaos;
mod checks;
mod churn;
mod flood;
mod leftover_processes;
mod listeners;
mod memory;

// At the root, where the small models of another crate's tests look for it.
#[path = "../../../node/engine/tests/it/support/mod.rs"]
mod support;

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
