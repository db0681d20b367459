//! Work that Ctrl-C ends.

use std::process;

use baton_client::ClientError;

use crate::{failure::Failure, out::Out};

/// A turn that Ctrl-C ends; the message stays in the journal.
pub(crate) async fn cancellable<T>(turn: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        result = turn => Ok(result?),
    }
}

/// The same at a full-screen view, which reads Ctrl-C as a key.
pub(crate) async fn cancellable_at<T>(
    out: &Out,
    turn: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        () = out.interrupted() => Err(Failure::Interrupted),
        result = turn => Ok(result?),
    }
}

/// Ends the process at a second Ctrl-C, while the first is being handled.
pub(crate) fn leave_at_second_interrupt() {
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            process::exit(130);
        }
    });
}
