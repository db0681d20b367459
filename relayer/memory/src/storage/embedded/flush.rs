//! Group flush: writers that finish at about the same time share a flush. Blocking.

use std::sync::{Condvar, Mutex, PoisonError};

/// Coordinates flushes.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    state: Mutex<FlushState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    /// Writers that asked for a flush.
    asked: u64,
    /// The writers among them that a flush has covered.
    durable: u64,
    flushing: bool,
}

impl Flushes {
    /// Returns once a flush that began after this call has succeeded: the caller's own, or another's.
    ///
    /// # Errors
    /// The error of the caller's own flush. Other waiting writers then try themselves.
    pub(super) fn share<E>(&self, flush: impl Fn() -> Result<(), E>) -> Result<(), E> {
        // Only plain assignments change the numbers, so a panic leaves them usable.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        let own = state.asked;
        while state.durable < own {
            if state.flushing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.flushing = true;
            let covered = state.asked;
            drop(state);
            let ended = FlushGuard(self);
            let flushed = flush();
            drop(ended);
            flushed?;
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.durable = state.durable.max(covered);
            self.changed.notify_all();
        }
        Ok(())
    }
}

/// Ends a flush, even after a panic or failure.
struct FlushGuard<'a>(&'a Flushes);

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).flushing = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn nobody_returns_before_a_flush_that_began_after_the_write() {
        const WRITERS: u64 = 8;
        const ROUNDS: u64 = 200;
        let flushes = Flushes::default();
        let (written, flushed, count) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let own = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let flush = || {
                            let seen = written.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            // Some flushes fail: their waiting writers must not report success.
                            if count.fetch_add(1, Ordering::SeqCst) % 7 == 3 {
                                return Err(round);
                            }
                            flushed.fetch_max(seen, Ordering::SeqCst);
                            Ok(())
                        };
                        if flushes.share(flush).is_ok() {
                            assert!(flushed.load(Ordering::SeqCst) >= own);
                        }
                    }
                });
            }
        });
        assert!(count.into_inner() <= WRITERS * ROUNDS);
    }
}
