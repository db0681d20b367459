//! Locking a mutex of this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks even after a panic elsewhere: every critical section leaves its data valid, and a panic ends the
/// process anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
