//! Printed output of the commands, and their wait for a signal.

use std::io::{IsTerminal as _, Write as _};

/// Prints one line on standard output. A closed reader is no error.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints one line of progress on standard error, dimmed on a terminal.
pub(crate) fn note(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = if stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        writeln!(stderr, "\x1b[2m{text}\x1b[0m")
    } else {
        writeln!(stderr, "{text}")
    };
}

/// Runs `work` until it is done or a signal comes. A signal drops it, with the processes that it started.
pub(crate) async fn until_signal<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        () = wait_for_signal() => anyhow::bail!("interrupted"),
        result = work => result,
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub(crate) async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => {
            tracing::warn!(%error, "cannot listen for SIGTERM");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
