//! An answer in the batch: chooses its tokens, converts them to text, and sends its events.

use baton_engine::{
    batch::{Choice, Finish, Stats},
    language::{Piece, Softmax},
};
use baton_proto::wire::TokenLogprob;
use zeroize::Zeroizing;

use super::{
    batch_job::{BatchJob, Outlet},
    choice::TokenChoice,
    small,
};
use crate::engine::{
    EngineError, EngineEvent, FinishReason, GenerateStats, language::logprobs, tasks::millis,
};

/// Room for events at the end of an answer: text that was held back.
const KEPT_ROOM: usize = 1;

/// An answer in progress.
pub(super) struct AnswerState {
    pub(crate) outlet: Outlet,
    pub(crate) choice: TokenChoice,
    /// Position in the answer of the first unsent token.
    pub(crate) next_index: u32,
    /// Number of most likely tokens to report with each token.
    pub(crate) logprobs: u8,
    /// Reports on unsent tokens, one for each.
    pub(crate) reported: Zeroizing<Vec<Vec<TokenLogprob>>>,
    pub(crate) output_tokens: u32,
    /// The outcome, if the job ended by itself.
    pub(crate) ended: Option<Result<FinishReason, EngineError>>,
}

impl AnswerState {
    fn next(&mut self, tokens: &[u32], logits: &[f32]) -> Result<Choice, EngineError> {
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
            self.reported.push(logprobs(report));
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
        let logprobs = self.reported.drain(..reported).flatten().collect();
        self.outlet.send(EngineEvent::Token { index, ids, text, logprobs });
    }
}

impl BatchJob for AnswerState {
    fn outlet(&mut self) -> &mut Outlet {
        &mut self.outlet
    }

    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice {
        self.next(tokens, logits).unwrap_or_else(|error| {
            self.ended = Some(Err(error));
            Choice::Nothing
        })
    }

    fn room(&self) -> usize {
        self.outlet.events.capacity().saturating_sub(KEPT_ROOM)
    }

    fn finish(&mut self, finish: Finish, stats: &Stats) {
        let ended = self.ended.take();
        let outcome = self.outlet.outcome(finish, ended);
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
