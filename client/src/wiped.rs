//! Blocking work in which a session's root is used. Its thread goes on to other work, so what the work left on the stack is wiped.

use tokio::task::JoinHandle;

/// Deeper than such work gets, also without optimisation.
const WIPED_BYTES: usize = 512 * 1024;

/// As [`tokio::task::spawn_blocking`], with the stack wiped behind the work.
pub(crate) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // In a box: what the work holds is moved on the heap alone until it runs.
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(move || {
        let done = run(work);
        baton_keys::stack::wipe(WIPED_BYTES);
        done
    })
}

/// A frame of its own, which has ended when the stack is wiped.
#[inline(never)]
fn run<T>(work: Box<dyn FnOnce() -> T + Send>) -> T {
    work()
}
