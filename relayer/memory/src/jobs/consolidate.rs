//! Consolidation of the graph (E8): changes that no single write can decide.
//!
//! - Duplicate entities are merged.
//! - Facts with the same meaning are merged or linked.
//! - Edges with the same meaning are merged, with more confidence.
//! - Edges whose words were deleted are removed.
//!
//! Orphaned entities need no pass: an entity is deleted with the last fact that names it.
//!
//! Nothing is merged across scope, author or trust. A pass reads a bounded part, makes a bounded number of
//! changes, and logs them. Passes repeat until one finds no work, which is recorded; the next one follows
//! once the log has grown. The pure part, [`GraphPass`], decides; the rest reads vectors and commits.

mod pass;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use pass::GraphPass;

use super::Step;
use crate::{
    api::Result,
    events::Event,
    ids::OwnerId,
    owner::{CommitOutcome, Owner, busy},
    service::Memory,
};

/// Events after which a graph is consolidated again.
const CONSOLIDATE_EVERY: u64 = 256;
/// Facts that one pass compares with others.
const FACTS_PER_PASS: usize = 256;
/// Most passes of one call: each makes about a hundred changes.
const PASSES_AT_ONCE: usize = 1_000;

/// The changes of a consolidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsolidationReport {
    /// Entities that were merged into another one.
    pub entities_merged: u64,
    /// Facts that were merged into another one with the same meaning.
    pub facts_merged: u64,
    /// Pairs of similar facts that were linked.
    pub facts_linked: u64,
    /// Edges that were merged into another one.
    pub edges_merged: u64,
    /// Edges whose confidence was raised.
    pub edges_raised: u64,
    /// Edges whose evidence was deleted.
    pub edges_ended: u64,
}

impl ConsolidationReport {
    /// All changes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.entities_merged
            + self.facts_merged
            + self.facts_linked
            + self.edges_merged
            + self.edges_raised
            + self.edges_ended
    }

    fn add(&mut self, other: Self) {
        self.entities_merged += other.entities_merged;
        self.facts_merged += other.facts_merged;
        self.facts_linked += other.facts_linked;
        self.edges_merged += other.edges_merged;
        self.edges_raised += other.edges_raised;
        self.edges_ended += other.edges_ended;
    }
}

impl Memory {
    /// Consolidates an owner's graph until no work is left. Memory does this by itself as the log grows.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`](crate::api::MemoryError::Unavailable),
    /// [`MemoryError::Damaged`](crate::api::MemoryError::Damaged).
    pub async fn consolidate(&self, owner: OwnerId) -> Result<ConsolidationReport> {
        let mut all = ConsolidationReport::default();
        for _ in 0..PASSES_AT_ONCE {
            let (done, more) = self.consolidate_once(owner).await?;
            all.add(done);
            if !more {
                break;
            }
        }
        Ok(all)
    }

    /// One pass, if it is due.
    pub(super) async fn consolidate_if_due(&self, owner: OwnerId) -> Result<Step> {
        if !self.read(owner, |owner| Ok(owner.is_consolidation_due())).await? {
            return Ok(Step::Idle);
        }
        self.consolidate_once(owner).await?;
        Ok(Step::Done)
    }

    /// One pass: its changes, and whether another pass may find more.
    async fn consolidate_once(&self, owner: OwnerId) -> Result<(ConsolidationReport, bool)> {
        let now_ms = self.now_ms();
        let (done, more) = self.hold(owner, async |owner| owner.consolidate(now_ms).await).await?;
        self.inner.counters.consolidated.fetch_add(done.total(), Ordering::Relaxed);
        Ok((done, more))
    }
}

impl Owner {
    pub(super) fn is_consolidation_due(&self) -> bool {
        self.state.next >= self.state.consolidated + CONSOLIDATE_EVERY
    }

    /// One pass: its changes, and whether another pass may find more.
    async fn consolidate(&mut self, now_ms: u64) -> Result<(ConsolidationReport, bool)> {
        for _ in 0..crate::owner::COMMIT_TRIES {
            let facts = pass::new_facts(&self.state, FACTS_PER_PASS);
            let pairs = pass::pairs(&self.state, &facts);
            let numbers: BTreeSet<u64> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
            let features =
                if numbers.is_empty() { BTreeMap::new() } else { self.kept_features(&numbers).await? };
            let looked_to = facts.last().filter(|_| facts.len() == FACTS_PER_PASS).map(|last| last + 1);
            let mut pass = GraphPass::new(self, now_ms);
            pass.compare_facts(&pairs, &features);
            // Steps over the whole graph wait for the pass that reaches the end of the log.
            if looked_to.is_none() {
                pass.merge_entities();
                pass.merge_edges();
                pass.end_edges_without_evidence();
            }
            let (mut plan, done) = pass.finish();
            let settled =
                plan.events.is_empty() && self.state.consolidated < looked_to.unwrap_or(self.state.next);
            if settled {
                // The number of this event counts as checked too.
                let up_to = looked_to.unwrap_or(self.state.next + 1);
                plan.events.push(Event::Consolidated { up_to, at_ms: now_ms });
            }
            let more = !plan.events.is_empty();
            match self.commit(plan.quiet()).await? {
                CommitOutcome::Done => return Ok((done, more)),
                CommitOutcome::Conflict => {}
            }
        }
        Err(busy())
    }
}

#[cfg(test)]
mod tests;
