//! Locks between processes, by files.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(2);

/// Locks a file, which is made if missing, until the value is dropped. `None` if another holder keeps it for longer than
/// `patience`. Blocking.
pub(crate) fn lock_file(path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if begin.elapsed() < patience => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
