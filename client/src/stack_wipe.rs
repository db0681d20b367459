//! Blocking work that uses a session's root. Its thread is reused, so the work's part of the stack is wiped.

use tokio::task::JoinHandle;

use crate::error::ClientError;

/// Deeper than such work gets, also without optimisation.
const WIPED_BYTES: usize = 512 * 1024;

/// As [`tokio::task::spawn_blocking`], but wipes the stack after the work.
pub(crate) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // In a box, so that until it runs the work's data moves on the heap alone.
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(move || {
        let done = run(work);
        baton_keys::stack::wipe(WIPED_BYTES);
        done
    })
}

/// The result of work in [`spawn_blocking`].
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ClientError> {
    spawn_blocking(work).await.map_err(|_| ClientError::TaskEnded)
}

/// A frame of its own, which has ended when the stack is wiped.
#[inline(never)]
fn run<T>(work: Box<dyn FnOnce() -> T + Send>) -> T {
    work()
}
