//! A single message: the answer is printed, and the program ends.

use std::{
    io::Read as _,
    time::{Duration, Instant},
};

use baton_client::{Client, ClientError, SessionInfo, TurnOutcome};
use baton_proto::record::{Message, Role};
use serde_json::json;

use super::{dialogue::Dialogue, note_saved, options::TurnOptions};
use crate::{
    args::ChatArguments,
    failure::Failure,
    home::GRACE,
    interrupt::leave_at_second_interrupt,
    out::{Out, Tone, finish_name, short, turn_number},
    turn_display::{TurnDisplay, describe_receipt},
};

/// Most bytes read from standard input as one message; the library names the exact limit.
const MAX_STDIN_BYTES: u64 = 2 * 1024 * 1024;
/// Time for further head indexes to take the turn, after one has.
const INDEX_WAIT: Duration = Duration::from_millis(500);

/// A message that was answered.
pub(super) struct AnsweredMessage {
    /// Whether the store confirmed the turn in time.
    pub is_stored: bool,
    /// The end of the time for the turn's background work.
    pub until: Instant,
}

/// Sends one message to the session of the call, after an earlier one without an answer.
pub(crate) async fn run(
    client: &Client,
    options: TurnOptions,
    arguments: &ChatArguments,
    message: &str,
    out: &Out,
) -> Result<(), Failure> {
    let text = read(message)?;
    let mut dialogue = Dialogue::open(client, options, arguments, out.clone()).await?;
    let is_new = arguments.session.is_none() || arguments.branch.is_some();
    if is_new {
        dialogue.options.announce_nodes(out);
    }
    dialogue.options.announce_memory(out);
    let message = Message::new(Role::User, text);
    if dialogue.has_kept_message().await && !dialogue.is_repeated(&message).await? {
        out.note("Finishing an earlier message first.");
        let mut view = TurnDisplay::of_single_message(out, dialogue.session());
        if let Err(failure) = dialogue.finish_pending(&mut view).await {
            view.end_line();
            out.warn("Your new message was not sent: an earlier one has no answer yet.");
            out.note(&format!(
                "  send it again later, or discard the earlier one: baton chat -s {} --drop-pending TEXT",
                short(&dialogue.session())
            ));
            return Err(failure);
        }
    }
    let answered = send(&mut dialogue, message, is_new).await?;
    client.shutdown(left(answered.until)).await;
    Ok(())
}

/// The text of a message; `-` is standard input.
pub(super) fn read(message: &str) -> Result<String, Failure> {
    let mut text = message.to_owned();
    if message == "-" {
        text.clear();
        std::io::stdin().lock().take(MAX_STDIN_BYTES).read_to_string(&mut text)?;
    }
    if text.trim().is_empty() { Err(ClientError::EmptyMessage.into()) } else { Ok(text) }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Sends one message and prints the answer. `is_new` says that this call began the session, and can be repeated.
pub(super) async fn send(
    dialogue: &mut Dialogue,
    message: Message,
    is_new: bool,
) -> Result<AnsweredMessage, Failure> {
    let (handle, session, out) = (dialogue.handle(), dialogue.session(), dialogue.out().clone());
    let mut view = TurnDisplay::of_single_message(&out, session);
    let result = dialogue.ask(message, &mut view).await;
    if result.is_err() {
        view.end_line();
        leave_at_second_interrupt();
        let is_kept = match &result {
            Err(Failure::Client(error)) => handle.keeps_message(error, is_new).await,
            _ => handle.info().await.map(|info| info.pending),
        };
        if is_kept.unwrap_or(false) {
            note_saved(session, &out);
        }
    }
    let outcome = result.map_err(|failure| match failure {
        Failure::Client(error) => Failure::of_session(error, &session),
        failure => failure,
    })?;
    let until = Instant::now() + GRACE;
    // The program is about to end: a blob that no store has yet waits on this device.
    let is_stored = out.while_slow("Storing …", handle.wait_settled(left(until))).await?;
    if is_stored {
        handle.wait_published(INDEX_WAIT.min(left(until))).await?;
    }
    if out.json() {
        let mut summary = summary(&outcome, &view.model);
        summary["stored"] = json!(is_stored);
        if dialogue.options.template.json_schema.is_some() {
            // A truncated answer is no JSON.
            summary["json"] = serde_json::from_str(&outcome.text).unwrap_or_default();
        }
        out.value(&summary)?;
    } else if let Some((tone, text)) = storage_remark(&handle.info().await?) {
        out.say(tone, &text);
    }
    // Another device may have written in the same place meanwhile. An index that did not answer so far is not waited for.
    let compare_wait = if is_stored { left(until) } else { Duration::ZERO };
    if handle.wait_compared(compare_wait).await? {
        dialogue.reconcile().await?;
    }
    Ok(AnsweredMessage { is_stored, until })
}

/// The place that lacks a part of the session, if one does: the store a blob, or head indexes the head.
fn storage_remark(info: &SessionInfo) -> Option<(Tone, String)> {
    let again = format!("Try again: baton session renew {}", short(&info.id));
    if info.unstored > 0 {
        let text =
            format!("⚠ Not stored yet: the store did not confirm this turn. Why: baton doctor. {again}");
        return Some((Tone::Warn, text));
    }
    if !info.is_published {
        let text =
            "⚠ Stored, but no head index took the turn: other devices do not find it yet. Why: baton doctor.";
        return Some((Tone::Warn, format!("{text} {again}")));
    }
    (!info.lacking_indexes.is_empty()).then(|| {
        let lacking = info.lacking_indexes.join(" and ");
        (Tone::Note, format!("Stored. Not yet in {lacking}; another head index has the turn."))
    })
}

/// The JSON of a finished turn.
fn summary(outcome: &TurnOutcome, model: &str) -> serde_json::Value {
    json!({
        "session": outcome.session.to_string(),
        "seq": outcome.seq,
        "turn": turn_number(outcome.seq),
        "node": outcome.node.to_string(),
        "text": outcome.text,
        // A turn that does not rebuild is never returned.
        "verified": true,
        "finish": finish_name(outcome.finish),
        "attempt": outcome.attempt,
        "omitted": { "turns": outcome.omitted.turns, "memories": outcome.omitted.memories },
        "memories_used": outcome.memory.iter().map(|item| json!({ "text": item.text, "source": item.source }))
            .collect::<Vec<_>>(),
        "receipt": describe_receipt(&outcome.receipt, Some(model)),
    })
}
