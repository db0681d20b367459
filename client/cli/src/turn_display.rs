//! How a turn looks while it runs, for every view: its text, its remarks, and its last line.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use baton_client::{DeviceEvent, OtherNodes, TurnEvent, TurnOutcome};
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{NodeId, SessionId},
    memory::MemoryItem,
    receipt::Receipt,
    record::{FinishReason, Message, Role},
};

use serde_json::{Value, json};

use crate::out::{
    Out, Tone, count,
    inbox::{FinishedTurn, ViewMessage},
    role, short, turn_number, wrap,
};

/// Most cells shown of a recalled item.
const SHOWN_CELLS: usize = 120;

/// Shows a turn: a line view prints it, a full-screen view receives its events.
pub(crate) struct TurnDisplay<'a> {
    out: &'a Out,
    /// The node that was asked last.
    node: Option<NodeId>,
    /// The model's name, as offered.
    pub model: String,
    shown: bool,
    /// The way on after an answer that the limit cut.
    after_cut: String,
    /// Whether any event arrived.
    started: Arc<AtomicBool>,
}

impl<'a> TurnDisplay<'a> {
    pub(crate) fn new(out: &'a Out) -> Self {
        let after_cut = "/continue, or /params max_tokens=N".to_owned();
        Self { out, node: None, model: String::new(), shown: false, after_cut, started: Arc::default() }
    }

    /// For a single message, after which the program ends: no line can follow.
    pub(crate) fn of_single_message(out: &'a Out, session: SessionId) -> Self {
        let command = out.continuation(&short(&session));
        let after_cut =
            command.map(|command| format!("continue with {command} \"Continue.\", or raise --max-tokens"));
        Self { after_cut: after_cut.unwrap_or_default(), ..Self::new(out) }
    }

    /// Shows the messages, unless they stand at a prompt already.
    pub(crate) fn begin(&self, messages: &[Message]) {
        if let Some(screen) = self.out.screen()
            && !messages.is_empty()
        {
            screen.push(ViewMessage::TurnStarted(joined_text(messages)));
        }
    }

    /// Shows an event. The turn continues even without an output.
    pub(crate) fn show(&mut self, event: TurnEvent) {
        self.started.store(true, Ordering::Relaxed);
        let last = self.node;
        if let TurnEvent::Attempt { node, model, .. } = &event {
            self.node = Some(*node);
            self.model.clone_from(model);
        }
        let out = self.out;
        match (event, out.screen()) {
            (TurnEvent::Devices(event), _) => {
                self.end_line();
                show_device_event(&event, out);
            }
            (event, Some(screen)) => screen.push(ViewMessage::Turn(event)),
            (TurnEvent::Memory(items), None) => show_memory(&items, out),
            (TurnEvent::Text(text), None) if !out.json() => {
                self.shown = true;
                let _ = out.text(&text);
            }
            (event, None) => {
                if matches!(event, TurnEvent::AttemptFailed { .. }) {
                    self.end_line();
                }
                if let Some((tone, text)) = remark(&event, last) {
                    out.say(tone, &text);
                }
            }
        }
    }

    /// The last line of a turn: its node, and that it was verified.
    pub(crate) fn finish(&mut self, outcome: &TurnOutcome) {
        self.end_line();
        match self.out.screen() {
            Some(screen) => screen.push(ViewMessage::TurnFinished(FinishedTurn {
                link: outcome.link_hash,
                text: outcome.text.clone(),
                verified: verified_line(outcome),
                tokens: outcome.receipt.tokens.output,
            })),
            None => self.out.good(&verified_line(outcome)),
        }
        if !outcome.omitted.is_nothing() {
            self.out.note(&outcome.omitted.to_string());
        }
        if let Some(text) = cut_line(outcome.finish, outcome.receipt.tokens.output, &self.after_cut) {
            self.out.warn(&text);
        }
    }

    /// Whether any event arrived, for [`crate::search::while_waiting`].
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

/// A remark to the user about an event, beside the conversation's text. `last` is the node that was asked before.
pub(crate) fn remark(event: &TurnEvent, last: Option<NodeId>) -> Option<(Tone, String)> {
    Some(match event {
        TurnEvent::Attempt { node, model, continues, .. } => {
            let what = match continues {
                0 => "",
                _ if last == Some(*node) => " answers again, and continues",
                _ => " continues the answer",
            };
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

/// States that a turn was verified, and by which node it was served.
fn verified_line(outcome: &TurnOutcome) -> String {
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
    let text = |item: &MemoryItem| wrap::fit(&wrap::clean_line(&item.text), SHOWN_CELLS);
    let lines = items.iter().map(|item| format!("  · {} ({})", text(item), item.source));
    std::iter::once(format!("{} added", count(items.len() as u64, "memory"))).chain(lines).collect()
}

/// A receipt, for programs.
pub(crate) fn describe_receipt(receipt: &SignedObject<Receipt>, model_name: Option<&str>) -> Value {
    let (tokens, timings) = (&receipt.tokens, &receipt.timings);
    json!({
        "hash": receipt.receipt_hash().to_string(),
        "model": receipt.model.to_string(),
        "model_name": model_name,
        "engine": receipt.engine.name(),
        "seed": receipt.seed,
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "memory_tokens": tokens.memory,
        "resumed_tokens": tokens.resumed,
        "memory_items": receipt.memory_items,
        "price": receipt.price,
        "queue_ms": timings.queue_ms,
        "prefill_ms": timings.prefill_ms,
        "first_token_ms": timings.first_token_ms,
        "decode_ms": timings.decode_ms,
        "time_ms": receipt.time_ms,
    })
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
        let out = Out::new(false);
        let session = SessionId([7; 32]);
        let single = TurnDisplay::of_single_message(&out, session).after_cut;
        assert!(single.contains("baton chat -s 07070707 \"Continue.\"") && !single.contains("/continue"));
        assert!(TurnDisplay::new(&out).after_cut.contains("/continue"));
        let private = out.with_command(None);
        assert_eq!(TurnDisplay::of_single_message(&private, session).after_cut, "");
    }
}
