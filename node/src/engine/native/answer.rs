//! One job in the batch: chooses its tokens, converts them to text, and sends its events.
//!
//! The batch requests each token and reports the end. Both calls reach the same [`AnswerState`].

use std::sync::Arc;

use baton_engine::{
    batch::{BatchError, Choice, Chooser, Finish, Sink, Stats},
    language::{Piece, Softmax},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{choice::TokenChoice, prompt_queue::JobPermit, small};
use crate::engine::{
    EngineError, EngineEvent, FinishReason, GenerateStats, language::LogprobReport, tasks::millis,
};

/// Room for events at the end of an answer: text that was held back.
const KEPT_ROOM: usize = 1;

/// A job's output: events to the reader, the stop signal, and the clock.
pub(super) struct Outlet {
    pub(crate) events: mpsc::Sender<EngineEvent>,
    /// Reserved room for the last event, so that its delivery never waits.
    pub(crate) last: Option<mpsc::OwnedPermit<EngineEvent>>,
    pub(crate) cancel: CancellationToken,
    /// The job's permit within the engine's limit.
    pub(crate) permit: JobPermit,
}

impl Outlet {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.events.is_closed()
    }

    /// Sends an event. The caller has checked the room.
    pub(super) fn send(&self, event: EngineEvent) {
        // Closed: there is no reader. Full: impossible, because the batch checks the room first.
        let _ = self.events.try_send(event);
    }

    /// Ends the job; only the first call has an effect.
    pub(super) fn end(&mut self, outcome: Result<FinishReason, EngineError>, stats: GenerateStats) {
        if let Some(last) = self.last.take() {
            last.send(match outcome {
                Ok(finish) => EngineEvent::Done { finish, stats },
                Err(error) => EngineEvent::Failed(error),
            });
        }
    }
}

/// An answer in progress.
pub(super) struct AnswerState {
    pub(crate) outlet: Outlet,
    pub(crate) choice: TokenChoice,
    /// Position in the answer of the first unsent token.
    pub(crate) next_index: u32,
    /// Number of most likely tokens to report with each token.
    pub(crate) logprobs: u8,
    /// Reports on unsent tokens.
    pub(crate) reported: Zeroizing<Vec<LogprobReport>>,
    pub(crate) output_tokens: u32,
    /// The outcome, if the job ended by itself.
    pub(crate) ended: Option<Result<FinishReason, EngineError>>,
}

impl AnswerState {
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Result<Choice, EngineError> {
        if self.outlet.is_cancelled() {
            self.ended = Some(Ok(FinishReason::Cancelled));
            return Ok(Choice::End);
        }
        let id = self.choice.pick(tokens, logits)?;
        if self.choice.is_stop(id) {
            self.ended = Some(Ok(FinishReason::Stop));
            return Ok(Choice::End);
        }
        self.output_tokens += 1;
        if self.logprobs > 0 {
            // Grammar and penalties change the logits; the report shows the model's own probabilities.
            let report = self.choice.language.report(&Softmax::of(logits), id, usize::from(self.logprobs));
            self.reported.push(LogprobReport::from(report));
        }
        let (piece, end) = self.choice.push(id)?;
        self.emit(piece);
        Ok(match end {
            Some(finish) => {
                self.ended = Some(Ok(finish));
                Choice::Last(id)
            }
            None => Choice::Token(id),
        })
    }

    fn emit(&mut self, piece: Piece) {
        let Piece { ids, text } = piece;
        if ids.is_empty() && text.is_empty() {
            return;
        }
        let (index, count) = (self.next_index, ids.len());
        self.next_index += small(count);
        let reported = count.min(self.reported.len());
        let logprobs = self.reported.drain(..reported).collect();
        self.outlet.send(EngineEvent::Token { index, ids, text, logprobs });
    }

    fn finish(&mut self, finish: Finish, stats: &Stats) {
        let ended = self.ended.take();
        let outcome = outcome(finish, ended, &self.outlet);
        if matches!(outcome, Ok(FinishReason::Stop | FinishReason::Length)) {
            let held = self.choice.text.finish();
            self.emit(held);
        }
        let stats = GenerateStats {
            input_tokens: small(self.choice.input),
            cached_tokens: small(stats.cached_tokens),
            output_tokens: self.output_tokens,
            prefill_ms: millis(stats.prefill),
        };
        self.outlet.end(outcome, stats);
    }
}

/// The outcome of a job that ended in the batch, and by itself as `ended` says.
pub(super) fn outcome(
    finish: Finish,
    ended: Option<Result<FinishReason, EngineError>>,
    outlet: &Outlet,
) -> Result<FinishReason, EngineError> {
    match (finish, ended) {
        (Finish::End, ended) => ended.unwrap_or(Ok(FinishReason::Stop)),
        (Finish::Length, _) => Ok(FinishReason::Length),
        (Finish::Cancelled, _) => Ok(FinishReason::Cancelled),
        (Finish::Failed(BatchError::NoChoice), Some(Err(error))) => Err(error),
        (Finish::Failed(error), _) => Err(outlet.permit.error(&error)),
    }
}

/// An answer as the batch holds it: as its chooser, and as its sink.
#[derive(Clone)]
pub(super) struct SharedAnswer(pub Arc<Mutex<AnswerState>>);

impl SharedAnswer {
    pub(super) fn answer(&self) -> MutexGuard<'_, AnswerState> {
        self.0.lock()
    }
}

impl Chooser for SharedAnswer {
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice {
        let mut answer = self.answer();
        answer.choose(tokens, logits).unwrap_or_else(|error| {
            answer.ended = Some(Err(error));
            Choice::Nothing
        })
    }
}

impl Sink for SharedAnswer {
    fn room(&mut self) -> Option<usize> {
        let answer = self.answer();
        let room = answer.outlet.events.capacity().saturating_sub(KEPT_ROOM);
        (!answer.outlet.is_cancelled()).then_some(room)
    }

    fn finished(self: Box<Self>, finish: Finish, stats: Stats) {
        self.answer().finish(finish, &stats);
    }
}
