//! Turns of a conversation, for every view: their inputs, and how they look while they run.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use baton_client::{
    Client, ClientError, DeviceEvent, MODEL_OUTPUT_TOKENS, NewSession, OtherNodes, ReconcileReport,
    ResumeOptions, TurnEvent, TurnInput, TurnOutcome,
};
use baton_keys::files::replace_private;
use baton_proto::{
    ErrorCode,
    ids::{NodeId, SessionId},
    limits::MAX_SCHEMA_BYTES,
    memory::MemoryItem,
    record::{FinishReason, Message, Role},
    turn::Sampling,
};

use super::{
    Failure,
    args::{ChatArguments, MemoryArguments},
    interrupt::cancellable_at,
    out::{Out, Tone, count, memories, role, short, short_session, turn_number},
    random_seed,
    relayer_memory::RelayerMemory,
    settings::{AnsweringNodes, Settings},
};

/// Most characters shown of a recalled item.
const SHOWN_CHARS: usize = 120;
/// A turn without an event for this long is said to look for nodes.
const SEARCH_REMARK: Duration = Duration::from_millis(700);
/// A turn without an event for this long names the nodes that cannot be reached.
pub(crate) const FAILURE_REMARK: Duration = Duration::from_secs(3);

/// Options of this call's turns.
#[derive(Clone)]
pub(crate) struct Talk {
    pub template: TurnInput,
    memory: Option<Arc<RelayerMemory>>,
    seed: Option<u64>,
    /// System text of new sessions.
    pub system: Option<String>,
    answering: AnsweringNodes,
    announcement_mark: PathBuf,
    /// Whether the home had a conversation at the start.
    has_conversations: bool,
}

/// The memory of a conversation, if it uses one.
pub(crate) fn memory(
    settings: &Settings,
    arguments: &MemoryArguments,
    template: &TurnInput,
) -> Result<Option<RelayerMemory>, Failure> {
    let memory = RelayerMemory::from(settings, arguments)?;
    if memory.is_some() && template.relayer.is_none() {
        return Err(Failure::Usage(
            "--memory needs a relayer: --relayer https://HOST, or its libp2p address".to_owned(),
        ));
    }
    Ok(memory)
}

impl Talk {
    /// Builds them from settings and arguments.
    pub(crate) async fn from(settings: &Settings, arguments: &ChatArguments) -> Result<Self, Failure> {
        let mut template = settings.turn(&arguments.answering, arguments.memory.memory).await?;
        template.json_schema = arguments.schema.as_deref().map(schema).transpose()?;
        let system = arguments.system.clone().or_else(|| settings.system.clone());
        let memory = memory(settings, &arguments.memory, &template)?.map(Arc::new);
        Ok(Self {
            template,
            memory,
            seed: arguments.seed,
            system,
            answering: settings.answering_nodes(),
            announcement_mark: settings.announcement_mark(),
            has_conversations: settings.has_conversations(),
        })
    }

    /// Says which nodes may answer, until one has.
    pub(crate) fn announce_nodes(&self, out: &Out) {
        if self.is_announced() {
            return;
        }
        match self.answering {
            AnsweringNodes::LocalNetwork => {
                out.warn(
                    "No node is named, so nodes of the local network answer. They read what you send them.",
                );
                out.note(
                    "  Name others with --node, or in the settings file. This is said until a node has answered.",
                );
            }
            AnsweringNodes::Named(1) => out.note("Your named node answers, and no other."),
            AnsweringNodes::Named(nodes) => {
                out.note(&format!("Your {nodes} named nodes answer, and no others."))
            }
            AnsweringNodes::Introduced => {
                out.warn("Nodes that your named nodes introduce may answer. They read what you send them.");
                out.note(
                    "  Keep to the named ones with --discover=false. This is said until a node has answered.",
                );
            }
        }
    }

    /// Notes that a node answered, so that [`Talk::announce_nodes`] was heeded or not.
    pub(crate) fn note_announced(&self) {
        if let Some(kind) = self.answering.kind().filter(|_| !self.is_announced()) {
            // Without the mark it is said again.
            let _ = replace_private(&self.announcement_mark, kind.as_bytes());
        }
    }

    /// Whether these nodes were announced, and one has answered since.
    fn is_announced(&self) -> bool {
        let noted = || std::fs::read_to_string(&self.announcement_mark).ok();
        self.answering
            .kind()
            .map_or(self.has_conversations, |kind| noted().is_some_and(|noted| noted == kind))
    }

    /// Sets a parameter from `name=value`.
    pub(crate) fn set(&mut self, text: &str) -> Result<(), Failure> {
        let wrong = || {
            Failure::usage(format!("{text} is no parameter"), "temperature=0.7, max_tokens=2048 or seed=1")
        };
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        match name {
            "temperature" => {
                let temperature = value.parse().map_err(|_| wrong())?;
                let sampling = Sampling { temperature, ..Sampling::default() };
                sampling.check().map_err(|_| Failure::Usage("The temperature is from 0 to 5.".to_owned()))?;
                self.template.sampling.temperature = temperature;
            }
            "max_tokens" if value == "auto" => self.template.max_output_tokens = MODEL_OUTPUT_TOKENS,
            "max_tokens" => self.template.max_output_tokens = value.parse().map_err(|_| wrong())?,
            "seed" if value == "random" => self.seed = None,
            "seed" => self.seed = Some(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// The parameters, as [`Talk::set`] takes them.
    pub(crate) fn params(&self) -> String {
        let seed = self.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
        let template = &self.template;
        let tokens = match template.max_output_tokens {
            MODEL_OUTPUT_TOKENS => "auto".to_owned(),
            tokens => tokens.to_string(),
        };
        format!("temperature={} max_tokens={tokens} seed={seed}", template.sampling.temperature)
    }

    /// An ordinary turn.
    pub(crate) fn input(&self, session: SessionId, messages: Vec<Message>, out: &Out) -> TurnInput {
        let hint = self.memory.as_ref().map(|memory| memory.hint(session, &messages, out));
        let mut input = TurnInput { messages, hint, ..self.template.clone() };
        input.sampling.seed = self.seed.unwrap_or_else(random_seed);
        input
    }

    /// Sends an exchange to be remembered, if the user wants that. An unreachable relayer costs a warning.
    pub(crate) async fn remember(&self, messages: &[Message], outcome: &TurnOutcome, out: &Out) {
        let Some(memory) = &self.memory else { return };
        if let Some(relayer) = &memory.write
            && let Err(failure) = memory.send(relayer, None, messages, outcome).await
        {
            out.warn("The relayer did not remember this exchange:");
            failure.report(out);
        }
    }

    /// Finishes a pending turn: with memory recalled anew if this call has memory, and without it, with a
    /// remark, if the relayer gives none.
    pub(crate) async fn finish_pending(
        &self,
        client: &Client,
        session: SessionId,
        view: &mut TurnDisplay<'_>,
        out: &Out,
    ) -> Result<Option<TurnOutcome>, Failure> {
        let handle = client.session(session);
        let messages = handle.pending_messages().await?.unwrap_or_default();
        let hint = self.memory.as_ref().map(|memory| memory.hint(session, &messages, out));
        let hinted = hint.is_some();
        let options = ResumeOptions { hint, ..ResumeOptions::of(&self.template) };
        view.begin(&messages);
        let started = view.started();
        let resumed = Box::pin(handle.resume(options, |event| view.show(event)));
        let mut result = cancellable_at(out, while_waiting(client, out, started, resumed)).await;
        if hinted && matches!(result, Err(Failure::Client(ClientError::TurnFailed { .. }))) {
            view.end_line();
            out.warn("The relayer did not answer. A node answers directly, without memory.");
            let options = ResumeOptions { relayer: None, ..ResumeOptions::of(&self.template) };
            result = cancellable_at(out, handle.resume(options, |event| view.show(event))).await;
        }
        if let Ok(Some(outcome)) = &result {
            self.remember(&messages, outcome, out).await;
        }
        result
    }

    /// Merges other devices' turns, and says so.
    pub(crate) async fn reconcile(
        &self,
        client: &Client,
        session: SessionId,
        out: &Out,
    ) -> Result<ReconcileReport, Failure> {
        let mut view = TurnDisplay::new(out);
        cancellable_at(out, client.session(session).reconcile(|event| view.show(event))).await
    }

    /// Begins a session.
    pub(crate) async fn new_session(&self, client: &Client) -> Result<SessionId, ClientError> {
        let new = self.system.as_ref().map_or_else(NewSession::default, NewSession::with_system);
        client.new_session(new).await
    }
}

/// Says that the message without an answer is in this session's journal.
pub(crate) fn note_saved(session: SessionId, out: &Out) {
    if let Some(command) = out.continuation(&short_session(&session)) {
        out.note(&format!("Your message is saved. Continue with: {command}"));
    }
}

/// Shows a turn: a line view prints it, a full-screen view receives its events.
pub(crate) struct TurnDisplay<'a> {
    out: &'a Out,
    /// The model's name, as offered.
    pub model: String,
    shown: bool,
    text: String,
    /// The way on after an answer that the limit cut.
    after_cut: String,
    /// Whether any event arrived.
    started: Arc<AtomicBool>,
}

impl<'a> TurnDisplay<'a> {
    pub(crate) fn new(out: &'a Out) -> Self {
        let after_cut = "/continue, or /params max_tokens=N".to_owned();
        Self {
            out,
            model: String::new(),
            shown: false,
            text: String::new(),
            after_cut,
            started: Arc::default(),
        }
    }

    /// For a single message, after which the program ends: no line can follow.
    pub(crate) fn of_single_message(out: &'a Out, session: SessionId) -> Self {
        let command = out.continuation(&short_session(&session));
        let after_cut =
            command.map(|command| format!("continue with {command} \"Continue.\", or raise --max-tokens"));
        Self { after_cut: after_cut.unwrap_or_default(), ..Self::new(out) }
    }

    /// Shows the messages, unless they stand at a prompt already.
    pub(crate) fn begin(&self, messages: &[Message]) {
        if let Some(screen) = self.out.screen()
            && !messages.is_empty()
        {
            screen.turn_started(joined_text(messages));
        }
    }

    /// Shows an event. The turn continues even without an output.
    pub(crate) fn show(&mut self, event: TurnEvent) {
        self.started.store(true, Ordering::Relaxed);
        if let TurnEvent::Attempt { model, .. } = &event {
            self.model.clone_from(model);
        }
        match &event {
            TurnEvent::Text(text) => self.text.push_str(text),
            TurnEvent::Restarted => self.text.clear(),
            _ => {}
        }
        match event {
            TurnEvent::Devices(event) => {
                self.end_line();
                show_device_event(&event, self.out);
            }
            event if self.out.screen().is_some() => {
                if let Some(screen) = self.out.screen() {
                    screen.turn_event(event);
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

    /// The last line of a turn: its node, and that it was verified.
    pub(crate) fn finish(&mut self, outcome: &TurnOutcome) {
        self.end_line();
        match self.out.screen() {
            Some(screen) => screen.turn_finished(outcome),
            None => self.out.good(&verified_line(outcome)),
        }
        if !outcome.omitted.is_nothing() {
            self.out.note(&outcome.omitted.to_string());
        }
        if let Some(text) = cut_line(outcome.finish, outcome.receipt.tokens.output, &self.after_cut) {
            self.out.warn(&text);
        }
    }

    /// Whether any event arrived, for [`while_waiting`].
    pub(crate) fn started(&self) -> Arc<AtomicBool> {
        self.started.clone()
    }

    /// Ends a line that text left open.
    pub(crate) fn end_line(&mut self) {
        if self.shown {
            let _ = self.out.line("");
            self.shown = false;
        }
    }
}

/// Shows an event of other devices.
fn show_device_event(event: &DeviceEvent, out: &Out) {
    match event {
        DeviceEvent::CaughtUp { own, .. } if *own > 0 => out.warn(&event.to_string()),
        DeviceEvent::Forked(_) | DeviceEvent::ShownLess | DeviceEvent::NotCompared { .. } => {
            out.warn(&event.to_string());
        }
        _ => out.note(&event.to_string()),
    }
}

/// A remark to the user about an event, beside the conversation's text.
pub(crate) fn remark(event: &TurnEvent) -> Option<(Tone, String)> {
    Some(match event {
        TurnEvent::Attempt { node, model, continues, .. } => {
            let what = if *continues > 0 { " continues the answer" } else { "" };
            (Tone::Note, format!("node {}{what} · {model}", short(node)))
        }
        TurnEvent::NoAnswerYet { node, others } => (Tone::Note, no_answer_yet(*node, *others)?),
        TurnEvent::Waiting(ahead) => (Tone::Note, format!("waiting; {ahead} ahead")),
        TurnEvent::StillRunning { node, waited } => {
            let seconds = count(waited.as_secs(), "second");
            (Tone::Note, format!("node {} still works on it, after {seconds}", short(node)))
        }
        TurnEvent::AttemptFailed { node, code: Some(ErrorCode::StreamTruncated), .. } => {
            (Tone::Warn, format!("node {} stopped answering", short(node)))
        }
        TurnEvent::AttemptFailed { node, reason, .. } => {
            (Tone::Warn, format!("node {} failed: {reason}", short(node)))
        }
        TurnEvent::Restarted => (Tone::Note, "The answer so far is discarded; it starts again.".to_owned()),
        _ => return None,
    })
}

fn no_answer_yet(node: NodeId, others: OtherNodes) -> Option<String> {
    Some(match others {
        OtherNodes::Asked(0) => format!("node {} does not answer yet; no other node is known", short(&node)),
        OtherNodes::Asked(asked) => {
            let others = count(asked as u64, "other node");
            format!("node {} does not answer yet; asking {others} …", short(&node))
        }
        OtherNodes::Silent(1) => "the other node does not answer either".to_owned(),
        OtherNodes::Silent(silent) => format!("none of the {silent} others answers either"),
        _ => return None,
    })
}

/// Runs a turn. While none of its events arrives, says what it waits for: soon, and then the nodes that cannot
/// be reached.
pub(crate) async fn while_waiting<T>(
    client: &Client,
    out: &Out,
    started: Arc<AtomicBool>,
    turn: impl Future<Output = T>,
) -> T {
    let remarks = async {
        tokio::time::sleep(SEARCH_REMARK).await;
        if !started.load(Ordering::Relaxed) {
            out.note(&searching(client));
        }
        tokio::time::sleep(FAILURE_REMARK.saturating_sub(SEARCH_REMARK)).await;
        if !started.load(Ordering::Relaxed) {
            unreachable_nodes(client).iter().for_each(|line| out.warn(line));
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = turn => done,
        () = remarks => unreachable!("the remarks do not end"),
    }
}

/// Said of a client that can find no node.
const NOWHERE: &str = "no node is named, and mdns is off";

/// The places where nodes are looked for.
pub(crate) fn searching(client: &Client) -> String {
    search_line(client.mesh().network().bootstrap.len(), client.uses_multicast())
}

/// The places where nodes are looked for, with this many named nodes. The network's own list is empty in its
/// first moments.
pub(crate) fn search_line(named: usize, multicast: bool) -> String {
    match (named, multicast) {
        (0, true) => "Looking for nodes on the local network …".to_owned(),
        (0, false) => format!("Looking for nodes: {NOWHERE} …"),
        (named, _) => format!("Looking for nodes: {} …", count(named as u64, "named node")),
    }
}

/// Every place where nodes were looked for, each with the result so far.
pub(crate) fn tried_places(client: &Client) -> Vec<String> {
    let network = client.mesh().network();
    let named = network.bootstrap.iter().map(|node| match (&node.failure, node.connected) {
        (_, true) => format!("{}: connected, and serves no turns", node.address),
        (Some(failure), false) => format!("{}: {failure}", node.address),
        (None, false) => format!("{}: no answer yet", node.address),
    });
    let places: Vec<String> = named.collect();
    match (places.is_empty(), client.uses_multicast()) {
        (false, _) => places,
        (true, true) => vec!["the local network, by multicast: no node answered".to_owned()],
        (true, false) => vec![NOWHERE.to_owned()],
    }
}

/// The named nodes that cannot be reached, each with the reason.
pub(crate) fn unreachable_nodes(client: &Client) -> Vec<String> {
    let named = client.mesh().network().bootstrap.into_iter().filter(|node| !node.connected);
    named.filter_map(|node| Some(format!("Could not reach {}: {}", node.address, node.failure?))).collect()
}

/// States that a turn was verified, and by which node it was served.
pub(crate) fn verified_line(outcome: &TurnOutcome) -> String {
    let tokens = count(outcome.receipt.tokens.output.into(), "token");
    format!("✓ verified · turn {} · node {} · {tokens}", turn_number(outcome.seq), short(&outcome.node))
}

/// States that the limit of tokens cut the answer, if it did, and the way on, if there is one.
fn cut_line(finish: FinishReason, tokens: u32, way_on: &str) -> Option<String> {
    let gap = if way_on.is_empty() { "" } else { " · " };
    (finish == FinishReason::Length)
        .then(|| format!("⚠ stopped at the limit of {tokens} tokens{gap}{way_on}"))
}

/// Messages as one text. Names the author of each, unless it is the user.
pub(crate) fn joined_text(messages: &[Message]) -> String {
    let texts = messages.iter().map(|message| match message.role {
        Role::User => message.text.clone(),
        other => format!("{}: {}", role(other), message.text),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Shows the recalled items, each as a dim line.
pub(crate) fn show_memory(items: &[MemoryItem], out: &Out) {
    for line in memory_lines(items) {
        out.note(&line);
    }
}

/// The recalled items: their number, then the beginning of each.
pub(crate) fn memory_lines(items: &[MemoryItem]) -> Vec<String> {
    let lines = items.iter().map(|item| {
        let mut text: String = item.text.chars().take(SHOWN_CHARS).collect();
        if text.len() < item.text.len() {
            text.push('…');
        }
        format!("  · {} ({})", text.replace('\n', " "), item.source)
    });
    std::iter::once(format!("{} added", memories(items.len() as u64))).chain(lines).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_its_limit_cut_says_so() {
        assert_eq!(cut_line(FinishReason::Stop, 5, "/continue"), None);
        let cut = |way_on| cut_line(FinishReason::Length, 5, way_on);
        assert_eq!(cut("/continue").as_deref(), Some("⚠ stopped at the limit of 5 tokens · /continue"));
        assert_eq!(cut("").as_deref(), Some("⚠ stopped at the limit of 5 tokens"), "no session is left");
    }

    #[test]
    fn a_cut_answer_of_a_single_message_names_a_command_and_no_line() {
        let out = Out::new(false, true);
        let session = SessionId([7; 32]);
        let single = TurnDisplay::of_single_message(&out, session).after_cut;
        assert!(single.contains("baton chat -s 07070707 \"Continue.\"") && !single.contains("/continue"));
        assert!(TurnDisplay::new(&out).after_cut.contains("/continue"));
        let private = out.with_command(None);
        assert_eq!(TurnDisplay::of_single_message(&private, session).after_cut, "");
    }
}
