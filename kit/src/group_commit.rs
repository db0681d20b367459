//! Group commit: concurrent writers share one flush. Blocking.
//!
//! The embedded store calls it with a flush of its own files. A caller waits for a disk, so it runs off the
//! reactor.

use parking_lot::{Condvar, Mutex};

/// Coordinates the flushes of one file, or of files that are flushed together.
#[derive(Debug, Default)]
pub struct GroupCommit {
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

impl GroupCommit {
    /// Returns once a flush that began after this call has succeeded: the caller's own, or another's.
    ///
    /// # Errors
    /// The error of the caller's own flush. Other waiting writers then try themselves.
    pub fn commit<E>(&self, flush: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        state.writers += 1;
        let own = state.writers;
        while state.durable < own {
            if state.flushing {
                self.changed.wait(&mut state);
                continue;
            }
            state.flushing = true;
            let covered = state.writers;
            drop(state);
            let guard = FlushGuard(self);
            let flushed = flush();
            drop(guard);
            flushed?;
            state = self.state.lock();
            state.durable = state.durable.max(covered);
            self.changed.notify_all();
        }
        Ok(())
    }
}

/// Ends a flush, even after a panic or failure.
struct FlushGuard<'a>(&'a GroupCommit);

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().flushing = false;
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

    /// Many writers at once; a flush fails where `fails` says so of its number.
    fn check(fails: fn(u64) -> bool) {
        const WRITERS: u64 = 8;
        const ROUNDS: u64 = 200;
        let group = GroupCommit::default();
        let (written, flushed, count) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let flush = || {
            let seen = written.load(Ordering::SeqCst);
            std::thread::yield_now();
            if fails(count.fetch_add(1, Ordering::SeqCst)) {
                return Err("disk");
            }
            flushed.fetch_max(seen, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let own = written.fetch_add(1, Ordering::SeqCst) + 1;
                        if group.commit(flush).is_ok() {
                            assert!(flushed.load(Ordering::SeqCst) >= own);
                        }
                    }
                });
            }
        });
        assert!(count.load(Ordering::SeqCst) <= WRITERS * ROUNDS);
    }

    #[test]
    fn nobody_returns_before_a_flush_that_began_after_the_write() {
        check(|_| false);
    }

    #[test]
    fn no_writer_of_a_failed_flush_reports_success() {
        check(|number| number % 7 == 3);
    }

    #[test]
    fn waiting_writers_retry_a_failed_flush() {
        let group = GroupCommit::default();
        let (inside, waiting) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                group.commit(|| {
                    inside.wait();
                    waiting.wait();
                    Err("disk")
                })
            });
            inside.wait();
            let second = scope.spawn(|| group.commit(|| Ok::<_, &str>(())));
            // The second writer has its number once it has called `commit`, even before it waits.
            while group.state.lock().writers < 2 {
                std::thread::yield_now();
            }
            waiting.wait();
            assert_eq!(failing.join().unwrap(), Err("disk"));
            assert_eq!(second.join().unwrap(), Ok(()));
        });
    }
}
