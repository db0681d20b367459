//! `baton chat`: one message, a prompt ([`super::repl`]) or the full-screen view ([`super::tui`]); and how a turn looks while
//! it runs.

use std::{
    io::{IsTerminal as _, Read as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use baton_client::{
    Client, ClientError, NewSession, Reconciled, ResumeOptions, TurnEvent, TurnInput, TurnOutcome,
};
use baton_proto::{
    ids::{NodeId, SessionId},
    limits::MAX_SCHEMA_BYTES,
    memory::MemoryItem,
    record::{Message, Role},
    turn::Sampling,
};
use serde_json::json;

use super::{
    Failure,
    args::ChatArguments,
    devices, find_session, leave_at_second_interrupt,
    out::{Out, Tone, short},
    random_seed,
    remembering::Remembering,
    repl,
    session::role,
    settings::{self, Settings},
    tui::{self, inbox::Said},
    with_client,
};

/// Most bytes read from standard input as one message; the library names the exact limit.
const MAX_STDIN_BYTES: u64 = 2 * 1024 * 1024;
/// Characters of a memory that are shown.
const SHOWN_CHARS: usize = 120;
/// How long one message's head is waited for, so that another device's turn in its place is told of at once.
const COMPARE_WAIT: Duration = Duration::from_secs(3);
/// Lively, and still on the subject.
pub const DEFAULT_TEMPERATURE: f32 = 0.7;

/// How turns are asked for in this call.
pub struct Talk {
    template: TurnInput,
    memory: Option<Remembering>,
    seed: Option<u64>,
    /// System text of new sessions.
    pub system: Option<String>,
}

impl Talk {
    fn from(settings: &Settings, arguments: &ChatArguments) -> Result<Self, Failure> {
        let mut template = settings.turn(arguments.model.clone(), arguments.allow_echo);
        let relayer = arguments.memory.relayer.as_ref().or(settings.relayer.as_ref());
        template.relayer = relayer.map(|text| settings::relayer(text)).transpose()?;
        if let Some(only) = &arguments.only {
            let node = only.parse::<NodeId>();
            template.node = Some(node.map_err(|error| Failure::Usage(format!("--only: {error}")))?);
        }
        if let Some(tokens) = arguments.max_tokens {
            template.max_output_tokens = tokens;
        }
        template.sampling = Sampling {
            temperature: arguments.temperature.unwrap_or(DEFAULT_TEMPERATURE),
            ..Sampling::default()
        };
        if template.sampling.check().is_err() {
            return Err(Failure::Usage("--temperature is from 0 to 5".to_owned()));
        }
        template.json_schema = arguments.schema.as_deref().map(schema).transpose()?;
        let system = arguments.system.clone().or_else(|| settings.system.clone());
        let memory = Remembering::from(settings, &arguments.memory)?;
        if memory.is_some() && template.relayer.is_none() {
            return Err(Failure::Usage(
                "--memory needs the relayer's address: --relayer /ip4/.../p2p/ID".to_owned(),
            ));
        }
        Ok(Self { template, memory, seed: arguments.seed, system })
    }

    /// An ordinary turn.
    pub fn input(&self, session: SessionId, messages: Vec<Message>, out: &Out) -> TurnInput {
        let hint = self.memory.as_ref().map(|memory| memory.hint(session, &messages, out));
        let mut input = TurnInput { messages, hint, ..self.template.clone() };
        input.sampling.seed = self.seed.unwrap_or_else(random_seed);
        input
    }

    /// Sends an exchange to be remembered, if the user asked for that. A relayer that is away costs a warning.
    pub async fn remember(&self, messages: &[Message], outcome: &TurnOutcome, out: &Out) {
        let Some(memory) = &self.memory else { return };
        if let Some(desk) = &memory.write
            && let Err(failure) = memory.send(desk, messages, outcome).await
        {
            out.warn("the exchange was not remembered:");
            failure.report(out);
        }
    }

    /// Finishes a pending turn: with memory recalled anew where this call has memory, and without, which is said, where the
    /// relayer gives none.
    pub async fn finish_pending(
        &self,
        client: &Client,
        session: SessionId,
        view: &mut View<'_>,
        out: &Out,
    ) -> Result<Option<TurnOutcome>, Failure> {
        let messages = client.pending_messages(session).await?.unwrap_or_default();
        let hint = self.memory.as_ref().map(|memory| memory.hint(session, &messages, out));
        let hinted = hint.is_some();
        let options = ResumeOptions { hint, ..ResumeOptions::of(&self.template) };
        view.begin(&messages);
        let mut result = cancellable_at(out, client.resume(session, options, |event| view.show(event))).await;
        if hinted && matches!(result, Err(Failure::Client(ClientError::TurnFailed { .. }))) {
            view.end_line();
            out.warn(
                "the relayer gave no memory for the message; it is finished without, by a node directly",
            );
            let options = ResumeOptions { relayer: None, ..ResumeOptions::of(&self.template) };
            result = cancellable_at(out, client.resume(session, options, |event| view.show(event))).await;
        }
        if let Ok(Some(outcome)) = &result {
            self.remember(&messages, outcome, out).await;
        }
        result
    }

    /// Takes in what other devices wrote, and says again what lost its place to it, telling about it.
    pub async fn reconcile(
        &self,
        client: &Client,
        session: SessionId,
        out: &Out,
    ) -> Result<Reconciled, Failure> {
        let options = ResumeOptions::of(&self.template);
        let mut view = View::new(out);
        cancellable_at(out, client.reconcile(session, &options, |event| view.show(event))).await
    }

    /// Begins a session.
    pub async fn new_session(&self, client: &Client) -> Result<SessionId, ClientError> {
        let new = self.system.as_ref().map_or_else(NewSession::default, NewSession::with_system);
        client.new_session(new).await
    }
}

pub async fn run(settings: &Settings, arguments: ChatArguments, out: &Out) -> Result<(), Failure> {
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

/// Whether a person sits at both ends.
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
        client.abandon(session).await?;
    }
    let mut view = View::new(out);
    if client.session(session).await?.pending {
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
        view = View::new(out);
    }
    if arguments.session.is_some()
        && let Some(system) = &arguments.system
    {
        client.set_system(session, vec![Message::new(Role::System, system)]).await?;
    }
    let messages = vec![Message::new(Role::User, text)];
    let input = talk.input(session, messages.clone(), out);
    let result = cancellable(client.turn(session, input, |event| view.show(event))).await;
    if result.is_err() {
        view.end_line();
        leave_at_second_interrupt();
        if client.session(session).await.is_ok_and(|info| info.pending) {
            out.note(&format!("the message is kept; it is finished first by: baton chat {session}"));
        }
    }
    let outcome = result?;
    view.finish(&outcome);
    talk.remember(&messages, &outcome, out).await;
    if out.json() {
        let mut summary = summary(&outcome, &view.model);
        if talk.template.json_schema.is_some() {
            // What a limit cut off is no JSON.
            summary["json"] = serde_json::from_str(&outcome.text).unwrap_or_default();
        }
        out.value(&summary)?;
    }
    // Another device may have written in the same place meanwhile.
    if client.wait_compared(session, COMPARE_WAIT).await? {
        talk.reconcile(client, session, out).await?;
    }
    Ok(())
}

/// The session named, or a new one. System text for a named one waits until nothing is pending.
pub async fn open_session(
    client: &Client,
    talk: &Talk,
    arguments: &ChatArguments,
) -> Result<SessionId, Failure> {
    let Some(named) = &arguments.session else { return Ok(talk.new_session(client).await?) };
    find_session(client, named).await
}

/// The JSON schema in a file.
fn schema(path: &Path) -> Result<String, Failure> {
    let wrong = |what: String| Failure::Usage(format!("--schema {}: {what}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(MAX_SCHEMA_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| wrong(error.to_string()))?;
    if text.len() > MAX_SCHEMA_BYTES {
        return Err(wrong(format!("it is longer than {MAX_SCHEMA_BYTES} bytes")));
    }
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if value.is_object() { Ok(text) } else { Err(wrong("a schema is a JSON object".to_owned())) }
}

/// A turn that Ctrl-C ends; the message stays in the journal.
pub async fn cancellable<T>(turn: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        result = turn => Ok(result?),
    }
}

/// The same, where the user may be at a full-screen view, which reads Ctrl-C as a key.
pub async fn cancellable_at<T>(
    out: &Out,
    turn: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        () = out.interrupted() => Err(Failure::Interrupted),
        result = turn => Ok(result?),
    }
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_STDIN_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A turn as it is shown: a line view prints, a full-screen view is handed what happens.
pub struct View<'a> {
    out: &'a Out,
    /// The model's name, as offered.
    pub model: String,
    shown: bool,
}

impl<'a> View<'a> {
    pub fn new(out: &'a Out) -> Self {
        Self { out, model: String::new(), shown: false }
    }

    /// Shows what is said, where that does not stand at a prompt already.
    pub fn begin(&self, messages: &[Message]) {
        if let Some(screen) = self.out.screen()
            && !messages.is_empty()
        {
            screen.push(Said::Begun(said(messages)));
        }
    }

    /// Shows an event. The output may be gone; the turn goes on all the same.
    pub fn show(&mut self, event: TurnEvent) {
        if let TurnEvent::Attempt { model, .. } = &event {
            self.model.clone_from(model);
        }
        match event {
            TurnEvent::Devices(event) => {
                self.end_line();
                devices::tell(&event, self.out);
            }
            event if self.out.screen().is_some() => {
                if let Some(screen) = self.out.screen() {
                    screen.push(Said::Turn(event));
                }
            }
            TurnEvent::Memory(items) => show_memory(&items, self.out),
            TurnEvent::Text(text) if !self.out.json() => {
                self.shown = true;
                let _ = self.out.text(&text);
            }
            event => {
                if matches!(event, TurnEvent::AttemptFailed { .. }) {
                    self.end_line();
                }
                if let Some((tone, text)) = remark(&event) {
                    self.out.say(tone, &text);
                }
            }
        }
    }

    /// The last line of a turn: who served it, and that it was verified.
    pub fn finish(&mut self, outcome: &TurnOutcome) {
        self.end_line();
        match self.out.screen() {
            Some(screen) => screen.push(Said::Finished(outcome.into())),
            None => self.out.good(&verified(outcome)),
        }
    }

    /// Ends a line that text left open.
    pub fn end_line(&mut self) {
        if self.shown {
            let _ = self.out.line("");
            self.shown = false;
        }
    }
}

/// What an event is to a user, beside the text of the conversation.
pub fn remark(event: &TurnEvent) -> Option<(Tone, String)> {
    Some(match event {
        TurnEvent::Attempt { node, model, continues, .. } => {
            let what = if *continues > 0 { " goes on with the answer" } else { "" };
            (Tone::Note, format!("node {}{what} · {model}", short(node)))
        }
        TurnEvent::Waiting(ahead) => (Tone::Note, format!("waiting; {ahead} ahead")),
        TurnEvent::AttemptFailed { node, reason, .. } => {
            (Tone::Warn, format!("node {} failed: {reason}", short(node)))
        }
        TurnEvent::Restarted => (Tone::Note, "the answer so far is void; it starts anew".to_owned()),
        TurnEvent::Memory(_)
        | TurnEvent::Devices(_)
        | TurnEvent::Text(_)
        | TurnEvent::Logprobs(_)
        | TurnEvent::Admitted
        | TurnEvent::Accepted => return None,
    })
}

/// That a turn was verified, and who served it.
pub fn verified(outcome: &TurnOutcome) -> String {
    let tokens = outcome.receipt.tokens;
    format!(
        "✓ verified · turn {} · node {} · {} + {} tokens",
        outcome.seq,
        short(&outcome.node),
        tokens.input,
        tokens.output
    )
}

/// Messages as one text. Who speaks is named unless it is the user.
pub fn said(messages: &[Message]) -> String {
    let texts = messages.iter().map(|message| match message.role {
        Role::User => message.text.clone(),
        other => format!("{}: {}", role(other), message.text),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// What was recalled, as a dim line each.
pub fn show_memory(items: &[MemoryItem], out: &Out) {
    for line in memory_lines(items) {
        out.note(&line);
    }
}

/// What was recalled: how much, and then the beginning of each item.
pub fn memory_lines(items: &[MemoryItem]) -> Vec<String> {
    let lines = items.iter().map(|item| {
        let mut text: String = item.text.chars().take(SHOWN_CHARS).collect();
        if text.len() < item.text.len() {
            text.push('…');
        }
        format!("  · {} ({})", text.replace('\n', " "), item.source)
    });
    std::iter::once(format!("{} memories added", items.len())).chain(lines).collect()
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
