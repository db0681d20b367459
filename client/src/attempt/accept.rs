//! Holds a sealed turn to the client's own facts. Pure.

use baton_proto::{
    ErrorCode, SignedObject,
    commit::{AcceptedTurn, ChainPosition, ExpectedTurn, accept_turn},
    ids::RunningHash,
    limits::MAX_STOP_BYTES,
    memory::MemoryItem,
    node_record::storage_units,
    receipt::EngineKind,
    record::FinishReason,
    turn::TurnAuth,
    wire::Committed,
};

use crate::session::state::{OrderTerms, PendingTurn, State};

/// A turn as its node sealed it, and the client's own facts about it.
pub(super) struct AuthorTurn<'a> {
    pub(super) turn: &'a PendingTurn,
    pub(super) auth: &'a SignedObject<TurnAuth>,
    pub(super) committed: &'a Committed,
    pub(super) answer: &'a str,
    pub(super) memory: &'a [MemoryItem],
    /// The offer that the client chose, and the storage that it ordered.
    pub(super) terms: OrderTerms,
    pub(super) arrived: ArrivedAnswer<'a>,
}

/// The part of an answer that arrived, to which a client holds the answer that its node sealed.
pub(super) struct ArrivedAnswer<'a> {
    /// Its text: the sealed answer begins with it.
    pub(super) text: &'a str,
    /// Its tokens, with those of a resume prefix.
    pub(super) tokens: u32,
    /// Running hashes of its tokens, from the start on; none if a restart lost them.
    pub(super) hashes: Option<&'a [RunningHash]>,
    /// Whether the reply was lost before its end.
    pub(super) lost: bool,
}

impl AuthorTurn<'_> {
    /// Rebuilds the turn from the session's own data and the node's commitment.
    pub(super) fn accept(&self, state: &State, now_ms: u64) -> Result<AcceptedTurn, ErrorCode> {
        let turn = self.turn;
        let base = state.base();
        let prev_blob = state.next_seq().checked_sub(1).and_then(|last| state.blob_ref(last));
        let expected = ExpectedTurn {
            auth: self.auth,
            position: ChainPosition { base: &base, prev_blob },
            kind: turn.kind,
            supersedes_from: turn.supersedes_from,
            system: &state.system,
            messages: &turn.messages,
            sampling: &turn.sampling,
            memory: self.memory,
        };
        let accepted = accept_turn(&state.root, &expected, self.committed, self.answer, now_ms)?;
        self.arrived.check(&accepted)?;
        self.check_terms(&accepted)?;
        // Only the node can say that it satisfies the schema; the client can check that it is JSON.
        let cut = accepted.record.finish != FinishReason::Stop;
        let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(self.answer).is_ok();
        if turn.sampling.json_schema.is_none() || cut || is_json() {
            Ok(accepted)
        } else {
            Err(ErrorCode::ReceiptMismatch)
        }
    }

    fn check_terms(&self, accepted: &AcceptedTurn) -> Result<(), ErrorCode> {
        let storage = &self.terms.storage;
        let epochs = if accepted.segment.is_closed() { storage.closed_epochs } else { storage.open_epochs };
        let units = storage_units(accepted.blob.len(), epochs);
        let fits = accepted.receipt.fits_terms(&self.terms.offer, units);
        if fits { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

impl ArrivedAnswer<'_> {
    /// Checks text, count and running hash. The count of an unseen part is at most its bytes: a token has one at least.
    fn check(&self, accepted: &AcceptedTurn) -> Result<(), ErrorCode> {
        let (receipt, record) = (&accepted.receipt, &accepted.record);
        let answer = record.answer().unwrap_or_default();
        let unseen = answer.strip_prefix(self.text).ok_or(ErrorCode::BlobMismatch)?;
        // The server behind such a node gives no ids to count.
        if self.tokens == 0 && receipt.engine == EngineKind::Proxied {
            return Ok(());
        }
        // No text shows the tokens of a stop string.
        let hidden = if self.lost && record.finish == FinishReason::StopString { MAX_STOP_BYTES } else { 0 };
        let unseen = if self.hashes.is_some() { unseen } else { answer };
        let more = u32::try_from(unseen.len() + hidden).unwrap_or(u32::MAX);
        let output = receipt.tokens.output;
        let counted = match self.hashes {
            Some(hashes) if output == self.tokens => receipt.matches_tokens(hashes),
            _ => (self.tokens..=self.tokens.saturating_add(more)).contains(&output),
        };
        if counted { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}
