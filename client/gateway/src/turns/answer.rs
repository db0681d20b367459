//! Runs a turn for a program: streams its text, then its outcome.

use std::{pin::pin, sync::Arc, time::Duration};

use baton_proto::{ErrorCode, ids::SessionId, record::RecordKind, turn::Sampling};
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
    keys::{accounts::Charge, usage::UsageCounts},
    memory::GatewayMemory,
    sessions::{
        carried_history::{CarriedMessages, starts},
        choice::{PreparedSession, check, pinned, prepare_session},
        unanswered::forget_failed,
    },
    state::{
        Gateway,
        ephemeral_sessions::{EphemeralSession, IDLE_TIME},
        request_slots::RequestSlot,
    },
};
use baton_client::{
    ClientError, DEFAULT_OUTPUT_TOKENS, MODEL_OUTPUT_TOKENS, MemoryHint, NewSession, RouteOptions,
    SessionHandle, TokenReport, TurnEvent, TurnInput, TurnOutcome,
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
        let (mut text, mut reports, parser) = (String::new(), Vec::new(), self.parser.take());
        let mut steps = pin!(self.steps(first));
        while let Some(step) = steps.next().await {
            match step {
                Step::Model(_) | Step::Note(_) => {}
                Step::Text(more, more_reports) => {
                    text.push_str(&more);
                    reports.extend(more_reports);
                }
                Step::Done(accepted) => {
                    let ended = EndedAnswer::read(&text, parser, accepted.finish);
                    return Ok(WholeAnswer { ended, reports, accepted });
                }
                Step::Failed(api_error) => return Err(api_error),
            }
        }
        Err(ClientError::TaskEnded.into())
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
    template.json_schema = request.json_schema.clone();
    template.sampling = Sampling {
        temperature: request.temperature.unwrap_or(template.sampling.temperature),
        // Below 2^53: programs whose numbers are floats send it back unchanged.
        seed: request.seed.unwrap_or(u64::from_le_bytes(baton_keys::secret::random_bytes()) >> 11),
        logprobs: request.logprobs.map_or(0, LogprobsRequest::requested_alternatives),
        ..request.sampling.clone()
    };
    let most = match template.max_output_tokens {
        MODEL_OUTPUT_TOKENS => DEFAULT_OUTPUT_TOKENS,
        tokens => tokens,
    };
    let charge = gateway.hold(UsageCounts::of_tokens(request.input_estimate(), most.into()))?;
    if let Some(charge) = &charge {
        let rest = u32::try_from(charge.held().output_tokens).unwrap_or(u32::MAX);
        if rest < most {
            template.max_output_tokens = rest;
        }
    }
    // An answer has at most `MAX_OUTPUT_TOKENS` tokens, and a step at least one of them: this bounds the queue.
    let (sender, steps) = mpsc::unbounded_channel();
    let (model, parser) = (request.model.clone().unwrap_or_default(), request.answer_parser());
    let writer = StepWriter::new(sender, template.route.model.clone(), charge);
    let (ephemeral, prepared, session_slot) = if request.is_ephemeral() {
        let (ephemeral, prepared) = prepare_ephemeral(gateway, &template, &request).await?;
        template.route.reconcile = false;
        (Some(ephemeral), prepared, None)
    } else {
        let (prepared, taken) = prepare_session(gateway, &request, &template, &writer.steps).await?;
        (None, prepared, Some(taken))
    };
    let session = prepared.session;
    let client = ephemeral.as_ref().map_or(gateway.client(), |ephemeral| &ephemeral.client);
    let (handle, gateway) = (client.session(session), gateway.clone());
    let seq = handle.info().await?.turns;
    let turn = PreparedTurn { gateway: gateway.clone(), request, template, handle, prepared, writer };
    gateway.clone().spawn(async move {
        match ephemeral {
            Some(ephemeral) => {
                let ending = turn.run_ephemeral(ephemeral).await;
                drop(slot);
                join_all(ending.into_iter().map(EphemeralSession::end)).await;
            }
            None => {
                turn.run().await;
                drop((slot, session_slot));
                settle_devices(&gateway, session).await;
            }
        }
    });
    Ok(RunningTurn { session, seq, model, parser, steps })
}

/// Takes the idle session that has the messages before the new ones, or begins a new one.
async fn prepare_ephemeral(
    gateway: &Gateway,
    template: &TurnInput,
    request: &CompletionRequest,
) -> Result<(EphemeralSession, PreparedSession), ApiError> {
    let (before, new) = split(&request.messages);
    let (project, pinned) = (gateway.caller.project(), pinned(request));
    let mut continued = None;
    if !new.is_empty() {
        check(template, new)?;
        // A session may have begun without the oldest messages.
        let starts = starts(&request.messages, before.len());
        continued = gateway.inner.idle_sessions.take(project, &pinned, before, starts);
    }
    let (carried, session) = match continued {
        Some((start, idle)) => (CarriedMessages::new(new.to_vec(), start), idle),
        None => {
            let carried = CarriedMessages::fit(request.messages.clone(), before.len());
            check(template, &carried.messages)?;
            let project = project.map(str::to_owned);
            let begun = NewSession { system: pinned, project, ..NewSession::default() };
            (carried, EphemeralSession::begin(gateway.client(), begun).await?)
        }
    };
    let prepared = PreparedSession { session: session.id, carried, is_resumed: false, replaces: None };
    Ok((session, prepared))
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
                self.charge.iter_mut().for_each(Charge::keep);
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
                let used = UsageCounts::of_tokens(tokens.input.into(), tokens.output.into());
                charge.settle(used, gateway.now_s());
            }
            Some(Err(_)) if !self.is_admitted => charge.settle(UsageCounts::default(), gateway.now_s()),
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

/// A turn of a request, ready to run.
struct PreparedTurn {
    gateway: Gateway,
    request: CompletionRequest,
    template: TurnInput,
    handle: SessionHandle,
    prepared: PreparedSession,
    writer: StepWriter,
}

impl PreparedTurn {
    /// Runs it in a session of the home.
    async fn run(mut self) {
        let (session, memory, steps) = (self.prepared.session, self.memory(), self.writer.steps.clone());
        let result = self.attend().await;
        if result.is_none() && !self.writer.sent_text.items().is_empty() {
            stop_attempts(&self.handle).await;
        }
        let Self { gateway, request, prepared, writer, .. } = self;
        gateway.note_use(session);
        match &result {
            Some(Ok(_)) => gateway.learn(session).await,
            Some(Err(error))
                if forget_failed(&gateway, &request, session, prepared.is_resumed, error).await => {}
            Some(Err(_)) | None => {
                gateway.index().note_unanswered(&request.messages, gateway.caller.project(), session)
            }
        }
        let Some(result) = result else { return };
        let exchange = memory.zip(result.as_ref().ok().cloned());
        // The receiver may be gone.
        let _ = steps.send(writer.last(result, &request));
        if let Some((memory, outcome)) = exchange {
            memory.remember(gateway.caller.project(), &prepared.carried.messages, &outcome).await;
        }
    }

    /// Runs it in an ephemeral session. Returns the sessions that end now.
    async fn run_ephemeral(mut self, session: EphemeralSession) -> Vec<EphemeralSession> {
        let result = self.attend().await;
        if result.is_none() {
            stop_attempts(&self.handle).await;
        }
        let Self { gateway, request, handle, writer, .. } = self;
        let idle = &gateway.inner.idle_sessions;
        // In a page, no other task ends them.
        let mut ending = idle.unused(IDLE_TIME, Instant::now());
        match (&result, handle.conversation().await) {
            (Some(Ok(_)), Ok(conversation)) if request.retention == Retention::Brief => {
                ending.extend(idle.keep(pinned(&request), conversation, session, Instant::now()));
            }
            _ => ending.push(session),
        }
        if let Some(result) = result {
            // The program may send its next request at once: the session is there before.
            let steps = writer.steps.clone();
            let _ = steps.send(writer.last(result, &request));
        }
        ending
    }

    /// Runs it until its end, and counts its tokens. None if its program hung up before.
    async fn attend(&mut self) -> Option<Result<TurnOutcome, ClientError>> {
        let memory = self.memory();
        let Self { gateway, handle, prepared, template, writer, .. } = self;
        let (steps, project) = (writer.steps.clone(), gateway.caller.project());
        let hint = memory.map(|memory| memory.hint(project, prepared.session, &prepared.carried.messages));
        let turn = Box::pin(turn(handle, prepared, template.clone(), hint, |event| writer.event(event)));
        let result = tokio::select! {
            biased;
            result = turn => Some(result),
            () = steps.closed() => None,
        };
        writer.messages_left_out = prepared.carried.left_out;
        writer.settle(gateway, result.as_ref().map(Result::as_ref));
        result
    }

    /// The memory for the request; none if it declines memory, or its key has none.
    fn memory(&self) -> Option<Arc<dyn GatewayMemory>> {
        let memory = self.gateway.config().memory.clone();
        memory.filter(|_| !self.request.declines_memory && self.gateway.caller.may_use_memory())
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

async fn turn(
    handle: &SessionHandle,
    prepared: &mut PreparedSession,
    template: TurnInput,
    hint: Option<MemoryHint>,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<TurnOutcome, ClientError> {
    let (hinted, direct) = (hint.is_some(), RouteOptions { relayer: None, ..template.route.clone() });
    let route = RouteOptions { hint, ..template.route.clone() };
    if !prepared.is_resumed {
        let PreparedSession { carried, replaces, .. } = prepared;
        let kind = if replaces.is_some() { RecordKind::Edit } else { RecordKind::Turn };
        loop {
            let (messages, supersedes_from) = (carried.messages.clone(), *replaces);
            let input =
                TurnInput { messages, kind, supersedes_from, route: route.clone(), ..template.clone() };
            let result = handle.turn(input, &mut on_event).await;
            let overflows = |error: &ClientError| error.code() == Some(ErrorCode::ContextOverflow);
            if !result.as_ref().is_err_and(overflows) || !carried.halve() {
                return result;
            }
            // The newest part of a history that began elsewhere may fit the model's context.
            handle.abandon().await?;
        }
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
