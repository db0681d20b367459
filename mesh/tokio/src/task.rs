//! Tasks on the page's event loop.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, Abortable, Aborted},
    stream::FuturesUnordered,
};
use tokio::sync::oneshot;

/// Runs a future on the page's event loop. It runs on when the handle is dropped.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (abort, registration) = AbortHandle::new_pair();
    let (sender, receiver) = oneshot::channel();
    wasm_bindgen_futures::spawn_local(async move {
        // Nobody may wait for the outcome.
        let _ = sender.send(Abortable::new(future, registration).await);
    });
    JoinHandle { abort, receiver }
}

/// Runs a function that takes long. A page has one thread, so it runs at once.
pub fn spawn_blocking<F, T>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    let outcome = work();
    spawn(async move { outcome })
}

/// A task's outcome to come.
pub struct JoinHandle<T> {
    abort: AbortHandle,
    receiver: oneshot::Receiver<Result<T, Aborted>>,
}

impl<T> JoinHandle<T> {
    /// Ends the task at the next point where it waits.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.receiver.is_empty() || self.receiver.is_terminated()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A task that panics takes the page's program with it, so a lost sender means an ended page.
        let outcome = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        Poll::Ready(match outcome {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(Aborted)) | Err(_) => Err(JoinError(())),
        })
    }
}

/// The task was aborted.
#[derive(Debug)]
pub struct JoinError(());

impl JoinError {
    /// Whether the task was aborted: always, since a panic ends the page's program.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        true
    }

    /// Whether the task panicked: never, as for [`Self::is_cancelled`].
    #[must_use]
    pub fn is_panic(&self) -> bool {
        false
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task was aborted")
    }
}

impl std::error::Error for JoinError {}

/// Tasks whose outcomes are taken as they come. Those that still run end with the set.
#[derive(Debug)]
pub struct JoinSet<T> {
    tasks: FuturesUnordered<JoinHandle<T>>,
}

impl<T: 'static> JoinSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self { tasks: FuturesUnordered::new() }
    }

    /// Runs a future on the page's event loop.
    pub fn spawn(&mut self, future: impl Future<Output = T> + 'static) {
        self.tasks.push(spawn(future));
    }

    /// The next outcome; `None` of an empty set. Cancel safe.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.tasks.next().await
    }

    /// An outcome that is there now.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.tasks.next().now_or_never().flatten()
    }

    /// Ends the tasks, and waits until they have ended.
    pub async fn shutdown(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        while self.join_next().await.is_some() {}
    }

    /// How many outcomes are not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl<T: 'static> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
