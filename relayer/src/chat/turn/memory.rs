//! Memory of a turn: recall before it, and the record of it afterwards.

use std::time::{Duration, Instant};

use baton_client::{OwnMemory, TurnOutcome};
use baton_memory::{
    api::{Filters, Hit, Recall, RecallMode, RecallRequest, TurnRecord},
    model::{MemoryScope, Text},
};
use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
};

use super::{
    super::{ChatError, MemoryReport, RecalledFact, session_records::Progress},
    TurnContext,
};
use crate::injection::items_of;

/// Text of the session's latest turns that is surely in the window: it is not recalled again.
const WINDOW_BYTES: usize = 8 * 1024;

impl TurnContext<'_> {
    /// Recalls memory for the turn, within the envelope's limits.
    pub(super) async fn recall(
        &self,
        id: SessionId,
    ) -> Result<(Vec<Hit>, MemoryReport, Duration), ChatError> {
        let asked = Instant::now();
        let request = self.request;
        let disabled =
            request.scope == MemoryScope::None || request.recall_items == 0 || request.memory_tokens == 0;
        if disabled || self.lost.is_some() {
            let degraded = self.lost.map(str::to_owned);
            let report =
                MemoryReport { mode: RecallMode::None, degraded, dropped: Vec::new(), recorded: None };
            return Ok((Vec::new(), report, asked.elapsed()));
        }
        if self.first_here
            && let Err(error) = self.memory.begin_session(self.owner, self.place.clone()).await
        {
            // A session of another project than the request's sees nothing; the turn continues.
            tracing::warn!(%error, "a session was not made known to memory");
        }
        let window_from = self.window_from(id).await?;
        let said = request.messages.iter().filter(|message| message.role == Role::User);
        let query = said.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let session = id.to_string();
        // A short session is whole in its window; an older part of a long one may be relevant.
        let filters = Filters {
            not_session: (window_from == 0).then(|| session.clone()),
            without_intimate: request.without_intimate,
            ..Filters::default()
        };
        let Recall { hits, dropped, mode, degraded, .. } = self
            .memory
            .recall(
                self.owner,
                RecallRequest {
                    place: self.place.clone(),
                    scope: request.scope,
                    query: Text(query),
                    limit: request.recall_items,
                    threshold: None,
                    budget_tokens: Some(request.memory_tokens),
                    filters,
                    weights: None,
                },
            )
            .await;
        let in_window = |hit: &Hit| {
            hit.view.session.as_deref() == Some(session.as_str())
                && hit.view.turn.is_some_and(|turn| turn >= window_from)
        };
        let (hits, _) = items_of(hits.into_iter().filter(|hit| !in_window(hit)).collect());
        Ok((hits, MemoryReport { mode, degraded, dropped, recorded: None }, asked.elapsed()))
    }

    /// The first turn that is surely in the session's own window.
    async fn window_from(&self, id: SessionId) -> Result<u64, ChatError> {
        let mut left = WINDOW_BYTES;
        let mut from = self.client.session(id).info().await?.turns;
        for view in self.client.session(id).history().await?.iter().rev() {
            let messages = view.turn.record.iter().flat_map(|record| &record.messages);
            let bytes: usize = messages.map(|message| message.text.len()).sum();
            if bytes > left {
                break;
            }
            left -= bytes;
            from = view.turn.link.seq;
        }
        Ok(from)
    }

    pub(super) fn memory_of(&self, hits: &[Hit]) -> Option<OwnMemory> {
        let (_, items) = items_of(hits.to_vec());
        (!items.is_empty()).then(|| OwnMemory { signer: self.chat.inner.key.clone(), items })
    }

    /// Records turns that were accepted when their request, or memory, died.
    pub(super) async fn record_missing(
        &self,
        id: SessionId,
        progress: &mut Progress,
        journaled: u64,
    ) -> Result<(), ChatError> {
        if progress.recorded >= journaled {
            return Ok(());
        }
        for view in self.client.session(id).history().await? {
            let (seq, Some(record)) = (view.turn.link.seq, &view.turn.record) else { continue };
            if seq < progress.recorded || seq >= journaled {
                continue;
            }
            let answer = record.answer().unwrap_or_default();
            if !self.record_texts(seq, &record.messages, answer, view.turn.link.time_ms).await {
                // Memory is still unavailable; the next request tries again.
                return Ok(());
            }
            progress.recorded = seq + 1;
        }
        Ok(())
    }

    /// Records a turn; returns whether it succeeded.
    pub(super) async fn record(
        &self,
        outcome: &TurnOutcome,
        progress: &mut Progress,
        messages: &[Message],
    ) -> bool {
        let time_ms = (self.chat.inner.now_ms)();
        let recorded = self.record_texts(outcome.seq, messages, &outcome.text, time_ms).await;
        // Only in order: the next request first records any missing turns before it.
        if recorded && progress.recorded == outcome.seq {
            progress.recorded = outcome.seq + 1;
        }
        recorded
    }

    async fn record_texts(&self, turn: u64, messages: &[Message], answer: &str, time_ms: u64) -> bool {
        let said = messages.iter().filter(|message| message.role == Role::User);
        let user = said.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let record = TurnRecord {
            place: self.place.clone(),
            turn,
            user: Text(user),
            assistant: Text(answer.to_owned()),
            time_ms,
        };
        let recorded = self.memory.record_turn(self.owner, record).await;
        recorded.inspect_err(|error| tracing::warn!(%error, "a turn was not recorded yet")).is_ok()
    }
}

pub(super) fn facts_of(hits: &[Hit]) -> Vec<RecalledFact> {
    hits.iter().map(|hit| RecalledFact { hit: hit.clone(), used: None }).collect()
}
