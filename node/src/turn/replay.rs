//! Replay: recomputes a disclosed turn and compares it with its receipt.
//!
//! The native engine gives the same bits for the same model, tokens and seed. So anyone with a turn's texts,
//! settings and receipt can check that the model gives its answer. Decisions are pure; only [`replay`] runs
//! an engine.

use std::sync::Arc;

use baton_keys::session::RecordKey;
use baton_proto::{
    chain::HistoryTurn,
    export::OpenTurn,
    ids::ModelId,
    limits::CHECKED_TOKENS,
    memory::MemoryItem,
    receipt::{EngineKind, Receipt, commit_memory},
    record::FinishReason,
    turn::{Sampling, json_schema_hash},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{constraint::constraint_of, generate::with_calls, tally::Tally, window};
use crate::{
    engine::{self, Constraint, Engine, EngineError, EngineEvent, GenerateJob, GivenAnswer, SessionKey},
    prompt::{self, MemoryBlock, Prompt},
};

/// Allowance for unshown tokens of an answer that ended by itself: the tokens of a stop string, each at least
/// one byte.
const UNSHOWN_TOKENS: u32 = 512;

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The model gives the same answer, token by token.
    Same {
        /// Tokens of the answer.
        tokens: u32,
    },
    /// The model gives a different answer.
    Different {
        /// The first token with different text, counted from 0. `None` if only the tokens differ, not the
        /// text.
        token: Option<u32>,
    },
    /// The turn cannot be replayed.
    NotReplayable(NotReplayable),
}

/// Why a turn cannot be recomputed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplayable {
    /// The export does not contain the turn.
    #[error("turn {} is not in the export", .0.saturating_add(1))]
    NoTurn(u64),
    /// The export lacks a necessary part of the turn.
    #[error("the export has no {0} of the turn: a client that began the turn itself exports it")]
    Undisclosed(&'static str),
    /// The turn has no answer.
    #[error("the turn has no answer of a model")]
    NoAnswer,
    /// The answer came from an engine other than the native one.
    #[error("the answer came from {0}, of which nobody knows what it computed")]
    Engine(&'static str),
    /// The memory items are missing or different.
    #[error(
        "the receipt is bound to the memory items used, {wanted} in number, and not to the {given} given: --memory names their file"
    )]
    Memory {
        /// Number of items in the answer's prompt.
        wanted: u16,
        /// Number of items given.
        given: usize,
    },
    /// The schema is missing or different.
    #[error("the answer follows a JSON schema that was not given, or another was: --schema names its file")]
    Schema,
    /// The engine serves another model.
    #[error(
        "the answer is of model {wanted}, and this is {here}: --model names its file; a release with another revision \
         of the engine has another model of the same file"
    )]
    Model {
        /// The receipt's.
        wanted: ModelId,
        /// The engine's.
        here: ModelId,
    },
    /// This engine no longer accepts the turn's window.
    #[error("the engine refuses what the node was asked: {0}")]
    Refused(String),
}

/// A turn that can be recomputed.
pub struct ReplayTask {
    prompt: Prompt,
    sampling: Sampling,
    max_tokens: u32,
    schema: Option<Zeroizing<String>>,
    receipt: Receipt,
    record_key: RecordKey,
    answer: Zeroizing<String>,
    finish: FinishReason,
}

impl ReplayTask {
    /// Reconstructs the node's prompt in turn `seq`. `turns` come verified from
    /// [`baton_proto::export::open`]. No export contains the memory items and the text of a JSON schema, so
    /// the caller provides them.
    ///
    /// # Errors
    /// [`NotReplayable`], if a part is missing or does not match the receipt.
    pub fn new(
        turns: &[OpenTurn],
        seq: u64,
        memory: &[MemoryItem],
        schema: Option<&str>,
    ) -> Result<Self, NotReplayable> {
        let turn = turns.iter().find(|turn| turn.link.seq == seq).ok_or(NotReplayable::NoTurn(seq))?;
        let before = turns.iter().filter(|earlier| earlier.link.seq < seq);
        let history: Vec<HistoryTurn> = before
            .map(|earlier| HistoryTurn { link: earlier.link.clone(), record: Some(earlier.record.clone()) })
            .collect();
        Self::after(&history, turn, memory, schema)
    }

    /// As [`ReplayTask::new`], for a turn after `history`, of which the records in the turn's window are enough.
    ///
    /// # Errors
    /// As [`ReplayTask::new`].
    pub(crate) fn after(
        history: &[HistoryTurn],
        turn: &OpenTurn,
        memory: &[MemoryItem],
        schema: Option<&str>,
    ) -> Result<Self, NotReplayable> {
        let missing = NotReplayable::Undisclosed;
        let receipt = turn.receipt.as_ref().ok_or(missing("receipt"))?;
        match receipt.engine {
            EngineKind::Native => {}
            EngineKind::Library => return Err(NotReplayable::Engine("a general library")),
            EngineKind::Proxied => return Err(NotReplayable::Engine("a server behind the node")),
            EngineKind::Echo | EngineKind::Embedding => return Err(NotReplayable::Engine("a test engine")),
        }
        let system = turn.system.as_ref().ok_or(missing("system text"))?;
        let sampling = turn.sampling.as_ref().ok_or(missing("sampling settings"))?;
        let answer = turn.record.answer().ok_or(NotReplayable::NoAnswer)?;
        if turn.record.finish == FinishReason::None {
            return Err(NotReplayable::NoAnswer);
        }
        let used = memory_used(turn, receipt, memory)?;
        let schema = schema.filter(|_| sampling.json_schema.is_some());
        if sampling.json_schema != schema.map(json_schema_hash) {
            return Err(NotReplayable::Schema);
        }
        let block = MemoryBlock {
            fence_tag: turn.record_key.memory_fence(),
            items: used.to_vec(),
            max_tokens: u32::MAX,
        };
        let history = window(history, turn, receipt);
        let (_, new) = turn.record.messages.split_last().ok_or(NotReplayable::NoAnswer)?;
        let memory = (!used.is_empty()).then_some((&block, used.len()));
        Ok(Self {
            prompt: prompt::whole_window(system, &history, memory, new),
            // The reporting of log probabilities does not change the tokens.
            sampling: Sampling { logprobs: 0, ..sampling.clone() },
            max_tokens: max_tokens(receipt, turn.record.finish),
            schema: schema.map(|schema| Zeroizing::new(schema.to_owned())),
            receipt: Receipt::clone(receipt),
            record_key: turn.record_key.clone(),
            answer: Zeroizing::new(answer.to_owned()),
            finish: turn.record.finish,
        })
    }

    /// Tokens of the prompt according to the receipt.
    #[must_use]
    pub(crate) const fn input_tokens(&self) -> u32 {
        self.receipt.tokens.input
    }

    /// Whether the answer follows a JSON schema.
    pub(crate) const fn has_schema(&self) -> bool {
        self.schema.is_some()
    }

    /// Whether the answer claims calls of tools that its text does not have, or has calls that it does not claim.
    pub(crate) fn ends_falsely(&self) -> bool {
        let by_itself = matches!(self.finish, FinishReason::Stop | FinishReason::ToolCall);
        by_itself && with_calls(FinishReason::Stop, &self.answer, &self.prompt) != self.finish
    }

    /// The constraint on the answer, compiled off the reactor.
    ///
    /// # Errors
    /// [`EngineError::Schema`], and others of [`Engine::constrain`].
    pub(crate) async fn constraint(
        &self,
        engine: Arc<dyn Engine>,
    ) -> Result<Option<Constraint>, EngineError> {
        let (schema, prompt) = (self.schema.clone(), self.prompt.clone());
        let compiling = tokio::task::spawn_blocking(move || {
            constraint_of(engine.as_ref(), schema.as_deref().map(String::as_str), prompt.tools())
        });
        compiling
            .await
            .map_err(|_| EngineError::Compute { reason: "a schema's compiler panicked".to_owned() })?
    }

    /// The job that checks the answer, whose tokens are given.
    pub(crate) fn check_job(
        self,
        constraint: Option<Constraint>,
        (session, cancel): (SessionKey, CancellationToken),
        (tokens, probe): (Vec<u32>, u32),
    ) -> (GenerateJob, GivenAnswer) {
        let Self { prompt, sampling, max_tokens, receipt, answer, finish, .. } = self;
        let given = GivenAnswer {
            tokens: Zeroizing::new(tokens),
            text: answer,
            finish: match finish {
                FinishReason::StopString => engine::FinishReason::StopString,
                FinishReason::Length => engine::FinishReason::Length,
                _ => engine::FinishReason::Stop,
            },
            resumed: receipt.tokens.resumed as usize,
            probe: probe.max(receipt.tokens.resumed) as usize,
            count: CHECKED_TOKENS as usize,
        };
        let cache_key = Some(session);
        let job = GenerateJob::new(prompt, sampling, max_tokens);
        (GenerateJob { constraint, cache_key, cancel, ..job }, given)
    }
}

/// The memory items to which the receipt commits.
fn memory_used<'a>(
    turn: &OpenTurn,
    receipt: &Receipt,
    given: &'a [MemoryItem],
) -> Result<&'a [MemoryItem], NotReplayable> {
    let wanted = receipt.memory_items;
    let used = given.get(..usize::from(wanted)).unwrap_or_default();
    if commit_memory(&turn.record_key, used) == receipt.commitments.memory {
        Ok(used)
    } else {
        Err(NotReplayable::Memory { wanted, given: given.len() })
    }
}

/// The history in the prompt.
fn window(history: &[HistoryTurn], turn: &OpenTurn, receipt: &Receipt) -> Vec<prompt::TurnText> {
    let mut history = window::texts(history, turn.record.kind, turn.record.supersedes_from);
    history.retain(|earlier| earlier.seq >= receipt.window_from);
    history
}

/// The most tokens of the answer. An answer that was cut off used all its tokens.
fn max_tokens(receipt: &Receipt, finish: FinishReason) -> u32 {
    let output = receipt.tokens.output;
    if finish == FinishReason::Length { output.max(1) } else { output.saturating_add(UNSHOWN_TOKENS) }
}

/// Recomputes a turn, and stops at the first difference.
///
/// # Errors
/// The engine's errors that say nothing about the turn: it is shut down, busy, or broken.
pub async fn replay(engine: &dyn Engine, task: &ReplayTask) -> Result<Verdict, EngineError> {
    let here = engine.info().model_id;
    if here != task.receipt.model {
        let wanted = task.receipt.model;
        return Ok(Verdict::NotReplayable(NotReplayable::Model { wanted, here }));
    }
    match compute(engine, task).await {
        Err(
            error @ (EngineError::ContextOverflow { .. }
            | EngineError::Template { .. }
            | EngineError::ToolsUnsupported
            | EngineError::Schema { .. }
            | EngineError::Unsupported { .. }),
        ) => Ok(Verdict::NotReplayable(NotReplayable::Refused(error.to_string()))),
        other => other,
    }
}

async fn compute(engine: &dyn Engine, task: &ReplayTask) -> Result<Verdict, EngineError> {
    let schema = task.schema.as_deref().map(String::as_str);
    let constraint = constraint_of(engine, schema, task.prompt.tools())?;
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let job = GenerateJob::new(task.prompt.clone(), task.sampling.clone(), task.max_tokens);
    let mut events = engine.generate(GenerateJob { constraint, cancel: stop, ..job })?;
    let mut tally = Tally::new(&task.record_key, task.receipt.auth_hash);
    let mut left = task.answer.as_str();
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Started { .. } | EngineEvent::Resumed { .. } => {}
            EngineEvent::Token { index, ids, text, .. } => {
                let text = Zeroizing::new(text);
                match left.strip_prefix(text.as_str()) {
                    Some(rest) if tally.count() < task.receipt.tokens.output => left = rest,
                    _ => return Ok(Verdict::Different { token: Some(index) }),
                }
                for id in ids {
                    tally.step(id);
                }
            }
            EngineEvent::Done { finish, .. } => return Ok(judge(task, tally, left, finish)),
            EngineEvent::Failed(error) => return Err(error),
        }
    }
    Err(EngineError::ShutDown)
}

fn judge(task: &ReplayTask, tally: Tally, left: &str, finish: engine::FinishReason) -> Verdict {
    let finish = match finish {
        engine::FinishReason::Stop => with_calls(FinishReason::Stop, &task.answer, &task.prompt),
        engine::FinishReason::StopString => FinishReason::StopString,
        engine::FinishReason::Length | engine::FinishReason::Cancelled => FinishReason::Length,
    };
    let tokens = tally.count();
    if !left.is_empty() || finish != task.finish || tokens != task.receipt.tokens.output {
        return Verdict::Different { token: Some(tokens) };
    }
    if tally.hash() == task.receipt.running_hash {
        Verdict::Same { tokens }
    } else {
        Verdict::Different { token: None }
    }
}
