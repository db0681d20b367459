//! `baton chat`: one message, a prompt ([`super::repl`]) or the full-screen view ([`super::tui`]).

use std::{
    io::{IsTerminal as _, Read as _},
    sync::Arc,
    time::Duration,
};

use baton_client::{Client, ClientError, TurnOutcome};
use baton_proto::record::{Message, Role};
use serde_json::json;

use super::{
    Failure,
    args::ChatArguments,
    interrupt::cancellable,
    leave_at_second_interrupt,
    out::Out,
    repl,
    settings::Settings,
    talk::{Talk, TurnDisplay, open_session},
    tui, with_client,
};

/// Most bytes read from standard input as one message; the library names the exact limit.
const MAX_STDIN_BYTES: u64 = 2 * 1024 * 1024;
/// Time to wait for a message's head, so that another device's turn in its place is reported at once.
const COMPARE_WAIT: Duration = Duration::from_secs(3);
pub(crate) async fn run(settings: &Settings, arguments: ChatArguments, out: &Out) -> Result<(), Failure> {
    let talk = Arc::new(Talk::from(settings, &arguments)?);
    with_client(settings, true, async |client| match &arguments.message {
        Some(message) => one_shot(client, &talk, &arguments, message, out).await,
        None if out.json() => Err(Failure::Usage("--json needs --message".to_owned())),
        None if arguments.plain || settings.plain || !at_terminal() => {
            repl::run(client, talk, &arguments, out).await
        }
        None => Box::pin(tui::run(client, talk, &arguments, out)).await,
    })
    .await
}

/// Whether input and output are both terminals.
fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
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
    let session = open_session(client, talk, arguments).await?;
    if arguments.drop_pending {
        client.session(session).abandon().await?;
    }
    let mut view = TurnDisplay::new(out);
    if client.session(session).info().await?.pending {
        out.note("finishing an earlier message first");
        match talk.finish_pending(client, session, &mut view, out).await {
            Ok(outcome) => outcome.iter().for_each(|outcome| view.finish(outcome)),
            Err(failure) => {
                view.end_line();
                out.warn("your new message was not sent and is not kept: the earlier one has no answer yet");
                out.note(&format!(
                    "  send it again later, or give up the earlier one: baton chat {session} --drop-pending --message …"
                ));
                return Err(failure);
            }
        }
        view = TurnDisplay::new(out);
    }
    if arguments.session.is_some()
        && let Some(system) = &arguments.system
    {
        client.session(session).set_system(vec![Message::new(Role::System, system)]).await?;
    }
    let messages = vec![Message::new(Role::User, text)];
    let input = talk.input(session, messages.clone(), out);
    let result = cancellable(client.session(session).turn(input, |event| view.show(event))).await;
    if result.is_err() {
        view.end_line();
        leave_at_second_interrupt();
        if client.session(session).info().await.is_ok_and(|info| info.pending) {
            out.note(&format!("the message is kept; it is finished first by: baton chat {session}"));
        }
    }
    let outcome = result?;
    view.finish(&outcome);
    talk.remember(&messages, &outcome, out).await;
    if out.json() {
        let mut summary = summary(&outcome, &view.model);
        if talk.template.json_schema.is_some() {
            // A truncated answer is no JSON.
            summary["json"] = serde_json::from_str(&outcome.text).unwrap_or_default();
        }
        out.value(&summary)?;
    }
    // Another device may have written in the same place meanwhile.
    if client.session(session).wait_compared(COMPARE_WAIT).await? {
        talk.reconcile(client, session, out).await?;
    }
    Ok(())
}

fn read_stdin() -> Result<String, Failure> {
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
        "node": outcome.node.to_string(),
        "text": outcome.text,
        // A turn that does not rebuild is never returned.
        "verified": true,
        "finish": format!("{:?}", outcome.finish),
        "attempt": outcome.attempt,
        "recalled_facts": outcome.memory.iter().map(|item| json!({ "text": item.text, "source": item.source }))
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
