//! Memory of a turn: recall before it, and the record of it afterwards.

use baton_client::{OwnMemory, TurnOutcome};
use baton_memory::{
    api::{Filters, Hit, Recall, RecallRequest, TurnRecord},
    limits::MAX_PAGE,
    model::{MemoryScope, Text},
};
use baton_proto::record::{Message, Role};

use super::{
    super::{ChatError, MemoryReport, session_records::Progress},
    TurnContext,
};
use crate::injection::items_of;

/// Memories for a turn, unless the request says how many.
const DEFAULT_RECALL_ITEMS: usize = 6;
/// Tokens for memories, unless the request says how many; and the most.
const DEFAULT_MEMORY_TOKENS: u32 = 512;
const MAX_MEMORY_TOKENS: u32 = 4096;
/// Text of the session's latest turns that is surely in the window: it is not recalled again.
const WINDOW_BYTES: usize = 8 * 1024;

impl TurnContext<'_> {
    /// Most tokens of memories.
    pub(super) fn memory_tokens(&self) -> u32 {
        self.request.memory_tokens.unwrap_or(DEFAULT_MEMORY_TOKENS).min(MAX_MEMORY_TOKENS)
    }

    /// Recalls memory for the turn, within the envelope's limits.
    pub(super) async fn recall(&self) -> Result<(Vec<Hit>, Option<OwnMemory>, MemoryReport), ChatError> {
        let (request, memory) = (self.request, &self.chat.inner.memory);
        let (scope, budget) = (request.memory_scope.unwrap_or_default(), self.memory_tokens());
        let limit = request.recall_limit.unwrap_or(DEFAULT_RECALL_ITEMS).min(MAX_PAGE);
        if scope == MemoryScope::None || limit == 0 || budget == 0 || self.lost.is_some() {
            let report = MemoryReport::of_none(self.lost.map(str::to_owned));
            return Ok((Vec::new(), None, report));
        }
        if self.first_here
            && let Err(error) = memory.create_session(self.owner, self.place.clone()).await
        {
            // A session of another project than the request's sees nothing; the turn continues.
            tracing::warn!(%error, "a session was not made known to memory");
        }
        let window_from = self.window_from().await?;
        let query = words_of_user(&request.messages.said);
        let session = self.root.session_id().to_string();
        // A short session is whole in its window; an older part of a long one may be relevant.
        let filters = Filters {
            not_session: (window_from == 0).then(|| session.clone()),
            without_intimate: request.without_intimate,
            ..Filters::default()
        };
        let recall = RecallRequest {
            place: self.place.clone(),
            scope,
            query,
            limit,
            budget_tokens: Some(budget),
            filters,
            ..RecallRequest::default()
        };
        let Recall { hits, dropped, mode, degraded, .. } = memory.recall(self.owner, recall).await;
        let in_window = |hit: &Hit| {
            hit.view.session.as_deref() == Some(session.as_str())
                && hit.view.turn.is_some_and(|turn| turn >= window_from)
        };
        let (hits, items) = items_of(hits.into_iter().filter(|hit| !in_window(hit)).collect());
        let signer = self.chat.inner.key.clone();
        let memory = (!items.is_empty()).then(|| OwnMemory { signer, items });
        let report = MemoryReport { mode, degraded, dropped: dropped.len(), recorded: None };
        Ok((hits, memory, report))
    }

    /// The first turn that is surely in the session's own window.
    async fn window_from(&self) -> Result<u64, ChatError> {
        let mut left = WINDOW_BYTES;
        let mut from = self.session.info().await?.turns;
        for view in self.session.history().await?.iter().rev() {
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

    /// Records turns that were accepted when their request, or memory, died.
    pub(super) async fn record_missing(
        &self,
        progress: &mut Progress,
        journaled: u64,
    ) -> Result<(), ChatError> {
        if progress.recorded >= journaled {
            return Ok(());
        }
        for view in self.session.history().await? {
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
        let record = TurnRecord {
            place: self.place.clone(),
            turn,
            user: words_of_user(messages),
            assistant: Text(answer.to_owned()),
            time_ms,
        };
        if self.lost.is_some() {
            return false;
        }
        let recorded = self.chat.inner.memory.record_turn(self.owner, record).await;
        recorded.inspect_err(|error| tracing::warn!(%error, "a turn was not recorded yet")).is_ok()
    }
}

fn words_of_user(messages: &[Message]) -> Text {
    let said = messages.iter().filter(|message| message.role == Role::User);
    Text(said.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n"))
}
