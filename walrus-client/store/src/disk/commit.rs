//! Group commit: concurrent writers share one flush.

use std::sync::{Condvar, Mutex, PoisonError};

/// Coordinates flushes. Writers block; callers run them off the reactor.
#[derive(Debug, Default)]
pub(super) struct Committer {
    state: Mutex<CommitState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CommitState {
    /// Writers so far.
    writers: u64,
    /// Writers that a flush has covered.
    durable: u64,
    flushing: bool,
}

impl Committer {
    /// Returns once a flush that began after this call has succeeded: the caller's own, or another's.
    ///
    /// # Errors
    /// The error of the caller's own flush. Other waiting writers then try themselves.
    pub(super) fn commit<E>(&self, flush: impl Fn() -> Result<(), E>) -> Result<(), E> {
        // Only plain assignments change the numbers: a panic leaves them usable.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.writers += 1;
        let own = state.writers;
        loop {
            if state.durable >= own {
                return Ok(());
            }
            if state.flushing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.flushing = true;
            let covered = state.writers;
            drop(state);
            let ended = Flushing(self);
            let flushed = flush();
            drop(ended);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if flushed.is_ok() {
                state.durable = state.durable.max(covered);
            }
            self.changed.notify_all();
            flushed?;
        }
    }
}

/// Ends a flush, even after a panic.
struct Flushing<'a>(&'a Committer);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).flushing = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    #[test]
    fn nobody_returns_before_a_flush_that_began_after_the_write() {
        const WRITERS: u64 = 8;
        const ROUNDS: u64 = 200;
        let committer = Committer::default();
        let (written, flushed, flushes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let own = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let flush = || {
                            let seen = written.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            flushed.fetch_max(seen, Ordering::SeqCst);
                            flushes.fetch_add(1, Ordering::SeqCst);
                            Ok::<_, ()>(())
                        };
                        committer.commit(flush).unwrap();
                        assert!(flushed.load(Ordering::SeqCst) >= own);
                    }
                });
            }
        });
        assert!(flushes.into_inner() <= WRITERS * ROUNDS);
    }

    #[test]
    fn waiting_writers_retry_a_failed_flush() {
        let committer = Committer::default();
        let (inside, waiting) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                committer.commit(|| {
                    inside.wait();
                    waiting.wait();
                    Err("disk")
                })
            });
            inside.wait();
            let second = scope.spawn(|| committer.commit(|| Ok::<_, &str>(())));
            // The second writer has its number once it has called `commit`, even before it waits.
            while committer.state.lock().unwrap().writers < 2 {
                std::thread::yield_now();
            }
            waiting.wait();
            assert_eq!(failing.join().unwrap(), Err("disk"));
            assert_eq!(second.join().unwrap(), Ok(()));
        });
    }
}
