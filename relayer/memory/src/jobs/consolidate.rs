//! Consolidation of the graph (E8): edges with the same ends and meaning become one edge, with more confidence. No single
//! write can decide that.
//!
//! A pass makes a bounded number of changes. Passes repeat until one finds no work, which is recorded; the next one follows
//! once the log has grown.

use std::collections::{BTreeMap, HashMap};

use super::Step;
use crate::{
    api::Result,
    events::Event,
    ids::OwnerId,
    model::{Edge, Kind},
    owner::{Owner, Plan},
    service::Memory,
};

/// Events after which a graph is consolidated again.
const CONSOLIDATE_EVERY: u64 = 256;
/// Ended edges of one pass.
const CHANGES_PER_PASS: usize = 128;
/// Most confidence that repetition gives: repetition does not prove a fact.
const MAX_CONFIDENCE: f32 = 0.95;

impl Memory {
    /// One pass, if it is due.
    pub(super) async fn consolidate_if_due(&self, owner: OwnerId) -> Result<Step> {
        if !self.read(owner, |owner| Ok(owner.is_consolidation_due())).await? {
            return Ok(Step::Idle);
        }
        let now_ms = self.now_ms();
        self.write(owner, |owner| Ok((owner.plan_consolidation(now_ms), ()))).await?;
        Ok(Step::Done)
    }
}

impl Owner {
    pub(super) fn is_consolidation_due(&self) -> bool {
        self.state.next >= self.state.consolidated + CONSOLIDATE_EVERY
    }

    fn plan_consolidation(&self, now_ms: u64) -> Plan {
        let mut same: BTreeMap<_, Vec<(u64, &Edge)>> = BTreeMap::new();
        for (number, edge) in &self.state.edges {
            same.entry((edge.from, edge.to, &edge.label)).or_default().push((*number, edge));
        }
        let (mut events, mut ended) = (Vec::new(), Vec::new());
        for edges in same.values() {
            if ended.len() >= CHANGES_PER_PASS {
                break;
            }
            let [(first, kept), others @ ..] = edges.as_slice() else { continue };
            let confidence = self.confidence(edges);
            if confidence > kept.confidence + f32::EPSILON {
                let best = others
                    .iter()
                    .map(|(_, edge)| *edge)
                    .fold(*kept, |best, edge| if edge.confidence > best.confidence { edge } else { best });
                events.push(Event::EdgeAdded(Edge { confidence, ..best.clone() }));
                ended.push(*first);
            }
            ended.extend(others.iter().map(|(number, _)| *number));
        }
        events.push(match ended.is_empty() {
            // The number of this event counts as checked too.
            true => Event::Consolidated { up_to: self.state.next + 1, at_ms: now_ms },
            false => Event::EdgesEnded { edges: ended },
        });
        Plan::of(events).quiet()
    }

    /// The confidence of edges with the same meaning. Each separate evidence makes it less likely that all are wrong, and so
    /// does each repetition of their fact. It never falls.
    fn confidence(&self, edges: &[(u64, &Edge)]) -> f32 {
        let (mut evidence, mut highest, mut repeats) = (HashMap::<&str, f32>::new(), 0.0_f32, 0);
        for (_, edge) in edges {
            let best = evidence.entry(&edge.evidence).or_default();
            *best = best.max(edge.confidence);
            highest = highest.max(edge.confidence);
            let ends = [edge.from, edge.to].into_iter().filter_map(|id| self.state.entry(id));
            let facts = ends.filter(|entry| entry.item.kind == Kind::Fact && entry.is_live());
            repeats = facts.map(|entry| entry.repeats).fold(repeats, u64::max);
        }
        let doubts = evidence.values().map(|confidence| 1.0 - confidence.clamp(0.0, 1.0));
        let together = 1.0 - doubts.product::<f32>();
        let repeats = i32::try_from(repeats).unwrap_or(30).min(30);
        let said = if repeats == 0 { 0.0 } else { 1.0 - 0.5_f32.powi(repeats + 1) };
        highest.max(together.max(said).min(MAX_CONFIDENCE))
    }
}

#[cfg(test)]
mod tests;
