//! A turn on its way to a program: its text as it comes, and what it ends with.

use std::time::Duration;

use baton_proto::ids::SessionId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{
    Fault, Gateway,
    place::{self, Placed, Work},
    wire::Ask,
};
use crate::{ClientError, ResumeOptions, TurnEvent, TurnInput, TurnOutcome};

/// How long the head of an answered turn is waited for, to see whether another device wrote in the same place.
const COMPARE_WAIT: Duration = Duration::from_secs(3);

/// A step of an answer.
pub(super) enum Step {
    /// A node is asked for it, by this name of the model.
    Model(String),
    /// More of its text.
    Text(String),
    /// It was rebuilt, compared and accepted.
    Done(Box<Answered>),
    /// It failed.
    Failed(Fault),
}

/// An accepted answer.
pub(super) struct Answered {
    pub(super) outcome: TurnOutcome,
    /// The model's name.
    pub(super) model: String,
    /// What other devices of the session had to do with it.
    pub(super) devices: Vec<String>,
}

/// A turn that runs. Dropping it ends the turn; its message is kept, and finished if it is asked again.
pub(super) struct Running {
    pub(super) session: SessionId,
    /// Bounded by the largest answer.
    pub(super) steps: mpsc::UnboundedReceiver<Step>,
}

/// Places a request and starts its turn, which keeps the slot until it ends.
pub(super) async fn start(gateway: &Gateway, slot: OwnedSemaphorePermit, ask: Ask) -> Result<Running, Fault> {
    let mut template = gateway.config().template.clone();
    template.model = ask.model.clone().or(template.model);
    template.max_output_tokens = ask.max_tokens.unwrap_or(template.max_output_tokens);
    let seed = u64::from_le_bytes(baton_keys::secret::random_bytes());
    template.sampling = ask.wish.sampling(template.sampling.temperature, seed);
    let placed = place::place(gateway, &ask, &template).await?;
    let session = placed.session;
    let (sender, steps) = mpsc::unbounded_channel();
    let gateway = gateway.clone();
    gateway.inner.turns.clone().spawn(async move {
        let options = ResumeOptions::of(&template);
        run(&gateway, placed, template, &ask, sender).await;
        drop(slot);
        settle_devices(&gateway, session, &options).await;
    });
    Ok(Running { session, steps })
}

async fn run(
    gateway: &Gateway,
    placed: Placed,
    template: TurnInput,
    ask: &Ask,
    steps: mpsc::UnboundedSender<Step>,
) {
    let session = placed.session;
    let mut shown = Shown::default();
    let mut model = template.model.clone();
    let mut devices = Vec::new();
    let result = tokio::select! {
        biased;
        result = Box::pin(turn(gateway, placed, template, |event| match event {
            TurnEvent::Attempt { model: name, .. } => {
                let _ = steps.send(Step::Model(name.clone()));
                model = Some(name);
            }
            TurnEvent::Text(text) => shown.text(&text, |new| drop(steps.send(Step::Text(new.to_owned())))),
            TurnEvent::Restarted => shown.restart(),
            TurnEvent::Devices(event) => devices.push(event.to_string()),
            _ => {}
        })) => Some(result),
        () = steps.closed() => None,
    };
    gateway.used(session);
    let last = match result {
        Some(Ok(outcome)) => {
            if let Err(error) = gateway.learn(session).await {
                tracing::debug!(%error, "a session's words cannot be read");
            }
            let rest = outcome.text.strip_prefix(shown.sent.as_str()).map(str::to_owned);
            match rest {
                Some(rest) => {
                    if !rest.is_empty() {
                        let _ = steps.send(Step::Text(rest));
                    }
                    let model = model.unwrap_or_else(|| outcome.receipt.model.to_string());
                    Step::Done(Box::new(Answered { outcome, model, devices }))
                }
                None => Step::Failed(Fault::interrupted()),
            }
        }
        Some(Err(error)) => {
            gateway.threads().note_unanswered(&ask.messages, session);
            Step::Failed(error.into())
        }
        None => {
            gateway.threads().note_unanswered(&ask.messages, session);
            return;
        }
    };
    // Nobody may be there any more to read it.
    let _ = steps.send(last);
}

/// Where another device wrote in the same place, settles that before the next request; who lost says its turn again.
async fn settle_devices(gateway: &Gateway, session: SessionId, options: &ResumeOptions) {
    let client = gateway.client();
    if !client.wait_compared(session, COMPARE_WAIT).await.unwrap_or(false) {
        return;
    }
    let settled = client.reconcile(session, options, |event| {
        if let TurnEvent::Devices(event) = event {
            tracing::warn!(%session, "{event}");
        }
    });
    if let Err(error) = Box::pin(settled).await {
        tracing::warn!(%error, "what another device wrote could not be taken in");
    }
    if let Err(error) = gateway.learn(session).await {
        tracing::debug!(%error, "a session's words cannot be read");
    }
}

async fn turn(
    gateway: &Gateway,
    placed: Placed,
    template: TurnInput,
    on_event: impl FnMut(TurnEvent) + Send,
) -> Result<TurnOutcome, ClientError> {
    let client = gateway.client();
    match placed.work {
        Work::Resume => {
            let options = ResumeOptions::of(&template);
            let resumed = client.resume(placed.session, options, on_event).await?;
            // Somebody else finished it since: the caller asks again and gets its answer by what was said.
            resumed.ok_or(ClientError::Busy)
        }
        Work::Turn { messages, replaces } => {
            let kind = place::kind(replaces);
            let input = TurnInput { messages, kind, supersedes_from: replaces, ..template };
            client.turn(placed.session, input, on_event).await
        }
    }
}

/// What a program was shown of an answer. It cannot be taken back: when the answer begins anew, what it has in common
/// with the former beginning is not sent again, and nothing follows once it differs.
#[derive(Default)]
struct Shown {
    sent: String,
    /// Bytes of the present beginning that agree with what was sent; none once it differs.
    agreed: Option<usize>,
    restarted: bool,
}

impl Shown {
    fn restart(&mut self) {
        self.restarted = true;
        self.agreed = Some(0);
    }

    fn text(&mut self, text: &str, mut send: impl FnMut(&str)) {
        if !self.restarted {
            self.sent.push_str(text);
            return send(text);
        }
        let Some(agreed) = self.agreed else { return };
        let known = self.sent.get(agreed..).unwrap_or_default();
        if known.starts_with(text) {
            self.agreed = Some(agreed + text.len());
        } else if let Some(new) = text.strip_prefix(known) {
            send(new);
            self.sent.push_str(new);
            self.agreed = Some(self.sent.len());
        } else {
            self.agreed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(pieces: &[Option<&str>]) -> (Vec<String>, String) {
        let mut shown = Shown::default();
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Some(text) => shown.text(text, |new| out.push(new.to_owned())),
                None => shown.restart(),
            }
        }
        (out, shown.sent)
    }

    #[test]
    fn an_answer_that_begins_anew_is_not_shown_twice() {
        let (out, sent) = play(&[Some("one two"), None, Some("one"), Some(" two three"), Some(" four")]);
        assert_eq!(out, ["one two", " three", " four"]);
        assert_eq!(sent, "one two three four");
        let (out, _) = play(&[Some("one two"), None, Some("one"), None, Some("one two"), Some(" 3")]);
        assert_eq!(out, ["one two", " 3"]);
    }

    #[test]
    fn nothing_follows_once_the_new_beginning_differs() {
        let (out, sent) = play(&[Some("one two"), None, Some("one"), Some(" 2"), Some(" three")]);
        assert_eq!((out, sent.as_str()), (vec!["one two".to_owned()], "one two"));
    }
}
