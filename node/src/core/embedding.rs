//! The state of embeddings: their model, their slots, and the requests that were admitted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use baton_embed::Embedder;
use baton_proto::{
    ErrorCode,
    embed::EmbedAuth,
    ids::{AuthHash, EmbedId, PublicKey},
    limits::MAX_CLOCK_SKEW_MS,
    node_record::ModelOffer,
};

use super::slots::Slots;

/// Requests remembered until they expire: hundreds a second for their longest life.
const MAX_SEEN: usize = 65_536;
/// Requests from which on those that expired are looked for.
const SWEEP_FROM: usize = 1024;
/// The least time between two such searches.
const SWEEP_EVERY_MS: u64 = 1000;

/// A model that texts are embedded with here.
#[derive(Clone)]
pub struct EmbeddingModel {
    /// As the node record offers it.
    pub offer: ModelOffer,
    /// Embeds.
    pub embedder: Arc<dyn Embedder>,
}

impl std::fmt::Debug for EmbeddingModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbeddingModel({})", self.offer.name)
    }
}

/// What the service has for embeddings.
pub(crate) struct Embedding {
    pub(crate) model: EmbeddingModel,
    pub(crate) slots: Arc<Slots>,
    pub(crate) seen: Mutex<Seen>,
}

impl Embedding {
    /// One batch at a time: the model uses all threads for each.
    pub(crate) fn new(model: EmbeddingModel, queue: usize, now_ms: u64) -> Self {
        Self { model, slots: Slots::new(1, queue), seen: Mutex::new(Seen::since(now_ms)) }
    }

    /// Requests that run and that wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        self.slots.load()
    }
}

/// Requests that were admitted, so that none is served twice.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Nothing is known of what was issued before.
    since_ms: u64,
    sweep_at: usize,
    swept_ms: u64,
    /// Until when each is remembered, by its client and id.
    requests: HashMap<(PublicKey, EmbedId), (AuthHash, u64)>,
}

impl Seen {
    fn since(since_ms: u64) -> Self {
        Self { since_ms, sweep_at: SWEEP_FROM, swept_ms: 0, requests: HashMap::new() }
    }

    /// Whether it is new, as far as it can be told.
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

    /// Remembers one whose signature was verified.
    pub(crate) fn note(&mut self, auth: &EmbedAuth, hash: AuthHash, now_ms: u64) -> Result<(), ErrorCode> {
        self.check(auth, &hash)?;
        // A set that stays full is not looked through for each request.
        if self.requests.len() >= self.sweep_at && now_ms.abs_diff(self.swept_ms) >= SWEEP_EVERY_MS {
            self.swept_ms = now_ms;
            self.requests.retain(|_, (_, until_ms)| *until_ms >= now_ms);
            self.sweep_at = (2 * self.requests.len()).clamp(SWEEP_FROM, MAX_SEEN);
        }
        if self.requests.len() >= MAX_SEEN {
            return Err(ErrorCode::Busy);
        }
        // Longer than it is valid by this clock, which may be set back.
        let until_ms = auth.expires_ms.saturating_add(MAX_CLOCK_SKEW_MS);
        self.requests.insert((auth.client_key, auth.request), (hash, until_ms));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_proto::ids::{ExchangeKey, ModelId, NodeId, PayloadHash};

    fn order(request: u128, issued_ms: u64) -> EmbedAuth {
        EmbedAuth {
            version: 1,
            suite: 1,
            client_key: PublicKey([1; 32]),
            request: EmbedId(request.to_le_bytes()),
            audience: NodeId([2; 32]),
            audience_key: ExchangeKey([3; 32]),
            model: ModelId([4; 32]),
            texts_hash: PayloadHash([5; 32]),
            issued_ms,
            expires_ms: issued_ms + 60_000,
        }
    }

    #[test]
    fn a_request_is_served_once_and_forgotten_when_it_cannot_come_again() {
        let mut seen = Seen::since(1000);
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
