//! Summaries of older messages (C13).

use super::Step;
use crate::{
    api::Result,
    events::Event,
    extraction::{self, SummaryMessage},
    ids::{ItemId, OwnerId, SessionId},
    limits::MAX_FACT_BYTES,
    model::{Author, Kind, Role},
    owner::{Owner, Plan},
    service::Memory,
    state::Entry,
};

/// Messages of one summary.
const SUMMARY_MESSAGES: usize = 32;
/// Summary of messages without notable content.
const NOTHING_SAID: &str = "nothing in these messages stands out";
/// Recent messages of a session that are not summarised.
const SUMMARY_KEEPS: usize = 64;

impl Memory {
    /// Summarises older messages of long sessions (C13); the messages stay.
    pub(super) async fn summarise(&self, owner: OwnerId) -> Result<Step> {
        let Some((session, messages)) = self.read(owner, |owner| Ok(owner.unsummarised())).await? else {
            return Ok(Step::Idle);
        };
        let spoken: Vec<SummaryMessage<'_>> = messages
            .iter()
            .map(|(_, role, text, time_ms)| SummaryMessage { role: *role, text, time_ms: *time_ms })
            .collect();
        let writer = self.writer_of(owner).await?;
        let by_model = match writer.as_ref().and_then(|writer| writer.for_messages(&spoken)) {
            Some(writer) => writer.summarise(&spoken, MAX_FACT_BYTES).await.ok(),
            None => None,
        };
        let text = by_model
            .filter(|text| !text.trim().is_empty() && text.len() <= MAX_FACT_BYTES)
            .unwrap_or_else(|| extraction::summarise(&spoken, MAX_FACT_BYTES));
        // Messages without notable content are marked as covered too; otherwise every round would read them
        // again.
        let text = if text.trim().is_empty() { NOTHING_SAID.to_owned() } else { text };
        let sources: Vec<ItemId> = messages.iter().map(|(id, ..)| *id).collect();
        self.write(owner, |owner| Ok((owner.plan_summary(session, &sources, &text).quiet(), ()))).await?;
        Ok(Step::Done)
    }
}

impl Owner {
    /// Older messages of a long session that no summary covers yet.
    #[expect(clippy::type_complexity, reason = "id, role, text and time of messages, for one caller")]
    pub(super) fn unsummarised(&self) -> Option<(SessionId, Vec<(ItemId, Role, String, u64)>)> {
        if !self.is_review_due() {
            return None;
        }
        for (id, session) in &self.state.places.sessions {
            if session.items < (SUMMARY_KEEPS + SUMMARY_MESSAGES) as u64 {
                continue;
            }
            let covered = self
                .state
                .entries_of(*id)
                .filter(|(_, entry)| entry.item.kind == Kind::Summary)
                .flat_map(|(_, entry)| &entry.item.provenance.sources)
                .filter_map(|source| self.state.number(*source))
                .max();
            let messages: Vec<&Entry> = self
                .state
                .entries_of(*id)
                .filter(|(number, entry)| {
                    // Off-the-record and archived messages are in no summary.
                    entry.item.kind == Kind::Episode
                        && !entry.archived
                        && covered.is_none_or(|covered| *number > covered)
                })
                .map(|(_, entry)| entry)
                .collect();
            if messages.len() >= SUMMARY_KEEPS + SUMMARY_MESSAGES {
                let part = messages.into_iter().take(SUMMARY_MESSAGES).map(|entry| {
                    let item = &entry.item;
                    (item.id, item.role, item.text.0.clone(), item.provenance.time_ms)
                });
                return Some((*id, part.collect()));
            }
        }
        None
    }

    fn plan_summary(&self, session: SessionId, sources: &[ItemId], text: &str) -> Plan {
        let there: Vec<&Entry> = sources.iter().filter_map(|id| self.state.entry(*id)).collect();
        // The text may contain a message that was deleted meanwhile.
        if there.len() != sources.len() {
            return Plan::default();
        }
        let Some(target) = self.target_of(session) else { return Plan::default() };
        let time_ms = there.iter().map(|entry| entry.item.provenance.time_ms).max().unwrap_or_default();
        let mut item = self.new_item(target, Kind::Summary, Author::Assistant, text.into(), time_ms);
        item.role = Role::Summary;
        item.provenance.sources = sources.to_vec();
        item.intimate = there.iter().any(|entry| entry.item.intimate);
        item.salience = 0.4;
        Plan::of(vec![Event::added(item)])
    }
}
