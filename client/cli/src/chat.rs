//! `baton chat`: one message, a prompt ([`super::repl`]) or the full-screen view ([`super::tui`]).

use std::{
    io::{IsTerminal as _, Read as _},
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{Client, ClientError, SessionInfo, TurnOutcome};
use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
};
use serde_json::json;

use super::{
    Failure, GRACE,
    args::ChatArguments,
    find_session,
    interrupt::cancellable,
    leave_at_second_interrupt,
    nodes::named_node,
    opening::{OpenedSession, open_session},
    out::{Out, Tone, finish_name, short_session, turn_number},
    repl,
    settings::Settings,
    talk::{Talk, TurnDisplay, note_saved, while_waiting},
    tui, with_client,
};

/// Most bytes read from standard input as one message; the library names the exact limit.
const MAX_STDIN_BYTES: u64 = 2 * 1024 * 1024;
/// Time for further head indexes to take the turn, after one has.
const INDEX_WAIT: Duration = Duration::from_millis(500);

pub(crate) async fn run(settings: &Settings, arguments: ChatArguments, out: &Out) -> Result<(), Failure> {
    let mut talk = Talk::from(settings, &arguments).await?;
    Box::pin(with_client(settings, true, async |client| {
        talk.template.node = named_node(client, arguments.answering.only.as_deref()).await?;
        let talk = Arc::new(talk);
        let arguments = with_session(client, arguments).await?;
        match &arguments.message {
            Some(message) => Box::pin(one_shot(client, &talk, &arguments, message, out)).await,
            None if out.json() => Err(Failure::Usage("--json needs a message: baton chat TEXT".to_owned())),
            None if arguments.schema.is_some() => {
                Err(Failure::Usage("--schema needs a message: baton chat TEXT".to_owned()))
            }
            None if arguments.plain || settings.plain || !at_terminal() => {
                repl::run(client, talk, &arguments, out).await
            }
            None => Box::pin(tui::run(client, talk, &arguments, out)).await,
        }
    }))
    .await
}

/// Whether input and output are both terminals.
pub(crate) fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// The arguments with a session and a message in their own fields. A text that names a session of this home
/// continues it, as in earlier versions; all other text is a message.
async fn with_session(client: &Client, mut arguments: ChatArguments) -> Result<ChatArguments, Failure> {
    if arguments.continue_last {
        arguments.session = Some("last".to_owned());
    }
    if arguments.branch.is_some() && arguments.session.is_none() {
        return Err(Failure::usage(
            "--branch needs a session.",
            "name it: -s SESSION, or -c for the last one",
        ));
    }
    let Some(text) = arguments.text.take() else { return Ok(arguments) };
    let names_session = arguments.session.is_none()
        && (arguments.message.is_some() || may_be_id(&text) && find_session(client, &text).await.is_ok());
    match names_session {
        true => arguments.session = Some(text),
        false if arguments.message.is_some() => {
            return Err(Failure::Usage("one message at a time: give it as TEXT".to_owned()));
        }
        false => arguments.message = Some(text),
    }
    Ok(arguments)
}

/// Whether a text may name a session: `last`, or enough digits of an id.
fn may_be_id(text: &str) -> bool {
    text == "last" || (text.len() >= 6 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

async fn one_shot(
    client: &Client,
    talk: &Talk,
    arguments: &ChatArguments,
    message: &str,
    out: &Out,
) -> Result<(), Failure> {
    let text = if message == "-" { read_stdin()? } else { message.to_owned() };
    if text.trim().is_empty() {
        return Err(ClientError::EmptyMessage.into());
    }
    let OpenedSession { session, history } = open_session(client, talk, arguments, out).await?;
    let handle = client.session(session);
    if arguments.drop_pending {
        handle.abandon().await?;
    }
    talk.announce_nodes(out);
    if handle.info().await?.pending {
        out.note("Finishing an earlier message first.");
        let mut view = TurnDisplay::of_single_message(out, session);
        match talk.finish_pending(client, session, &mut view, out).await {
            Ok(outcome) => outcome.iter().for_each(|outcome| view.finish(outcome)),
            Err(failure) => {
                view.end_line();
                out.warn("Your new message was not sent: an earlier one has no answer yet.");
                out.note(&format!(
                    "  send it again later, or discard the earlier one: baton chat -s {} --drop-pending TEXT",
                    short_session(&session)
                ));
                return Err(failure);
            }
        }
    }
    if arguments.session.is_some()
        && arguments.branch.is_none()
        && let Some(system) = &arguments.system
    {
        handle.set_system(vec![Message::new(Role::System, system)]).await?;
    }
    let is_new = arguments.session.is_none() || arguments.branch.is_some();
    let (_, until) = say(client, talk, OpenedSession { session, history }, (text, is_new), out).await?;
    client.shutdown(left(until)).await;
    Ok(())
}

/// The time until then.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Sends one message and prints the answer. `is_new` says that this call began the session, and can be repeated.
/// Returns whether the store confirmed the turn in time, and the end of the time for the turn's background work.
pub(crate) async fn say(
    client: &Client,
    talk: &Talk,
    OpenedSession { session, history }: OpenedSession,
    (text, is_new): (String, bool),
    out: &Out,
) -> Result<(bool, Instant), Failure> {
    let handle = client.session(session);
    let mut view = TurnDisplay::of_single_message(out, session);
    let messages = vec![Message::new(Role::User, text)];
    let mut input = talk.input(session, messages.clone(), out);
    drop(input.messages.splice(..0, history));
    let started = view.started();
    let turn = Box::pin(handle.turn(input, |event| view.show(event)));
    let result = cancellable(while_waiting(client, out, started, turn)).await;
    if result.is_err() {
        view.end_line();
        leave_at_second_interrupt();
        let is_kept = match &result {
            Err(Failure::Client(error)) => handle.keeps_message(error, is_new).await,
            _ => handle.info().await.map(|info| info.pending),
        };
        if is_kept.unwrap_or(false) {
            note_saved(session, out);
        }
    }
    let outcome = result.map_err(|failure| hint_at(failure, session))?;
    view.finish(&outcome);
    let until = Instant::now() + GRACE;
    talk.note_announced();
    talk.remember(&messages, &outcome, out).await;
    // The program is about to end: a blob that no store has yet waits on this device.
    let stored = out.while_slow("Storing …", handle.wait_settled(left(until))).await?;
    if stored {
        handle.wait_published(INDEX_WAIT.min(left(until))).await?;
    }
    if let Some((tone, text)) = storage_remark(&handle.info().await?)
        && !out.json()
    {
        out.say(tone, &text);
    }
    if out.json() {
        let mut summary = summary(&outcome, &view.model);
        summary["stored"] = json!(stored);
        if talk.template.json_schema.is_some() {
            // A truncated answer is no JSON.
            summary["json"] = serde_json::from_str(&outcome.text).unwrap_or_default();
        }
        out.value(&summary)?;
    }
    // Another device may have written in the same place meanwhile. An index that did not answer so far is not waited for.
    let compare_wait = if stored { left(until) } else { Duration::ZERO };
    if handle.wait_compared(compare_wait).await? {
        talk.reconcile(client, session, out).await?;
    }
    Ok((stored, until))
}

/// The place that lacks a part of the session, if one does: the store a blob, or head indexes the head.
fn storage_remark(info: &SessionInfo) -> Option<(Tone, String)> {
    let again = format!("Try again: baton session renew {}", short_session(&info.id));
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

/// The failure, with the session's id in the next step where it names the session.
fn hint_at(failure: Failure, session: SessionId) -> Failure {
    match failure {
        Failure::Client(error @ ClientError::Deleted) => {
            let id = short_session(&session);
            let hint = format!(
                "begin another: baton chat; read its turns here: baton session show {id}; remove it here: baton session \
                 delete {id}"
            );
            Failure::Hinted { error, hint }
        }
        failure => failure,
    }
}

pub(crate) fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_STDIN_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The JSON of a finished turn.
fn summary(outcome: &TurnOutcome, model: &str) -> serde_json::Value {
    let receipt = &outcome.receipt;
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
        "receipt": {
            "hash": receipt.receipt_hash().to_string(),
            "model": receipt.model.to_string(),
            "model_name": model,
            "engine": receipt.engine.name(),
            "input_tokens": receipt.tokens.input,
            "output_tokens": receipt.tokens.output,
            "memory_tokens": receipt.tokens.memory,
            "memory_items": receipt.memory_items,
            "seed": receipt.seed,
            "price": receipt.price,
            "first_token_ms": receipt.timings.first_token_ms,
            "decode_ms": receipt.timings.decode_ms,
        },
    })
}
