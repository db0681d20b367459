//! The echo engine: deterministic and without a model, for tests of everything around an engine.
//!
//! It answers `echo:` and the words of the last user message (with memory, if any), one token a word. It
//! counts words, exactly. It is never offered to clients as a model.

use std::time::Duration;

use baton_engine::language::text::{PushOutcome, StreamText, shown_text};

use super::{
    Engine, EngineError, EngineInfo, EngineKind, FinishReason, GenerateHandle, GenerateJob, TokenCount,
    manifest::unseen,
    refuse_extras,
    worker::{Backend, EventSink, Worker},
};
use crate::prompt::{Prompt, Role};

/// Settings of the echo engine.
#[derive(Debug, Clone)]
pub struct EchoConfig {
    /// Maximum words of prompt and answer together.
    pub context_tokens: u32,
    /// Wait before each token.
    pub token_delay: Duration,
    /// Jobs that may wait besides the running one.
    pub queue_limit: usize,
}

impl Default for EchoConfig {
    fn default() -> Self {
        Self { context_tokens: 4096, token_delay: Duration::ZERO, queue_limit: 16 }
    }
}

/// See the module.
pub struct EchoEngine {
    info: EngineInfo,
    worker: Worker,
}

impl EchoEngine {
    /// Starts an echo engine and its thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(config: &EchoConfig) -> std::io::Result<Self> {
        let manifest = unseen("echo".into());
        let info = EngineInfo {
            name: "echo".into(),
            model_id: manifest.model_id(),
            kind: EngineKind::Echo,
            context_tokens: config.context_tokens,
            manifest: manifest.into(),
        };
        let runner = Runner { context: config.context_tokens, delay: config.token_delay };
        let worker = Worker::spawn("echo", config.queue_limit, runner)?;
        Ok(Self { info, worker })
    }
}

/// The ID of a word: 32 bits of its BLAKE3, stable across processes.
#[must_use]
pub fn word_id(word: &str) -> u32 {
    let hash = blake3::hash(word.as_bytes());
    u32::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index]))
}

/// Words of a prompt, memory included.
fn count_words(prompt: &Prompt) -> u32 {
    let words = prompt.rendered().map(|(_, text)| text.split_whitespace().count()).sum::<usize>();
    u32::try_from(words).unwrap_or(u32::MAX)
}

/// The answer's tokens with their text. Each except the first starts with a space.
fn answer(prompt: &Prompt) -> Vec<(u32, String)> {
    let asked = prompt.rendered().filter(|(message, _)| message.role == Role::User).last();
    let asked = asked.map(|(_, text)| text).unwrap_or_default();
    let mut tokens = vec![(word_id("echo:"), "echo:".to_owned())];
    tokens.extend(asked.split_whitespace().map(|word| (word_id(word), format!(" {word}"))));
    tokens
}

impl Engine for EchoEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn count(&self, prompt: &Prompt) -> Result<TokenCount, EngineError> {
        Ok(TokenCount { tokens: count_words(prompt), exact: true })
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        job.sampling.validate()?;
        refuse_extras(&job)?;
        self.worker.submit(job)
    }

    fn shutdown(&self) {
        self.worker.shutdown();
    }
}

struct Runner {
    context: u32,
    delay: Duration,
}

impl Backend for Runner {
    fn run(&mut self, job: &GenerateJob, sink: &mut EventSink) -> Result<FinishReason, EngineError> {
        let input = count_words(&job.prompt);
        let resumed = u32::try_from(job.resume_tokens.len()).unwrap_or(u32::MAX);
        let needed = input.saturating_add(resumed).saturating_add(1);
        if needed > self.context {
            return Err(EngineError::ContextOverflow { needed, limit: self.context });
        }
        sink.started(input);
        let tokens = answer(&job.prompt);
        if resumed as usize > tokens.len() || job.resume_tokens.iter().zip(&tokens).any(|(id, t)| *id != t.0)
        {
            return Err(EngineError::InvalidResume);
        }
        let mut text = StreamText::new(&job.sampling.stop);
        let prefix = tokens[..resumed as usize].iter().map(|(_, word)| word.as_str());
        sink.resumed(shown_text(&job.sampling.stop, prefix.collect::<String>().as_bytes()));
        let mut open = true;
        for (id, word) in &tokens[..resumed as usize] {
            open = open && text.resume(*id, word.as_bytes());
        }
        sink.prefilled();
        if !open {
            return Ok(FinishReason::StopString);
        }
        let longest = job.sampling.max_tokens.min(self.context - input);
        let mut next = resumed;
        let mut finish = FinishReason::Stop;
        for (position, (id, word)) in (0u32..).zip(&tokens).skip(resumed as usize) {
            if position >= longest {
                finish = FinishReason::Length;
                break;
            }
            sink.wait(self.delay);
            if let Some(interruption) = sink.interruption() {
                return interruption;
            }
            sink.generated();
            let (piece, stopped) = match text.push(*id, word.as_bytes()) {
                PushOutcome::Held => continue,
                PushOutcome::Emit(piece) => (piece, false),
                PushOutcome::Stopped(piece) => (piece, true),
            };
            let count = u32::try_from(piece.ids.len()).unwrap_or(u32::MAX);
            sink.token(next, piece.ids, piece.text, Vec::new());
            next += count;
            if stopped {
                return Ok(FinishReason::StopString);
            }
        }
        let rest = text.finish();
        sink.token(next, rest.ids, rest.text, Vec::new());
        Ok(finish)
    }
}
