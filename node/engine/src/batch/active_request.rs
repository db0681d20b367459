//! An admitted request: its rows of a step, and its use of the logits.

use std::time::Instant;

use zeroize::Zeroizing;

use super::{draft::Drafter, generation::Generation, request::Finish};
use crate::{Chunk, Sequence};

/// A request's part in a step.
pub(super) enum Work {
    /// Nothing: the request waits for its turn or for its reader.
    Idle,
    /// Computes this many tokens of its prompt.
    Prefill(usize),
    /// Computes its last token, and checks the guesses after it.
    Decode(Zeroizing<Vec<u32>>),
}

/// A request with its sequence and its reserved blocks.
pub(super) struct ActiveRequest {
    pub generation: Generation,
    pub sequence: Sequence,
    /// Blocks reserved for the request, including those that it holds.
    pub blocks: usize,
    pub draft: Drafter,
    /// Steps in which the prompts of other requests came first.
    pub passed_over: usize,
}

impl ActiveRequest {
    /// Reserved blocks that the request does not hold yet.
    pub(super) fn outstanding(&self) -> usize {
        self.blocks.saturating_sub(self.sequence.blocks().len())
    }

    /// Whether its prompt is not computed yet, and its sink accepts tokens.
    pub(super) fn prefills(&self) -> bool {
        self.generation.is_prefilling() && self.generation.room > 0
    }

    /// Whether it generates, and its sink accepts more.
    pub(super) fn decodes(&self) -> bool {
        !self.generation.is_prefilling() && self.generation.room > 0
    }

    /// Tokens of the prompt still to compute.
    pub(super) fn remaining(&self) -> usize {
        self.generation.prompt.saturating_sub(self.sequence.len())
    }

    /// Its last token, with at most `most` guesses.
    pub(super) fn decode(&mut self, most: usize) -> Work {
        let Generation { tokens: all, limit, room, .. } = &self.generation;
        // Each guess needs room in the answer and in the sink, for itself and for the token chosen after it.
        let most = most.min(limit - all.len() - 1).min(room - 1);
        let mut tokens = Zeroizing::new(Vec::with_capacity(1 + most));
        tokens.push(all[all.len() - 1]);
        tokens.extend_from_slice(self.draft.guess(all, most));
        Work::Decode(tokens)
    }

    /// The chunk of the step for this work.
    pub(super) fn chunk<'a>(&'a mut self, work: &'a Work) -> Option<Chunk<'a>> {
        let (tokens, logits) = match work {
            Work::Idle => return None,
            Work::Prefill(count) => {
                let from = self.sequence.len();
                let end = from + count;
                (&self.generation.tokens[from..end], end.saturating_sub(self.generation.first_row()))
            }
            Work::Decode(tokens) => (tokens.as_slice(), usize::MAX),
        };
        Some(Chunk { sequence: &mut self.sequence, tokens, logits })
    }

    /// Shows the chooser the scored tokens after a chunk of the prompt, and lets it choose after the last one.
    fn take_prefilled<'l>(
        &mut self,
        count: usize,
        rows: &mut impl Iterator<Item = &'l [f32]>,
        clock: &dyn Fn() -> Instant,
    ) -> Option<Finish> {
        let (end, last) = (self.sequence.len(), self.generation.prompt - 1);
        let wanted = self.generation.first_row().max(end - count)..end;
        let mut finish = None;
        // The loop consumes all of these rows: the rows after them belong to another request.
        for (position, row) in wanted.clone().zip(rows.take(wanted.len())) {
            if finish.is_none() && position < last {
                finish = self.generation.score(position, row);
            } else if finish.is_none() {
                finish = self.generation.choose(row, clock);
            }
        }
        finish
    }

    /// Most of the next tokens of the prompt of which at most `rows` have their logits wanted.
    pub(super) fn prefillable(&self, rows: usize) -> usize {
        self.generation.first_row().saturating_sub(self.sequence.len()) + rows
    }

    /// Chooses tokens from the rows of its work while its guesses are right, and forgets the rest. Returns
    /// how the request ended, if it did.
    pub(super) fn take<'l>(
        &mut self,
        work: &Work,
        rows: &mut impl Iterator<Item = &'l [f32]>,
        clock: &dyn Fn() -> Instant,
    ) -> Option<Finish> {
        let guesses = match work {
            Work::Idle => return None,
            Work::Prefill(count) => return self.take_prefilled(*count, rows, clock),
            Work::Decode(tokens) => &tokens[1..],
        };
        let known = self.sequence.len() - guesses.len();
        let (mut right, mut finish) = (0, None);
        for (at, row) in rows.take(guesses.len() + 1).enumerate() {
            // The loop consumes all of these rows: the rows after them belong to another request.
            if finish.is_some() || right < at {
                continue;
            }
            let before = self.generation.tokens.len();
            finish = self.generation.choose(row, clock);
            let tokens = &self.generation.tokens;
            if tokens.len() > before && guesses.get(at) == tokens.last() {
                right += 1;
            }
        }
        if finish.is_none() {
            self.draft.learn(guesses.len(), right);
        }
        self.sequence.truncate(known + right);
        finish
    }
}
