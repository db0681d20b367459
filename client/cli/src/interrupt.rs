//! The user's word: work that Ctrl-C ends, and questions before a step that cannot be undone.

use std::process;

use baton_client::ClientError;
use baton_kit::prompt;

use crate::{failure::Failure, out::Out};

/// Work that the user may end: by Ctrl-C, or by a key of the full-screen view. A message stays in the journal.
pub(crate) async fn cancellable<T>(
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

/// Asks for a confirmation, unless `yes` gives it already.
///
/// # Errors
/// A usage error where nobody can be asked.
pub(crate) fn confirmed(question: &str, yes: bool) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    let answer = prompt::confirm_at_terminal(question)?;
    answer.ok_or_else(|| Failure::usage("Not running at a terminal.", "pass --yes, in place of the answer"))
}
