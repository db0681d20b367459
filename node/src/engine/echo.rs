//! The echo engine: deterministic and without a model, for tests of everything around an engine.
//!
//! It answers `echo:` and the words of the last user message (with memory, if any), one token a word, and one job
//! at a time. It counts words, exactly. It is never offered to clients as a model.

use std::{sync::Arc, time::Duration};

use baton_engine::language::text::{Piece, PushOutcome, StreamText, shown_text};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
};

use super::{
    Engine, EngineError, EngineEvent, EngineInfo, EngineKind, FinishReason, GenerateHandle, GenerateJob,
    GenerateStats, check_sampling, refuse_logprobs,
    tasks::{JobRun, JobTasks},
    unseen,
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
    delay: Duration,
    /// Held by the job that is answered.
    turn: Arc<Semaphore>,
    jobs: JobTasks,
}

impl EchoEngine {
    /// An echo engine whose jobs run on `runtime`.
    #[must_use]
    pub fn new(config: &EchoConfig, runtime: Handle) -> Self {
        let info = EngineInfo::new("echo", EngineKind::Echo, config.context_tokens, unseen("echo".into()));
        let jobs = JobTasks::new(runtime, config.queue_limit + 1);
        Self { info, delay: config.token_delay, turn: Arc::new(Semaphore::new(1)), jobs }
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

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        Ok(count_words(prompt))
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        check_sampling(&job)?;
        refuse_logprobs(&job)?;
        if job.constraint.is_some() {
            return Err(EngineError::Unsupported { what: "schemas" });
        }
        self.jobs.start(job, |events| EchoRun {
            context: self.info.context_tokens,
            delay: self.delay,
            turn: Arc::clone(&self.turn),
            events,
            next: 0,
            stats: GenerateStats::default(),
        })
    }

    fn shutdown(&self) {
        self.jobs.shutdown();
    }
}

struct EchoRun {
    context: u32,
    delay: Duration,
    turn: Arc<Semaphore>,
    events: mpsc::Sender<EngineEvent>,
    /// Position in the answer of the first unsent token.
    next: u32,
    stats: GenerateStats,
}

impl EchoRun {
    /// Sends an event. A closed reader ends the job from outside.
    async fn send(&self, event: EngineEvent) {
        let _ = self.events.send(event).await;
    }

    async fn emit(&mut self, Piece { ids, text }: Piece) {
        if ids.is_empty() && text.is_empty() {
            return;
        }
        let index = self.next;
        self.next += u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.send(EngineEvent::Token { index, ids, text, logprobs: Vec::new() }).await;
    }
}

impl JobRun for EchoRun {
    async fn run(&mut self, job: &GenerateJob) -> Result<FinishReason, EngineError> {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let _turn = turn.map_err(|_| EngineError::ShutDown)?;
        let input = count_words(&job.prompt);
        let resumed = job.resume_tokens.len();
        self.next = u32::try_from(resumed).unwrap_or(u32::MAX);
        let needed = input.saturating_add(self.next).saturating_add(1);
        if needed > self.context {
            return Err(EngineError::ContextOverflow { needed, limit: self.context });
        }
        self.stats.input_tokens = input;
        self.send(EngineEvent::Started { input_tokens: input }).await;
        let tokens = answer(&job.prompt);
        if resumed > tokens.len() || job.resume_tokens.iter().zip(&tokens).any(|(id, t)| *id != t.0) {
            return Err(EngineError::InvalidResume);
        }
        let (prefix, rest) = tokens.split_at(resumed);
        let stops = &job.sampling.stop;
        let shown = prefix.iter().map(|(_, word)| word.as_str()).collect::<String>();
        let shown = shown_text(stops, shown.as_bytes());
        if !shown.is_empty() {
            self.send(EngineEvent::Resumed { text: shown }).await;
        }
        let mut text = StreamText::new(stops);
        for (id, word) in prefix {
            if !text.resume(*id, word.as_bytes()) {
                return Ok(FinishReason::StopString);
            }
        }
        let longest = job.max_tokens.min(self.context - input) as usize;
        let made = &rest[..rest.len().min(longest.saturating_sub(resumed))];
        for (id, word) in made {
            if !self.delay.is_zero() {
                tokio::time::sleep(self.delay).await;
            }
            self.stats.output_tokens += 1;
            match text.push(*id, word.as_bytes()) {
                PushOutcome::Held => {}
                PushOutcome::Emit(piece) => self.emit(piece).await,
                PushOutcome::Stopped(piece) => {
                    self.emit(piece).await;
                    return Ok(FinishReason::StopString);
                }
            }
        }
        self.emit(text.finish()).await;
        Ok(if made.len() < rest.len() { FinishReason::Length } else { FinishReason::Stop })
    }

    fn end(
        self,
        outcome: Result<FinishReason, EngineError>,
    ) -> Result<(FinishReason, GenerateStats), EngineError> {
        Ok((outcome?, self.stats))
    }
}
