//! The choice of an answer's tokens, and their text: the same when an answer is made and when it is checked.

use std::sync::Arc;

use baton_engine::language::{Grammar, Language, Piece, PushOutcome, Sampler, StreamText};
use zeroize::Zeroizing;

use super::small;
use crate::engine::{EngineError, FinishReason};

pub(super) struct TokenChoice {
    pub(crate) language: Arc<Language>,
    pub(crate) sampler: Sampler,
    pub(crate) text: StreamText,
    /// Allowed continuations, if there is a schema.
    pub(crate) grammar: Option<Grammar>,
    /// Tokens of the prompt, without those of the answer.
    pub(crate) input: usize,
    /// Logits after grammar and penalties.
    pub(crate) scratch: Zeroizing<Vec<f32>>,
}

impl TokenChoice {
    /// The position in the answer of the token after `tokens`.
    pub(super) fn position(&self, tokens: &[u32]) -> u32 {
        small(tokens.len() - self.input)
    }

    /// The token after `tokens`, by these logits.
    pub(super) fn pick(&mut self, tokens: &[u32], logits: &[f32]) -> Result<u32, EngineError> {
        let language = Arc::clone(&self.language);
        self.scratch.clear();
        self.scratch.extend_from_slice(logits);
        if let Some(grammar) = &mut self.grammar {
            grammar.mask(&mut self.scratch, |id| language.tokenizer().is_stop(id))?;
        }
        let position = self.position(tokens);
        Ok(self.sampler.sample(&mut self.scratch, tokens, position)?)
    }

    /// Whether this token ends an answer without being a part of it.
    pub(super) fn is_stop(&self, id: u32) -> bool {
        self.language.tokenizer().is_stop(id)
    }

    /// Appends a token to the answer. Returns the text that it completes, and why the answer ends with it, if it does.
    pub(super) fn push(&mut self, id: u32) -> Result<(Piece, Option<FinishReason>), EngineError> {
        let piece = match self.text.push(id, self.language.tokenizer().token_bytes(id)) {
            PushOutcome::Held => Piece::default(),
            PushOutcome::Emit(piece) => piece,
            PushOutcome::Stopped(piece) => return Ok((piece, Some(FinishReason::StopString))),
        };
        if let Some(grammar) = &mut self.grammar {
            grammar.push(id)?;
            // A complete value is complete even if it fills all the room.
            if grammar.is_complete() {
                return Ok((piece, Some(FinishReason::Stop)));
            }
        }
        Ok((piece, None))
    }
}
