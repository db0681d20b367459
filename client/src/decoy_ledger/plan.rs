//! The plan of a decoy: messages and settings in the shape of the owner's turns. Pure.

use std::time::Duration;

use baton_proto::{
    ids::ModelId,
    limits::SEGMENT_TURNS,
    record::{Message, Role},
    turn::Sampling,
};

use super::{TurnShape, draws::Draws, prompts};

/// Most turns of a decoy: those of a segment, within which a contradiction can be proved. Longer sessions of the
/// owner are imitated by their beginnings.
pub(crate) const MAX_DECOY_TURNS: usize = SEGMENT_TURNS;
/// Longest message of a decoy, in bytes.
const MAX_DECOY_MESSAGE_BYTES: u32 = 4096;
/// Shortest pause between two turns: reading an answer takes a moment.
const MIN_PAUSE: Duration = Duration::from_secs(2);

/// One planned turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedTurn {
    /// The message.
    pub(crate) text: String,
    /// The pause before it.
    pub(crate) pause: Duration,
}

/// A decoy, the same for each node that it is sent to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecoyPlan {
    /// The model.
    pub(crate) model: ModelId,
    /// The pinned system text; empty if the imitated turn had none.
    pub(crate) system: Vec<Message>,
    /// The turns.
    pub(crate) turns: Vec<PlannedTurn>,
    /// The sampling settings of all turns.
    pub(crate) sampling: Sampling,
    /// Most requested tokens of each answer.
    pub(crate) max_output_tokens: u32,
}

impl DecoyPlan {
    /// Plans a decoy in the shape of these turns; none without any.
    pub(super) fn imitate(shapes: &[TurnShape], max_pause: Duration, draws: &mut Draws) -> Option<Self> {
        let firsts: Vec<&TurnShape> = shapes.iter().filter(|shape| shape.seq == 0).collect();
        let laters: Vec<&TurnShape> = shapes.iter().filter(|shape| shape.seq > 0).collect();
        let all: Vec<&TurnShape> = shapes.iter().collect();
        let either = |some: &[&TurnShape], draws: &mut Draws| -> Option<TurnShape> {
            draws.one_of(some).or_else(|| draws.one_of(&all)).copied()
        };
        let first = either(&firsts, draws)?;
        let mut texts = prompts::PromptSequence::begin(draws);
        let mut turns = Vec::new();
        for position in 0..turns_like(shapes, draws) {
            let shape = if position == 0 { first } else { either(&laters, draws)? };
            let bytes = shape.bytes.min(MAX_DECOY_MESSAGE_BYTES) as usize;
            let pause = match position {
                0 => Duration::ZERO,
                _ => Duration::from_millis(shape.pause_ms).max(MIN_PAUSE).min(max_pause),
            };
            turns.push(PlannedTurn { text: texts.message(bytes, draws), pause });
        }
        let system = match first.system_bytes.min(MAX_DECOY_MESSAGE_BYTES) as usize {
            0 => Vec::new(),
            bytes => vec![Message::new(Role::System, prompts::system_text(bytes, draws))],
        };
        Some(Self {
            model: first.model,
            system,
            turns,
            sampling: Sampling {
                temperature: first.temperature,
                top_p: first.top_p,
                top_k: first.top_k,
                min_p: 0.0,
                repetition_penalty: first.repetition_penalty,
                seed: if first.seeded { draws.next() } else { 0 },
                stop: Vec::new(),
                json_schema: None,
                logprobs: first.logprobs,
                presence_penalty: first.presence_penalty,
                frequency_penalty: first.frequency_penalty,
                token_biases: Vec::new(),
            },
            max_output_tokens: first.max_output_tokens,
        })
    }
}

/// A number of turns, distributed as in the owner's sessions: after each turn, the decoy goes on as often as
/// they did.
fn turns_like(shapes: &[TurnShape], draws: &mut Draws) -> usize {
    let at = |seq: usize| shapes.iter().filter(|shape| shape.seq == seq as u64).count();
    let mut turns = 1;
    while turns < MAX_DECOY_TURNS {
        // Sessions that began before the oldest shape count too, so there may be more later turns.
        let (reached, before) = (at(turns), at(turns - 1));
        if reached == 0 || !draws.happens(reached, before.max(reached)) {
            break;
        }
        turns += 1;
    }
    turns
}
