//! Computing a disclosed turn again, and comparing it with what its receipt is bound to.
//!
//! The node's own engine gives the same bits for the same model, tokens and seed, so whoever has a turn's texts, settings
//! and receipt can find out whether its answer is what the model gives. Deciding is pure; [`replay`] asks an engine.

use baton_keys::session::RecordKey;
use baton_proto::{
    chain::HistoryTurn,
    export::OpenTurn,
    ids::ModelId,
    memory::MemoryItem,
    receipt::{EngineKind, Receipt, audit_root, commit_memory},
    record::FinishReason,
    turn::{Sampling, json_schema_hash},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{
    engine::{self, Engine, EngineError, EngineEvent, GenerateJob},
    prompt::{self, MemoryBlock, Prompt},
    turn::{generate::with_calls, tally::Tally, window},
};

/// Tokens that an answer which ended by itself may have had beyond those that were shown: those of a stop string, of
/// which each has at least a byte.
const UNSHOWN_TOKENS: u32 = 512;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The model gives this very answer, token by token.
    Same {
        /// Tokens of the answer.
        tokens: u32,
    },
    /// It gives another.
    Different {
        /// The first token whose text is another, counted from 0; none if only the tokens that spell the text differ.
        token: Option<u32>,
    },
    /// It cannot be said.
    NotReplayable(NotReplayable),
}

/// Why a turn cannot be computed again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplayable {
    /// The turn is not in what was disclosed.
    #[error("turn {0} is not in the export")]
    NoTurn(u64),
    /// What is needed of the turn was not disclosed.
    #[error("the export has no {0} of the turn: a client that began the turn itself exports it")]
    Undisclosed(&'static str),
    /// The turn has no answer.
    #[error("the turn has no answer of a model")]
    NoAnswer,
    /// Another engine than the node's own.
    #[error("the answer came from {0}, of which nobody knows what it computed")]
    Engine(&'static str),
    /// The memory items are missing, or others.
    #[error(
        "the receipt is bound to the memory items used, {wanted} in number, and not to the {given} given: --memory names their file"
    )]
    Memory {
        /// Items that the answer was made with.
        wanted: u16,
        /// Items that were given.
        given: usize,
    },
    /// The schema is missing, or another.
    #[error("the answer follows a JSON schema that was not given, or another was: --schema names its file")]
    Schema,
    /// Another model than the engine's.
    #[error("the answer is of model {wanted}, and this is {here}")]
    Model {
        /// The receipt's.
        wanted: ModelId,
        /// The engine's.
        here: ModelId,
    },
    /// The window of the turn is no longer one that this engine takes.
    #[error("the engine refuses what the node was asked: {0}")]
    Refused(String),
}

/// A turn that can be computed again.
pub struct Task {
    prompt: Prompt,
    sampling: engine::Sampling,
    schema: Option<Zeroizing<String>>,
    receipt: Receipt,
    record_key: RecordKey,
    answer: Zeroizing<String>,
    finish: FinishReason,
}

impl Task {
    /// Puts together what the node was asked in turn `seq`: `turns` as [`baton_proto::export::open`] verified them, and what
    /// no export holds, the memory items and the text of a JSON schema.
    ///
    /// # Errors
    /// [`NotReplayable`], if something is missing or is not what the receipt is bound to.
    pub fn new(
        turns: &[OpenTurn],
        seq: u64,
        memory: &[MemoryItem],
        schema: Option<&str>,
    ) -> Result<Self, NotReplayable> {
        let turn = turns.iter().find(|turn| turn.link.seq == seq).ok_or(NotReplayable::NoTurn(seq))?;
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
            items: used.iter().map(prompt_item).collect(),
            max_tokens: u32::MAX,
        };
        let history = window(turns, turn, receipt);
        let (_, new) = turn.record.messages.split_last().ok_or(NotReplayable::NoAnswer)?;
        let memory = (!used.is_empty()).then_some((&block, used.len()));
        Ok(Self {
            prompt: prompt::whole_window(system, &history, memory, new),
            sampling: settings(sampling, receipt, turn.record.finish),
            schema: schema.map(|schema| Zeroizing::new(schema.to_owned())),
            receipt: Receipt::clone(receipt),
            record_key: turn.record_key.clone(),
            answer: Zeroizing::new(answer.to_owned()),
            finish: turn.record.finish,
        })
    }

    /// The model that answered.
    #[must_use]
    pub const fn model(&self) -> ModelId {
        self.receipt.model
    }

    /// Tokens that the receipt says the prompt had.
    #[must_use]
    pub const fn input_tokens(&self) -> u32 {
        self.receipt.tokens.input
    }
}

fn prompt_item(item: &MemoryItem) -> prompt::MemoryItem {
    prompt::MemoryItem { provenance: item.source.clone(), text: item.text.clone() }
}

/// The items that the receipt is bound to.
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

/// The history that was in the prompt.
fn window(turns: &[OpenTurn], turn: &OpenTurn, receipt: &Receipt) -> Vec<prompt::TurnText> {
    let before: Vec<HistoryTurn> = turns
        .iter()
        .filter(|earlier| earlier.link.seq < turn.link.seq)
        .map(|earlier| HistoryTurn { link: earlier.link.clone(), record: Some(earlier.record.clone()) })
        .collect();
    let mut history = window::texts(&before, turn.record.kind, turn.record.supersedes_from);
    history.retain(|earlier| earlier.seq >= receipt.window_from);
    history
}

fn settings(sampling: &Sampling, receipt: &Receipt, finish: FinishReason) -> engine::Sampling {
    let output = receipt.tokens.output;
    // An answer that was cut off had all the tokens it might have.
    let cut = finish == FinishReason::Length;
    let max_tokens = if cut { output.max(1) } else { output.saturating_add(UNSHOWN_TOKENS) };
    // What is reported of tokens does not change them.
    engine::Sampling { logprobs: 0, ..engine::Sampling::asked(sampling, max_tokens) }
}

/// Computes a turn again, and stops at the first difference.
///
/// # Errors
/// The engine's, where they say nothing of the turn: it is shut down, busy, or broken.
pub async fn replay(engine: &dyn Engine, task: &Task) -> Result<Verdict, EngineError> {
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

async fn compute(engine: &dyn Engine, task: &Task) -> Result<Verdict, EngineError> {
    let constraint = task.schema.as_ref().map(|schema| engine.constrain(schema)).transpose()?;
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let mut handle = engine.generate(GenerateJob {
        prompt: task.prompt.clone(),
        sampling: task.sampling.clone(),
        resume_tokens: Vec::new(),
        constraint,
        cache_key: None,
        cancel: stop,
    })?;
    let mut tally = Tally::new(&task.record_key, task.receipt.auth_hash);
    let mut left = task.answer.as_str();
    while let Some(event) = handle.next().await {
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

fn judge(task: &Task, tally: Tally, left: &str, finish: engine::FinishReason) -> Verdict {
    let finish = match finish {
        engine::FinishReason::Stop => with_calls(FinishReason::Stop, &task.answer, &task.prompt),
        engine::FinishReason::StopString => FinishReason::StopString,
        engine::FinishReason::Length | engine::FinishReason::Cancelled => FinishReason::Length,
    };
    let (tokens, leaves) = tally.finish();
    if !left.is_empty() || finish != task.finish || tokens != task.receipt.tokens.output {
        return Verdict::Different { token: Some(tokens) };
    }
    if audit_root(&leaves) == task.receipt.audit_root {
        Verdict::Same { tokens }
    } else {
        Verdict::Different { token: None }
    }
}
