//! Whether the store can write, or the reason why not.

use std::{
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::super::{config::OpenError, error::is_no_room};

/// Time between two attempts to write while writing fails.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The last write's outcome.
#[derive(Debug, Default)]
pub(crate) struct WriteHealth {
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    failure: Option<String>,
    probed: Option<Instant>,
}

impl OpenError {
    /// An error of the system about a store's folder or its content.
    pub(super) fn path(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if is_no_room(&source) { Self::NoRoom { path, source } } else { Self::Path { path, source } }
    }
}

impl WriteHealth {
    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a failed write, and returns its result.
    pub(super) fn note<T>(&self, written: io::Result<T>) -> io::Result<T> {
        written.inspect_err(|error| {
            let why =
                if is_no_room(error) { "the disk has no room" } else { "the disk refuses to be written" };
            let mut state = self.lock();
            if state.failure.is_none() {
                tracing::error!(%error, "{why}: nothing is stored until this ends; reads go on");
            }
            state.failure = Some(format!("{why}: {error}"));
        })
    }

    /// Notes that all writes of a PUT succeeded.
    pub(super) fn works(&self) {
        let mut state = self.lock();
        if state.failure.take().is_some() {
            tracing::info!("the disk can be written again: the store stores again");
        }
    }

    /// The reason why nothing can be stored, if any.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Whether a test write is due. The caller then tries it.
    pub(super) fn is_probe_due(&self) -> bool {
        let mut state = self.lock();
        let due = state.failure.is_some() && state.probed.is_none_or(|at| at.elapsed() >= PROBE_INTERVAL);
        if due {
            state.probed = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_reported_until_one_succeeds() {
        let health = WriteHealth::default();
        assert!(!health.is_probe_due());
        health.note::<()>(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(health.failure().unwrap().starts_with("the disk has no room: "));
        assert!(health.is_probe_due() && !health.is_probe_due(), "once in a while");
        health.note(Ok(())).unwrap();
        assert!(health.failure().is_some(), "a part of a PUT is not all of it");
        health.works();
        assert_eq!(health.failure(), None);
    }
}
