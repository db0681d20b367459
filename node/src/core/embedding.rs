//! State of embeddings: the model, its slots, and the admitted requests.

use std::{collections::HashMap, sync::Arc};

use baton_limits::{SlotLimits, Slots};
use baton_models::embed::Embedder;
use baton_proto::{
    ErrorCode,
    embed::EmbedAuth,
    ids::{AuthHash, EmbedId, PublicKey},
    limits::MAX_CLOCK_SKEW_MS,
    node_record::ModelOffer,
};
use parking_lot::Mutex;

/// Maximum remembered requests: hundreds a second for their longest lifetime.
const MAX_SEEN: usize = 65_536;
/// Number of requests above which expired ones are swept.
const SWEEP_FROM: usize = 1024;
/// Minimum time between two sweeps.
const SWEEP_EVERY_MS: u64 = 1000;

/// An embedding model.
#[derive(Clone)]
pub struct EmbeddingModel {
    /// Its offer in the node record.
    pub offer: ModelOffer,
    /// Computes embeddings.
    pub embedder: Arc<dyn Embedder>,
}

impl std::fmt::Debug for EmbeddingModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbeddingModel({})", self.offer.name)
    }
}

/// The service's state for embeddings.
pub(crate) struct Embedding {
    pub(crate) model: EmbeddingModel,
    pub(crate) slots: Slots,
    pub(crate) seen: Mutex<SeenRequests>,
}

impl Embedding {
    /// The model takes one batch at a time, because it uses all threads for each.
    pub(crate) fn new(model: EmbeddingModel, slots: SlotLimits, now_ms: u64) -> Self {
        Self { model, slots: Slots::new(slots), seen: Mutex::new(SeenRequests::since(now_ms)) }
    }

    /// Running and waiting requests.
    pub(crate) fn load(&self) -> (usize, usize) {
        self.slots.load()
    }
}

/// Admitted requests, so that none is served twice.
#[derive(Debug)]
pub(crate) struct SeenRequests {
    /// Requests issued before this time are unknown.
    since_ms: u64,
    swept_ms: u64,
    /// Authorisation and end of remembrance, by client and request ID.
    requests: HashMap<(PublicKey, EmbedId), (AuthHash, u64)>,
}

impl SeenRequests {
    fn since(since_ms: u64) -> Self {
        Self { since_ms, swept_ms: 0, requests: HashMap::new() }
    }

    /// Checks that a request is new, as far as this set can tell.
    pub(crate) fn check(&self, auth: &EmbedAuth, hash: &AuthHash) -> Result<(), ErrorCode> {
        if auth.issued_ms < self.since_ms {
            return Err(ErrorCode::Replayed);
        }
        match self.requests.get(&(auth.client_key, auth.request)) {
            None => Ok(()),
            Some((known, _)) if known == hash => Err(ErrorCode::Replayed),
            Some(_) => Err(ErrorCode::IdempotencyConflict),
        }
    }

    /// Remembers a request whose signature was verified.
    pub(crate) fn note(&mut self, auth: &EmbedAuth, hash: AuthHash, now_ms: u64) -> Result<(), ErrorCode> {
        self.check(auth, &hash)?;
        // A set that stays full must not be swept for each request.
        if self.requests.len() >= SWEEP_FROM && now_ms.abs_diff(self.swept_ms) >= SWEEP_EVERY_MS {
            self.swept_ms = now_ms;
            self.requests.retain(|_, (_, until_ms)| *until_ms >= now_ms);
        }
        if self.requests.len() >= MAX_SEEN {
            return Err(ErrorCode::Busy);
        }
        // Remembers it beyond its expiry, because this clock may be set back.
        let until_ms = auth.expires_ms.saturating_add(MAX_CLOCK_SKEW_MS);
        self.requests.insert((auth.client_key, auth.request), (hash, until_ms));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_proto::ids::{ExchangeKeyId, ModelId, NodeId, PayloadHash};

    fn order(request: u128, issued_ms: u64) -> EmbedAuth {
        EmbedAuth {
            version: 1,
            suite: 2,
            client_key: PublicKey([1; 32]),
            request: EmbedId(request.to_le_bytes()),
            audience: NodeId([2; 32]),
            audience_key: ExchangeKeyId([3; 32]),
            model: ModelId([4; 32]),
            texts_hash: PayloadHash([5; 32]),
            issued_ms,
            expires_ms: issued_ms + 60_000,
        }
    }

    #[test]
    fn a_request_is_served_once_and_forgotten_when_it_cannot_come_again() {
        let mut seen = SeenRequests::since(1000);
        let hash = AuthHash([1; 32]);
        assert_eq!(seen.check(&order(1, 999), &hash), Err(ErrorCode::Replayed), "before it remembers");
        seen.note(&order(1, 1000), hash, 1000).unwrap();
        assert_eq!(seen.note(&order(1, 1000), hash, 1001), Err(ErrorCode::Replayed));
        assert_eq!(seen.note(&order(1, 1000), AuthHash([2; 32]), 1001), Err(ErrorCode::IdempotencyConflict));
        for request in 2..=MAX_SEEN as u128 {
            seen.note(&order(request, 2000), hash, 2000).unwrap();
        }
        assert_eq!(seen.note(&order(0, 2000), hash, 2000), Err(ErrorCode::Busy), "bounded");
        let later = 2000 + 60_000 + MAX_CLOCK_SKEW_MS + 1;
        seen.note(&order(0, later), hash, later).unwrap();
        assert_eq!(seen.requests.len(), 1);
    }
}
