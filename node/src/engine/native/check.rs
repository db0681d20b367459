//! A given answer in the batch: compares each of its tokens with the one that the model chooses.

use baton_engine::batch::{Choice, Finish, Stats};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::{
    batch_job::{BatchJob, Outlet},
    choice::TokenChoice,
    small,
};
use crate::engine::{AnswerComparison, EngineError, FinishReason, GenerateStats, GivenAnswer};

/// A check in progress.
pub(super) struct CheckState {
    pub(crate) outlet: Outlet,
    pub(crate) choice: TokenChoice,
    pub(crate) given: GivenAnswer,
    /// Bytes of the given text that the tokens so far have.
    pub(crate) read: usize,
    /// Where the answer must have ended, if its tokens so far end it.
    pub(crate) ended: Option<FinishReason>,
    pub(crate) differs_at: Option<u32>,
    pub(crate) logits: [u8; 32],
    pub(crate) failed: Option<EngineError>,
    pub(crate) result: Option<oneshot::Sender<AnswerComparison>>,
}

impl CheckState {
    fn compare(&mut self, tokens: &[u32], next: u32, logits: &[f32]) -> Result<(), EngineError> {
        let position = self.choice.position(tokens);
        if position as usize == self.given.probe {
            self.logits = hash(logits);
        }
        if self.differs_at.is_some() || self.outlet.is_cancelled() {
            return Ok(());
        }
        if self.ended.is_none() && self.choice.pick(tokens, logits)? == next {
            self.append(position, next);
        } else {
            self.differs_at = Some(position);
        }
        Ok(())
    }

    /// Appends a token of the answer, which must not have ended before and whose text must be the given one.
    pub(super) fn append(&mut self, position: u32, id: u32) {
        let pushed = if self.ended.is_none() { self.choice.push(id).ok() } else { None };
        let goes_on = match pushed {
            Some((piece, ended)) => {
                self.ended = ended;
                self.reads(&Zeroizing::new(piece.text))
            }
            None => false,
        };
        if !goes_on {
            self.differs_at.get_or_insert(position);
        }
    }

    /// Whether the given text goes on with this text.
    fn reads(&mut self, text: &str) -> bool {
        let goes_on = self.given.text.get(self.read..).is_some_and(|rest| rest.starts_with(text));
        self.read += if goes_on { text.len() } else { 0 };
        goes_on
    }

    /// Compares the end of the answer, after all of its tokens.
    fn end(&mut self, tokens: &[u32], logits: &[f32]) -> Result<(), EngineError> {
        let count = self.choice.position(tokens);
        if self.differs_at.is_some() {
            return Ok(());
        }
        if (count as usize) < self.given.covered().len() {
            self.differs_at = Some(count);
        }
        if (count as usize) < self.given.tokens.len() {
            return Ok(());
        }
        let ends = match self.ended {
            Some(finish) => finish == self.given.finish,
            // A node may cut an answer by its own limits.
            None if self.given.finish == FinishReason::Length => true,
            None => {
                let id = self.choice.pick(tokens, logits)?;
                self.given.finish == FinishReason::Stop && self.choice.is_stop(id)
            }
        };
        let held = self.choice.text.finish();
        let is_whole = self.reads(&Zeroizing::new(held.text)) && self.read == self.given.text.len();
        if !ends || !is_whole {
            self.differs_at = Some(count);
        }
        Ok(())
    }
}

/// BLAKE3 of these logits.
fn hash(logits: &[f32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for logit in logits {
        hasher.update(&logit.to_le_bytes());
    }
    hasher.finalize().into()
}

impl BatchJob for CheckState {
    fn outlet(&mut self) -> &mut Outlet {
        &mut self.outlet
    }

    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice {
        if let Err(error) = self.end(tokens, logits) {
            self.failed.get_or_insert(error);
        }
        if self.failed.is_some() { Choice::Nothing } else { Choice::End }
    }

    fn score(&mut self, tokens: &[u32], next: u32, logits: &[f32]) {
        if let Err(error) = self.compare(tokens, next, logits) {
            self.failed.get_or_insert(error);
        }
    }

    /// It makes no tokens, so its reader is never slow.
    fn room(&self) -> usize {
        usize::MAX
    }

    fn finish(&mut self, finish: Finish, stats: &Stats) {
        let outcome = self.outlet.outcome(finish, self.failed.take().map(Err));
        let read = self.choice.input + self.given.covered().len();
        let computed = small(read.saturating_sub(stats.cached_tokens));
        let comparison = AnswerComparison { differs_at: self.differs_at, logits: self.logits, computed };
        if outcome == Ok(FinishReason::Stop)
            && let Some(result) = self.result.take()
        {
            // Without a receiver, the check is abandoned.
            let _ = result.send(comparison);
        }
        self.outlet.end(outcome, GenerateStats::default());
    }
}
