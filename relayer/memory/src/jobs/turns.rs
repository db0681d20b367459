//! Extracts facts from each turn, and again from skipped turns together.

use std::collections::HashMap;

use super::Step;
use crate::{
    api::Result,
    events::{Event, Outcome},
    extraction::{self, Candidate, MessagePair, Mode},
    ids::{ItemId, OwnerId, SessionId},
    model::Consent,
    owner::{Owner, Plan},
    retry::MODEL_TRIES,
    service::{Memory, OwnerWriter},
};

/// Turns extracted before the next step, so that an owner's backlog does not delay its own embeddings.
const TURNS_PER_STEP: usize = 32;
/// Skipped turns that the backstop reads together.
const BACKSTOP_TURNS: usize = 8;

/// The facts of an exchange, and the outcome of its extraction.
#[derive(Clone)]
struct ExtractedFacts {
    facts: Vec<(Candidate, Consent)>,
    outcome: Outcome,
}

impl ExtractedFacts {
    fn of(facts: Vec<(Candidate, Consent)>) -> Self {
        let outcome = if facts.is_empty() { Outcome::Skipped } else { Outcome::Written };
        Self { facts, outcome }
    }

    fn refused() -> Self {
        Self { facts: Vec::new(), outcome: Outcome::Refused }
    }
}

/// A turn to extract, with its texts.
pub(super) struct TurnWork {
    number: u64,
    user: String,
    assistant: String,
    at_ms: u64,
    persona: Option<String>,
    failures: u32,
}

impl Memory {
    pub(super) async fn extract_turns(&self, owner: OwnerId) -> Result<Step> {
        let turns = self.read(owner, |owner| Ok(owner.waiting_turns(TURNS_PER_STEP))).await?;
        if turns.is_empty() {
            return Ok(Step::Idle);
        }
        let mut step = Step::Done;
        for turn in turns {
            let pair = MessagePair {
                user: &turn.user,
                assistant: &turn.assistant,
                time_ms: turn.at_ms,
                persona: turn.persona.as_deref(),
            };
            let now_ms = self.now_ms();
            // Read for each turn, so that a changed decision takes effect at once.
            let writer = self.writer_of(owner).await?;
            match self.read_pair(writer.as_ref(), &pair, turn.failures).await {
                Ok(extracted) => {
                    self.write(owner, |owner| {
                        let ExtractedFacts { facts, outcome } = extracted.clone();
                        Ok((owner.plan_extracted(turn.number, facts, outcome, now_ms).quiet(), ()))
                    })
                    .await?;
                }
                Err(error) => {
                    tracing::info!(%error, tries = turn.failures + 1, "a model's extraction failed");
                    let failed = Event::ExtractionFailed { turn: turn.number, at_ms: now_ms };
                    self.write(owner, |_| Ok((Plan::of(vec![failed.clone()]).quiet(), ()))).await?;
                    step = Step::Failed;
                }
            }
        }
        Ok(step)
    }

    /// The facts of an exchange: extraction runs only if the gate passes. The model is used while it has
    /// tries left, otherwise the rules.
    async fn read_pair(
        &self,
        writer: Option<&OwnerWriter>,
        pair: &MessagePair<'_>,
        failures: u32,
    ) -> Result<ExtractedFacts, extraction::ModelError> {
        let rules = extraction::gate(pair);
        let model = writer.and_then(|writer| writer.for_pair(pair));
        let writer = model.filter(|_| failures < MODEL_TRIES);
        if model.is_some() && failures >= MODEL_TRIES {
            tracing::warn!(
                tries = failures,
                "a model's extraction is given up: rules alone decide on the turn"
            );
        }
        if rules.mode == Mode::SafeRedirect {
            return Ok(ExtractedFacts::refused());
        }
        let ruled = extraction::extract(pair);
        let (verdict, candidates) = match writer {
            Some(writer) if extraction::needs_judge(pair) => {
                let judged = writer.judge(pair).await?;
                if !judged.writes() {
                    return Ok(ExtractedFacts::refused());
                }
                let verdict = extraction::combine(rules, judged);
                let found =
                    if verdict.writes() { writer.extract(pair).await?.candidates } else { Vec::new() };
                (verdict, extraction::merge(ruled, found))
            }
            _ => (rules, ruled),
        };
        if !verdict.writes() {
            return Ok(ExtractedFacts::of(Vec::new()));
        }
        let consents = verdict.consents(&candidates);
        Ok(ExtractedFacts::of(candidates.into_iter().zip(consents).collect()))
    }

    /// Reads skipped turns again, together: some facts spread over several messages. Refused and
    /// off-the-record turns are never read again.
    pub(super) async fn backstop(&self, owner: OwnerId) -> Result<Step> {
        let Some((session, turns)) = self.read(owner, |owner| Ok(owner.skipped_turns())).await? else {
            return Ok(Step::Idle);
        };
        let up_to = turns.iter().map(|turn| turn.number).max().unwrap_or_default();
        let together = turns.iter().map(|turn| turn.user.as_str()).collect::<Vec<_>>().join("\n");
        let last = turns.last();
        let pair = MessagePair {
            user: &together,
            assistant: "",
            time_ms: last.map_or(0, |turn| turn.at_ms),
            persona: last.and_then(|turn| turn.persona.as_deref()),
        };
        // A model that fails here is not called again: the turns were read once already.
        let writer = self.writer_of(owner).await?;
        let found = match writer.as_ref().and_then(|writer| writer.for_pair(&pair)) {
            Some(writer) => writer.extract(&pair).await.unwrap_or_default().candidates,
            None => extraction::extract(&pair),
        };
        let consents = extraction::gate(&pair).consents(&found);
        let now_ms = self.now_ms();
        let first = turns.first().map_or(up_to, |turn| turn.number);
        self.write(owner, |owner| {
            let found = found.iter().cloned().zip(consents.iter().copied()).collect();
            Ok((owner.plan_backstop(session, first, up_to, found, now_ms).quiet(), ()))
        })
        .await?;
        Ok(Step::Done)
    }
}

impl Owner {
    fn turn_work(&self, number: u64) -> Option<TurnWork> {
        let turn = self.state.turns.get(&number)?;
        let text =
            |id: ItemId| self.state.entry(id).map(|entry| entry.item.text.0.clone()).unwrap_or_default();
        let persona = self.state.places.session(turn.session)?.persona;
        Some(TurnWork {
            number,
            user: text(turn.user),
            assistant: text(turn.assistant),
            at_ms: turn.at_ms,
            persona: self.state.places.persona_name(persona),
            failures: turn.failures,
        })
    }

    fn waiting_turns(&self, limit: usize) -> Vec<TurnWork> {
        self.state.waiting.iter().take(limit).filter_map(|number| self.turn_work(*number)).collect()
    }

    /// The next skipped turns of one session that the backstop has not read, once there are enough.
    pub(super) fn skipped_turns(&self) -> Option<(SessionId, Vec<TurnWork>)> {
        if !self.is_review_due() {
            return None;
        }
        let mut by_session: HashMap<SessionId, Vec<u64>> = HashMap::new();
        for (number, turn) in &self.state.turns {
            let looked_at = self.state.backstopped.get(&turn.session).is_some_and(|up_to| number <= up_to);
            let readable = self.state.entry(turn.user).is_some_and(|entry| !entry.archived);
            if !looked_at && turn.outcome == Some(Outcome::Skipped) && readable {
                let skipped = by_session.entry(turn.session).or_default();
                skipped.push(*number);
                if skipped.len() >= BACKSTOP_TURNS {
                    let works = skipped.iter().filter_map(|number| self.turn_work(*number)).collect();
                    return Some((turn.session, works));
                }
            }
        }
        None
    }
}
