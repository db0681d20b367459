//! The signals that ask a program to end: SIGTERM and Ctrl-C.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(not(unix))]
use tokio::signal::windows::{CtrlC, ctrl_c};

/// The stop signals of a process, from [`StopSignals::listen`] on.
///
/// A program listens once, before it does anything that takes time, and keeps the value until it ends. A signal
/// between two calls of [`StopSignals::next`] is kept for the second one. Two values after each other would
/// lose it, because the first one has taken away the default action for good.
#[derive(Debug)]
pub struct StopSignals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(not(unix))]
    interrupt: CtrlC,
}

impl StopSignals {
    /// From now on these signals do not end the process by themselves.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn listen() -> io::Result<Self> {
        #[cfg(unix)]
        return Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        });
        #[cfg(not(unix))]
        Ok(Self { interrupt: ctrl_c()? })
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = self.interrupt.recv().await;
    }

    /// Runs `work` until it is done, or returns `None` at a signal, which drops it. Cancel safe if `work` is.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.next() => None,
            result = work => Some(result),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn signal_this_process(name: &str) {
        let id = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    /// One test: a signal reaches every listener of the process.
    #[tokio::test]
    async fn a_signal_between_two_waits_is_kept_and_taken_once() {
        let mut signals = StopSignals::listen().unwrap();
        for name in ["TERM", "INT"] {
            assert_eq!(signals.unless_stopped(async { 1 }).await, Some(1), "{name}");
            // Nothing waits now.
            signal_this_process(name);
            let forever = std::future::pending::<()>();
            let stopped =
                tokio::time::timeout(Duration::from_secs(20), signals.unless_stopped(forever)).await;
            assert_eq!(stopped, Ok(None), "{name}");
            assert_eq!(signals.unless_stopped(tokio::time::sleep(Duration::from_millis(50))).await, Some(()));
        }
    }
}
