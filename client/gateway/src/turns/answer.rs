//! Runs a turn for a program: streams its text, then its outcome.

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, ids::SessionId, record::Message, tools::Definitions};
use futures::{Stream, StreamExt as _, future::join_all, stream};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    form::{
        completion::{CompletionRequest, Retention, split},
        format,
        logprobs::{LogprobsRequest, SentReports},
        steps::{AcceptedAnswer, Step},
    },
    http::api_error::ApiError,
    keys::{accounts::Charge, usage::TokenEstimate},
    memory::GatewayMemory,
    sessions::{
        carried_history::{fit, starts},
        choice::{PreparedSession, SessionWork, pinned, prepare_session, record_kind},
        unanswered::forget_failed,
    },
    state::{
        Gateway,
        ephemeral_sessions::{EphemeralHistory, EphemeralSession, IDLE_TIME},
        request_slots::RequestSlot,
    },
};
use baton_client::{
    Client, ClientError, DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, MemoryHint, RouteOptions, SessionHandle,
    TokenReport, TurnEvent, TurnInput, TurnOutcome,
};

/// Time to wait for the head of an answered turn, to see whether another device wrote in the same place.
const COMPARE_WAIT: Duration = Duration::from_secs(3);

/// Silence after which a streamed response begins without the answer. Nodes may read a long input for minutes, and
/// programs wait less long for a response's head.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// A running turn. Dropping it ends the turn; its message stays, and the same request resumes it.
pub(crate) struct RunningTurn {
    pub(crate) session: SessionId,
    /// Its position in the chain, unless another device's turns come before it meanwhile.
    pub(crate) seq: u64,
    /// Bounded by the largest answer.
    pub(crate) steps: mpsc::UnboundedReceiver<Step>,
}

/// An answer as a whole.
pub(crate) struct WholeAnswer {
    pub(crate) text: String,
    pub(crate) reports: Vec<TokenReport>,
    pub(crate) accepted: Box<AcceptedAnswer>,
}

impl RunningTurn {
    /// The first step of the answer itself. An answer that fails before it begins is an error with a status, as
    /// programs expect. A streamed one begins with the model after [`MAX_SILENCE`]. `model` is set to the name of the
    /// model that is asked.
    pub(crate) async fn first_step(
        &mut self,
        model: &mut String,
        is_streamed: bool,
    ) -> Result<Step, ApiError> {
        self.first_within(model, is_streamed.then_some(MAX_SILENCE)).await
    }

    async fn first_within(&mut self, model: &mut String, limit: Option<Duration>) -> Result<Step, ApiError> {
        let silence = tokio::time::sleep(limit.unwrap_or_default());
        tokio::pin!(silence);
        loop {
            let step = tokio::select! {
                step = self.steps.recv() => step,
                () = &mut silence, if limit.is_some() => return Ok(Step::Model(model.clone())),
            };
            match step {
                Some(Step::Model(name)) => *model = name,
                Some(Step::Note(_)) => {}
                Some(Step::Failed(api_error)) => return Err(api_error),
                Some(first) => return Ok(first),
                None => return Err(ClientError::TaskEnded.into()),
            }
        }
    }

    /// The answer as a whole, from its first step on.
    pub(crate) async fn whole(mut self, first: Step) -> Result<WholeAnswer, ApiError> {
        let (mut text, mut reports) = (String::new(), Vec::new());
        let mut next = Some(first);
        loop {
            match next {
                Some(Step::Model(_) | Step::Note(_)) => {}
                Some(Step::Logprobs(more)) => reports.extend(more),
                Some(Step::Text(more)) => text.push_str(&more),
                Some(Step::Done(accepted)) => return Ok(WholeAnswer { text, reports, accepted }),
                Some(Step::Failed(api_error)) => return Err(api_error),
                None => return Err(ClientError::TaskEnded.into()),
            }
            next = self.steps.recv().await;
        }
    }

    /// The steps from the first on, as a stream.
    pub(crate) fn steps(self, first: Step) -> impl Stream<Item = Step> {
        let rest = stream::unfold(self, |mut running| async { Some((running.steps.recv().await?, running)) });
        stream::iter([first]).chain(rest)
    }
}

/// Places a request and starts its turn, which keeps the slot until it ends.
pub(crate) async fn start(
    gateway: &Gateway,
    slot: RequestSlot,
    request: CompletionRequest,
) -> Result<RunningTurn, ApiError> {
    let mut template = gateway.config().template.clone();
    template.route.model = request.model.clone().or(template.route.model);
    template.max_output_tokens = request.max_tokens.unwrap_or(template.max_output_tokens);
    // Below 2^53: programs whose numbers are floats send it back unchanged.
    let seed = u64::from_le_bytes(baton_keys::secret::random_bytes()) >> 11;
    template.sampling = request.sampling.with_defaults(template.sampling.temperature, seed);
    template.json_schema = request.json_schema.clone();
    template.sampling.logprobs = request.logprobs.map_or(0, LogprobsRequest::requested_alternatives);
    let most = match template.max_output_tokens {
        MODEL_OUTPUT_TOKENS => DEFAULT_OUTPUT_TOKENS,
        tokens => tokens,
    };
    let charge =
        gateway.hold_tokens(TokenEstimate { input: request.input_estimate(), output: most.into() })?;
    if let Some(charge) = &charge {
        let rest = u32::try_from(charge.held().output).unwrap_or(u32::MAX);
        if rest < most {
            template.max_output_tokens = rest;
        }
    }
    // An answer has at most `MAX_OUTPUT_TOKENS` tokens, and a step at least one of them: this bounds the queue.
    let (sender, steps) = mpsc::unbounded_channel();
    let writer = StepWriter::new(sender, template.route.model.clone(), charge);
    if request.is_ephemeral() {
        let (session, seq) = start_ephemeral(gateway, slot, template, request, writer).await?;
        return Ok(RunningTurn { session, seq, steps });
    }
    let (prepared, session_slot) = prepare_session(gateway, &request, &template, &writer.steps).await?;
    let session = prepared.session;
    let seq = gateway.client().session(session).info().await?.turns;
    let gateway = gateway.clone();
    gateway.clone().spawn(async move {
        run(&gateway, prepared, template, &request, writer).await;
        drop((slot, session_slot));
        settle_devices(&gateway, session).await;
    });
    Ok(RunningTurn { session, seq, steps })
}

/// An ephemeral session, and the messages that it gets.
struct EphemeralChoice {
    history: EphemeralHistory,
    session: EphemeralSession,
    messages: Vec<Message>,
    messages_left_out: usize,
}

/// Takes the idle session that has the messages before the new ones, or begins a new one.
async fn choose_ephemeral(
    gateway: &Gateway,
    template: &TurnInput,
    request: &CompletionRequest,
) -> Result<EphemeralChoice, ApiError> {
    let (before, new) = split(&request.messages);
    let (project, pinned) = (gateway.caller.project(), pinned(request));
    let check = |messages: &[Message]| TurnInput { messages: messages.to_vec(), ..template.clone() }.check();
    let mut continued = None;
    if !new.is_empty() {
        check(new)?;
        // A session may have begun without the oldest messages.
        continued = starts(&request.messages, before.len()).find_map(|start| {
            Some((start, gateway.inner.idle_sessions.take(project, &pinned, before.get(start..)?)?))
        });
    }
    if let Some((messages_left_out, (history, session))) = continued {
        return Ok(EphemeralChoice { history, session, messages: new.to_vec(), messages_left_out });
    }
    let mut messages = request.messages.clone();
    let messages_left_out = fit(&mut messages, before.len());
    check(&messages)?;
    let session = EphemeralSession::begin(gateway.client(), pinned.clone()).await?;
    let project = project.map(str::to_owned);
    let history = EphemeralHistory { project, pinned, messages: Vec::new(), turns: 0 };
    Ok(EphemeralChoice { history, session, messages, messages_left_out })
}

/// Starts an ephemeral turn. Returns its session and its position there.
async fn start_ephemeral(
    gateway: &Gateway,
    slot: RequestSlot,
    template: TurnInput,
    request: CompletionRequest,
    mut writer: StepWriter,
) -> Result<(SessionId, u64), ApiError> {
    let chosen = choose_ephemeral(gateway, &template, &request).await?;
    let EphemeralChoice { mut history, session, messages, messages_left_out } = chosen;
    writer.messages_left_out = messages_left_out;
    let (id, seq) = (session.id, history.turns);
    let gateway = gateway.clone();
    gateway.clone().spawn(async move {
        let project = gateway.caller.project();
        let hint = memory_of(&gateway, &request).map(|memory| memory.hint(project, id, &messages));
        let input = TurnInput {
            messages: messages.clone(),
            route: RouteOptions { hint, reconcile: false, ..template.route },
            ..template
        };
        let (sender, handle) = (writer.steps.clone(), session.client.session(id));
        let result = tokio::select! {
            biased;
            result = Box::pin(handle.turn(input, |event| writer.event(event))) => Some(result),
            () = sender.closed() => None,
        };
        writer.settle(&gateway, result.as_ref().map(Result::as_ref));
        if result.is_none() {
            stop_attempts(&handle).await;
        }
        let idle = &gateway.inner.idle_sessions;
        // In a page, no other task ends them.
        let mut ending = idle.unused(IDLE_TIME, Instant::now());
        match &result {
            Some(Ok(outcome)) if request.retention == Retention::Brief => {
                history.answered(messages, &outcome.text);
                ending.extend(idle.keep(history, session, Instant::now()));
            }
            _ => ending.push(session),
        }
        if let Some(result) = result {
            // The program may send its next request at once: the session is there before.
            let _ = sender.send(writer.last(result, &request));
        }
        drop(slot);
        join_all(ending.into_iter().map(EphemeralSession::end)).await;
    });
    Ok((id, seq))
}

/// Turns the events of a turn into steps for the program.
struct StepWriter {
    steps: mpsc::UnboundedSender<Step>,
    sent_text: SentText,
    sent_reports: SentReports,
    model: Option<String>,
    devices: Vec<String>,
    messages_left_out: usize,
    charge: Option<Charge>,
    /// Whether a node admitted an attempt: it computes from then on.
    is_admitted: bool,
}

impl StepWriter {
    fn new(steps: mpsc::UnboundedSender<Step>, model: Option<String>, charge: Option<Charge>) -> Self {
        Self {
            charge,
            is_admitted: false,
            steps,
            sent_text: SentText::default(),
            sent_reports: SentReports::default(),
            model,
            devices: Vec::new(),
            messages_left_out: 0,
        }
    }

    fn event(&mut self, event: TurnEvent) {
        let steps = &self.steps;
        match event {
            TurnEvent::Attempt { attempt, model: name, node, continues, .. } => {
                if attempt > 0 {
                    let act = if continues > 0 { "continues the answer" } else { "answers now" };
                    let _ = steps.send(Step::Note(format!("node {:.8} {act}", node.to_string())));
                }
                let _ = steps.send(Step::Model(name.clone()));
                self.model = Some(name);
                if let Some(charge) = &mut self.charge {
                    charge.note_asked();
                }
            }
            TurnEvent::AttemptFailed { node, code, reason, .. } => {
                let failure = match code {
                    Some(ErrorCode::StreamTruncated) => "stopped answering".to_owned(),
                    _ => format!("failed: {reason}"),
                };
                let _ = steps.send(Step::Note(format!("node {:.8} {failure}", node.to_string())));
            }
            TurnEvent::Admitted => self.is_admitted = true,
            TurnEvent::Logprobs(reports) => {
                let new = self.sent_reports.take(reports);
                if !new.is_empty() {
                    let _ = steps.send(Step::Logprobs(new));
                }
            }
            TurnEvent::Text(text) => {
                self.sent_text.text(&text, |new| drop(steps.send(Step::Text(new.to_owned()))));
            }
            TurnEvent::Restarted => {
                self.sent_text.restart();
                self.sent_reports.restart();
            }
            TurnEvent::Devices(event) => self.devices.push(event.to_string()),
            _ => {}
        }
    }

    /// Counts the tokens of a turn with this result: those of its receipt. A turn that no node admitted counts none.
    /// Any other turn counts all held tokens: a node may go on after its program hung up or the connection broke, and
    /// only a receipt says how far it came.
    fn settle(&mut self, gateway: &Gateway, result: Option<Result<&TurnOutcome, &ClientError>>) {
        let Some(charge) = self.charge.take() else { return };
        match result {
            Some(Ok(outcome)) => {
                let tokens = &outcome.receipt.tokens;
                let used = TokenEstimate { input: tokens.input.into(), output: tokens.output.into() };
                charge.settle(used, gateway.now_s());
            }
            Some(Err(_)) if !self.is_admitted => charge.settle(TokenEstimate::default(), gateway.now_s()),
            _ => drop(charge),
        }
    }

    /// The last step of a turn with this result.
    fn last(self, result: Result<TurnOutcome, ClientError>, request: &CompletionRequest) -> Step {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => return Step::Failed(api_error(error, request)),
        };
        let Some(rest) = outcome.text.strip_prefix(self.sent_text.sent.as_str()) else {
            return Step::Failed(ApiError::interrupted());
        };
        if !rest.is_empty() {
            let _ = self.steps.send(Step::Text(rest.to_owned()));
        }
        let model = self.model.unwrap_or_else(|| outcome.receipt.model.to_string());
        Step::Done(Box::new(AcceptedAnswer {
            outcome,
            model,
            devices: self.devices,
            messages_left_out: self.messages_left_out,
            ignored: request.ignored.clone(),
        }))
    }
}

/// An error as the program sees it: with the parameter that a refused payload is likely to be about, and the node's
/// reason.
fn api_error(error: ClientError, request: &CompletionRequest) -> ApiError {
    if error.code() != Some(ErrorCode::PayloadRejected) {
        return api_error_of_turn(request, error);
    }
    let (param, message) = if request.is_forced {
        ("tools", "no node that was asked can hold a call to this schema")
    } else if request.tools.as_ref().is_some_and(Definitions::are_strict) {
        ("tools", "no node that was asked can hold calls to the schemas of these strict tools")
    } else if request.json_schema.is_some() {
        (format::NAME, "no node that was asked can hold an answer to this schema")
    } else if request.logprobs.is_some() {
        ("logprobs", "no node that was asked reports log probabilities")
    } else {
        return error.into();
    };
    ApiError::unsupported(param, format!("{message}: {error}"))
}

async fn run(
    gateway: &Gateway,
    prepared: PreparedSession,
    template: TurnInput,
    request: &CompletionRequest,
    mut writer: StepWriter,
) {
    let session = prepared.session;
    let is_resumed = matches!(prepared.work, SessionWork::Resume);
    let memory = memory_of(gateway, request);
    let steps = writer.steps.clone();
    writer.messages_left_out = prepared.messages_left_out;
    let result = tokio::select! {
        biased;
        result = Box::pin(turn(gateway, prepared, template, memory, |event| writer.event(event))) => Some(result),
        () = steps.closed() => None,
    };
    let accepted = result.as_ref().map(|result| result.as_ref().map(|(outcome, _)| outcome));
    writer.settle(gateway, accepted);
    if result.is_none() && !writer.sent_text.sent.is_empty() {
        stop_attempts(&gateway.client().session(session)).await;
    }
    gateway.note_use(session);
    match &result {
        Some(Ok(_)) => {
            if let Err(error) = gateway.learn(session).await {
                tracing::debug!(%error, "a session's words cannot be read");
            }
        }
        Some(Err(error)) if forget_failed(gateway, request, session, is_resumed, error).await => {}
        Some(Err(_)) | None => {
            gateway.index().note_unanswered(&request.messages, gateway.caller.project(), session)
        }
    }
    let Some(result) = result else { return };
    let exchange = memory.zip(result.as_ref().ok().cloned());
    // The receiver may be gone.
    let _ = steps.send(writer.last(result.map(|(outcome, _)| outcome), request));
    if let Some((memory, (outcome, messages))) = exchange {
        memory.remember(gateway.caller.project(), &messages, &outcome).await;
    }
}

/// Has the nodes of a turn stop at once: its program hung up, and reads no more of the answer.
async fn stop_attempts(session: &SessionHandle) {
    if let Err(error) = session.stop_attempts().await {
        tracing::debug!(%error, "an answer without a reader was not stopped");
    }
}

/// If another device wrote in the same place, merges its turns before the next request.
async fn settle_devices(gateway: &Gateway, session: SessionId) {
    let handle = gateway.client().session(session);
    if !handle.wait_compared(COMPARE_WAIT).await.unwrap_or(false) {
        return;
    }
    let settled = handle.reconcile(|event| {
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

/// The memory for a request; none if it declines memory, or its key has none.
fn memory_of<'a>(gateway: &'a Gateway, request: &CompletionRequest) -> Option<&'a Arc<dyn GatewayMemory>> {
    gateway.config().memory.as_ref().filter(|_| request.memory && gateway.caller.may_use_memory())
}

async fn turn(
    gateway: &Gateway,
    prepared: PreparedSession,
    template: TurnInput,
    memory: Option<&Arc<dyn GatewayMemory>>,
    on_event: impl FnMut(TurnEvent) + Send,
) -> Result<(TurnOutcome, Vec<Message>), ClientError> {
    let (client, session) = (gateway.client(), prepared.session);
    let resumes = matches!(prepared.work, SessionWork::Resume);
    let (messages, replaces) = match prepared.work {
        SessionWork::Resume => (client.session(session).pending_messages().await?.unwrap_or_default(), None),
        SessionWork::Turn { messages, replaces } => (messages, replaces),
    };
    let project = gateway.caller.project();
    let hint = memory.map(|memory| memory.hint(project, session, &messages));
    let outcome = if resumes {
        resume(client, session, template.route, hint, on_event).await?
    } else {
        let kind = record_kind(replaces);
        let input = TurnInput {
            messages: messages.clone(),
            kind,
            supersedes_from: replaces,
            route: RouteOptions { hint, ..template.route },
            ..template
        };
        client.session(session).turn(input, on_event).await?
    };
    Ok((outcome, messages))
}

/// Resumes a begun turn: with memory if configured, and without it if the relayer gives none.
async fn resume(
    client: &Client,
    session: SessionId,
    route: RouteOptions,
    hint: Option<MemoryHint>,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<TurnOutcome, ClientError> {
    let hinted = hint.is_some();
    let hinted_route = RouteOptions { hint, ..route.clone() };
    let mut resumed = client.session(session).resume(hinted_route, &mut on_event).await;
    if hinted && matches!(resumed, Err(ClientError::TurnFailed { .. })) {
        tracing::warn!(
            "the relayer gave no memory for a message; it is finished without, by a node directly"
        );
        let direct = RouteOptions { relayer: None, ..route };
        resumed = client.session(session).resume(direct, &mut on_event).await;
    }
    // Another process finished it since. The caller retries, and the messages then find the answer.
    resumed?.ok_or(ClientError::Busy)
}

/// The text of an answer that the program already has. When the answer restarts, its common part with that
/// text is not sent again. Once the two differ, no more text follows.
#[derive(Default)]
struct SentText {
    sent: String,
    /// Bytes of the restarted answer that agree with the sent text; `None` once they differ.
    agreed: Option<usize>,
    restarted: bool,
}

impl SentText {
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

/// The error of a turn; it names `tools` if no node was found that takes them.
fn api_error_of_turn(request: &CompletionRequest, error: ClientError) -> ApiError {
    let refused = matches!(error, ClientError::TurnFailed { code: Some(ErrorCode::ModelUnavailable), .. });
    if refused && request.tools.is_some() {
        let message = format!("no node that was asked serves the model with tools at the moment: {error}");
        return ApiError::unsupported("tools", message);
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(pieces: &[Option<&str>]) -> (Vec<String>, String) {
        let mut sent = SentText::default();
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Some(text) => sent.text(text, |new| out.push(new.to_owned())),
                None => sent.restart(),
            }
        }
        (out, sent.sent)
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

    #[tokio::test]
    async fn a_stream_begins_before_an_answer_that_takes_long() {
        let (steps, waiting) = mpsc::unbounded_channel();
        let mut running = RunningTurn { session: SessionId([1; 32]), seq: 0, steps: waiting };
        let mut model = String::new();
        assert!(steps.send(Step::Model("m".into())).is_ok());
        let first = running.first_within(&mut model, Some(Duration::from_millis(20))).await;
        assert!(matches!(first, Ok(Step::Model(name)) if name == "m"));
        assert_eq!(model, "m");

        assert!(steps.send(Step::Text("a".into())).is_ok());
        assert!(matches!(running.first_within(&mut model, None).await, Ok(Step::Text(text)) if text == "a"));
        assert!(steps.send(Step::Failed(ClientError::TaskEnded.into())).is_ok());
        let failed = running.first_within(&mut model, Some(MAX_SILENCE)).await;
        assert!(failed.is_err(), "an error within the limit has a status");
    }
}
