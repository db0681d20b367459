//! Runs a turn for a program: streams its text, then its outcome.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode,
    ids::SessionId,
    record::{Message, RecordKind},
};
use futures::{Stream, StreamExt as _, future::join_all, stream};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    form::{
        completion::{CompletionRequest, Retention, split},
        format,
        logprobs::LogprobsRequest,
        steps::{AcceptedAnswer, SentItems, Step},
        tools::{AnswerParser, EndedAnswer},
    },
    http::api_error::ApiError,
    keys::{accounts::Charge, usage::TokenEstimate},
    memory::GatewayMemory,
    sessions::{
        carried_history::{fit, starts},
        choice::{PreparedSession, pinned, prepare_session},
        unanswered::forget_failed,
    },
    state::{
        Gateway,
        ephemeral_sessions::{EphemeralHistory, EphemeralSession, IDLE_TIME},
        request_slots::RequestSlot,
    },
};
use baton_client::{
    ClientError, DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, MemoryHint, RouteOptions, SessionHandle,
    TokenReport, TurnEvent, TurnInput, TurnOutcome,
};

/// Time to wait for the head of an answered turn, to see whether another device wrote in the same place.
const COMPARE_WAIT: Duration = Duration::from_secs(3);

/// Silence after which a streamed response begins without the answer. Nodes may read a long input for minutes, and
/// programs wait less long for a response's head.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(15);

/// A running turn. Dropping it ends the turn; its message stays, and the same request resumes it.
pub(crate) struct RunningTurn {
    pub(crate) session: SessionId,
    /// Its position in the chain, unless another device's turns come before it meanwhile.
    pub(crate) seq: u64,
    /// The name of the model that is asked.
    pub(crate) model: String,
    /// Reads the calls out of the answer, if the model has tools.
    pub(crate) parser: Option<AnswerParser>,
    /// Bounded by the largest answer.
    pub(crate) steps: mpsc::UnboundedReceiver<Step>,
}

/// An answer as a whole.
pub(crate) struct WholeAnswer {
    pub(crate) ended: EndedAnswer,
    pub(crate) reports: Vec<TokenReport>,
    pub(crate) accepted: Box<AcceptedAnswer>,
}

impl RunningTurn {
    /// The first step of the answer itself. An answer that fails before it begins is an error with a status, as
    /// programs expect. One with a limit begins with the model after this time.
    pub(crate) async fn first_step(&mut self, limit: Option<Duration>) -> Result<Step, ApiError> {
        let silence = tokio::time::sleep(limit.unwrap_or_default());
        tokio::pin!(silence);
        loop {
            let step = tokio::select! {
                step = self.steps.recv() => step,
                () = &mut silence, if limit.is_some() => return Ok(Step::Model(self.model.clone())),
            };
            match step {
                Some(Step::Model(name)) => self.model = name,
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
                Some(Step::Text(more, more_reports)) => {
                    text.push_str(&more);
                    reports.extend(more_reports);
                }
                Some(Step::Done(accepted)) => {
                    let ended = EndedAnswer::read(&text, self.parser, accepted.finish);
                    return Ok(WholeAnswer { ended, reports, accepted });
                }
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
    let (model, parser) = (request.model.clone().unwrap_or_default(), request.answer_parser());
    let writer = StepWriter::new(sender, template.route.model.clone(), charge);
    let gateway = gateway.clone();
    if request.is_ephemeral() {
        let prepared = prepare_ephemeral(&gateway, &template, &request).await?;
        let (session, seq) = (prepared.session.id, prepared.history.turns);
        gateway.clone().spawn(async move {
            let ending = run_ephemeral(&gateway, prepared, template, &request, writer).await;
            drop(slot);
            join_all(ending.into_iter().map(EphemeralSession::end)).await;
        });
        return Ok(RunningTurn { session, seq, model, parser, steps });
    }
    let (prepared, session_slot) = prepare_session(&gateway, &request, &template, &writer.steps).await?;
    let session = prepared.session;
    let seq = gateway.client().session(session).info().await?.turns;
    gateway.clone().spawn(async move {
        run(&gateway, prepared, template, &request, writer).await;
        drop((slot, session_slot));
        settle_devices(&gateway, session).await;
    });
    Ok(RunningTurn { session, seq, model, parser, steps })
}

/// An ephemeral session, ready for the turn.
struct PreparedEphemeral {
    history: EphemeralHistory,
    session: EphemeralSession,
    turn: PreparedSession,
}

/// Takes the idle session that has the messages before the new ones, or begins a new one.
async fn prepare_ephemeral(
    gateway: &Gateway,
    template: &TurnInput,
    request: &CompletionRequest,
) -> Result<PreparedEphemeral, ApiError> {
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
    let (messages, messages_left_out, (history, session)) = match continued {
        Some((start, idle)) => (new.to_vec(), start, idle),
        None => {
            let mut messages = request.messages.clone();
            let left_out = fit(&mut messages, before.len());
            check(&messages)?;
            let session = EphemeralSession::begin(gateway.client(), pinned.clone()).await?;
            let project = project.map(str::to_owned);
            let history = EphemeralHistory { project, pinned, messages: Vec::new(), turns: 0 };
            (messages, left_out, (history, session))
        }
    };
    let turn = PreparedSession {
        session: session.id,
        messages,
        is_resumed: false,
        replaces: None,
        messages_left_out,
    };
    Ok(PreparedEphemeral { history, session, turn })
}

/// Runs an ephemeral turn. Returns the sessions that end now.
async fn run_ephemeral(
    gateway: &Gateway,
    prepared: PreparedEphemeral,
    mut template: TurnInput,
    request: &CompletionRequest,
    mut writer: StepWriter,
) -> Vec<EphemeralSession> {
    let PreparedEphemeral { mut history, session, turn } = prepared;
    template.route.reconcile = false;
    let (sender, handle) = (writer.steps.clone(), session.client.session(session.id));
    let result = attend(gateway, &handle, &turn, template, request, &mut writer).await;
    if result.is_none() {
        stop_attempts(&handle).await;
    }
    let idle = &gateway.inner.idle_sessions;
    // In a page, no other task ends them.
    let mut ending = idle.unused(IDLE_TIME, Instant::now());
    match &result {
        Some(Ok(outcome)) if request.retention == Retention::Brief => {
            history.answered(turn.messages, &outcome.text);
            ending.extend(idle.keep(history, session, Instant::now()));
        }
        _ => ending.push(session),
    }
    if let Some(result) = result {
        // The program may send its next request at once: the session is there before.
        let _ = sender.send(writer.last(result, request));
    }
    ending
}

/// Turns the events of a turn into steps for the program.
struct StepWriter {
    steps: mpsc::UnboundedSender<Step>,
    sent_text: SentItems<u8>,
    sent_reports: SentItems<u32>,
    /// Reports whose text comes next.
    reports: Vec<TokenReport>,
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
            sent_text: SentItems::default(),
            sent_reports: SentItems::default(),
            reports: Vec::new(),
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
                let ids: Vec<u32> = reports.iter().map(|report| report.token.id).collect();
                self.reports.extend(reports.into_iter().skip(self.sent_reports.take(&ids)));
            }
            TurnEvent::Text(text) => {
                let new = text.get(self.sent_text.take(text.as_bytes())..).unwrap_or_default();
                if !new.is_empty() {
                    let _ = steps.send(Step::Text(new.to_owned(), std::mem::take(&mut self.reports)));
                }
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
        let sent = self.sent_text.items();
        let Some(rest) = outcome.text.get(sent.len()..).filter(|_| outcome.text.as_bytes().starts_with(sent))
        else {
            let message =
                "the node failed within the answer, and another one answered differently; ask again";
            return Step::Failed(ApiError::new("answer_interrupted", message));
        };
        if !rest.is_empty() || !self.reports.is_empty() {
            let _ = self.steps.send(Step::Text(rest.to_owned(), self.reports));
        }
        let model = self.model.unwrap_or_else(|| outcome.receipt.model.to_string());
        Step::Done(Box::new(AcceptedAnswer {
            finish: outcome.finish,
            outcome,
            model,
            devices: self.devices,
            messages_left_out: self.messages_left_out,
            ignored: request.ignored.clone(),
        }))
    }
}

/// An error as the program sees it: with the parameter that a refusal is likely to be about, and the node's reason.
fn api_error(error: ClientError, request: &CompletionRequest) -> ApiError {
    let (param, ability) = match (error.code(), &request.tools) {
        (Some(ErrorCode::PayloadRejected), _) if request.is_forced => {
            ("tools", "can hold a call to this schema")
        }
        (Some(ErrorCode::PayloadRejected), Some(tools)) if tools.are_strict() => {
            ("tools", "can hold calls to the schemas of these strict tools")
        }
        (Some(ErrorCode::PayloadRejected), _) if request.json_schema.is_some() => {
            (format::NAME, "can hold an answer to this schema")
        }
        (Some(ErrorCode::PayloadRejected), _) if request.logprobs.is_some() => {
            ("logprobs", "reports log probabilities")
        }
        (Some(ErrorCode::ModelUnavailable), Some(_)) => {
            ("tools", "serves the model with tools at the moment")
        }
        _ => return error.into(),
    };
    ApiError::unsupported(param, format!("no node that was asked {ability}: {error}"))
}

async fn run(
    gateway: &Gateway,
    prepared: PreparedSession,
    template: TurnInput,
    request: &CompletionRequest,
    mut writer: StepWriter,
) {
    let session = prepared.session;
    let (memory, steps) = (memory_of(gateway, request), writer.steps.clone());
    let handle = gateway.client().session(session);
    let result = attend(gateway, &handle, &prepared, template, request, &mut writer).await;
    if result.is_none() && !writer.sent_text.items().is_empty() {
        stop_attempts(&handle).await;
    }
    gateway.note_use(session);
    match &result {
        Some(Ok(_)) => gateway.learn(session).await,
        Some(Err(error)) if forget_failed(gateway, request, session, prepared.is_resumed, error).await => {}
        Some(Err(_)) | None => {
            gateway.index().note_unanswered(&request.messages, gateway.caller.project(), session)
        }
    }
    let Some(result) = result else { return };
    let exchange = memory.zip(result.as_ref().ok().cloned());
    // The receiver may be gone.
    let _ = steps.send(writer.last(result, request));
    if let Some((memory, outcome)) = exchange {
        memory.remember(gateway.caller.project(), &prepared.messages, &outcome).await;
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
    gateway.learn(session).await;
}

/// The memory for a request; none if it declines memory, or its key has none.
fn memory_of<'a>(gateway: &'a Gateway, request: &CompletionRequest) -> Option<&'a Arc<dyn GatewayMemory>> {
    gateway.config().memory.as_ref().filter(|_| !request.declines_memory && gateway.caller.may_use_memory())
}

/// Runs a turn until its end, and counts its tokens. None if its program hung up before.
async fn attend(
    gateway: &Gateway,
    handle: &SessionHandle,
    prepared: &PreparedSession,
    template: TurnInput,
    request: &CompletionRequest,
    writer: &mut StepWriter,
) -> Option<Result<TurnOutcome, ClientError>> {
    writer.messages_left_out = prepared.messages_left_out;
    let (steps, project) = (writer.steps.clone(), gateway.caller.project());
    let memory = memory_of(gateway, request);
    let hint = memory.map(|memory| memory.hint(project, prepared.session, &prepared.messages));
    let turn = Box::pin(turn(handle, prepared, template, hint, |event| writer.event(event)));
    let result = tokio::select! {
        biased;
        result = turn => Some(result),
        () = steps.closed() => None,
    };
    writer.settle(gateway, result.as_ref().map(Result::as_ref));
    result
}

async fn turn(
    handle: &SessionHandle,
    prepared: &PreparedSession,
    template: TurnInput,
    hint: Option<MemoryHint>,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<TurnOutcome, ClientError> {
    let PreparedSession { messages, is_resumed, replaces, .. } = prepared;
    let (hinted, direct) = (hint.is_some(), RouteOptions { relayer: None, ..template.route.clone() });
    let route = RouteOptions { hint, ..template.route };
    if !is_resumed {
        let kind = if replaces.is_some() { RecordKind::Edit } else { RecordKind::Turn };
        let (messages, supersedes_from) = (messages.clone(), *replaces);
        let input = TurnInput { messages, kind, supersedes_from, route, ..template };
        return handle.turn(input, on_event).await;
    }
    let mut resumed = handle.resume(route, &mut on_event).await;
    if hinted && matches!(resumed, Err(ClientError::TurnFailed { .. })) {
        tracing::warn!(
            "the relayer gave no memory for a message; it is finished without, by a node directly"
        );
        resumed = handle.resume(direct, &mut on_event).await;
    }
    // Another process finished it since. The caller retries, and the messages then find the answer.
    resumed?.ok_or(ClientError::Busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_begins_before_an_answer_that_takes_long() {
        let (steps, waiting) = mpsc::unbounded_channel();
        let (session, model) = (SessionId([1; 32]), String::new());
        let mut running = RunningTurn { session, seq: 0, model, parser: None, steps: waiting };
        assert!(steps.send(Step::Model("m".into())).is_ok());
        let first = running.first_step(Some(Duration::from_millis(20))).await;
        assert!(matches!(first, Ok(Step::Model(name)) if name == "m"));
        assert_eq!(running.model, "m");

        assert!(steps.send(Step::Text("a".into(), Vec::new())).is_ok());
        assert!(matches!(running.first_step(None).await, Ok(Step::Text(text, _)) if text == "a"));
        assert!(steps.send(Step::Failed(ClientError::TaskEnded.into())).is_ok());
        let failed = running.first_step(Some(MAX_SILENCE)).await;
        assert!(failed.is_err(), "an error within the limit has a status");
    }
}
