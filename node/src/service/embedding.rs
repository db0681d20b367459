//! A request for embeddings, from its frame to its answer. It has its own slots, shared out by the same rules as those of
//! turns: a batch takes a moment, and must not wait behind an answer that takes minutes. It must never write a text or a vector
//! anywhere but into the sealed reply.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use baton_embed::{EmbedRole, Embedder};
use baton_keys::{
    exchange::{EmbedSecret, ExchangeSecret},
    secret::random_bytes,
};
use baton_mesh::{FrameError, TurnStream};
use baton_proto::{
    ErrorCode, Signable as _, Signed, codec,
    embed::{
        EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, SealedReply, SealedTexts,
        embed_auth_hash,
    },
    ids::{AuthHash, EmbedId, PublicKey},
    limits::{MAX_CLOCK_SKEW_MS, MAX_EMBED_FRAME_BYTES, MAX_EMBED_SEALED_BYTES, MAX_EMBED_TEXTS, VERSION},
    node_record::ModelOffer,
};
use tokio::time::{Instant, timeout};
use zeroize::Zeroize as _;

use super::{
    Core, RequestKind, connection,
    guard::Caller,
    limits::DRAIN_RETRY_MS,
    lock,
    slots::{Displaced, Place, Slots},
};
use crate::turn::{
    Refusal,
    charge::{self, Charge},
};

/// Requests remembered until they expire: hundreds a second for their longest life.
const MAX_SEEN: usize = 65_536;
/// Requests from which on those that expired are looked for.
const SWEEP_FROM: usize = 1024;
/// The least time between two such searches.
const SWEEP_EVERY_MS: u64 = 1000;
/// Tokens of texts that count as one token of an answer: reading is cheaper than writing.
const TOKENS_PER_CHARGED: usize = 16;

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
    model: EmbeddingModel,
    slots: Arc<Slots>,
    seen: Mutex<Seen>,
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
struct Seen {
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
    fn check(&self, auth: &EmbedAuth, hash: &AuthHash) -> Result<(), ErrorCode> {
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
    fn note(&mut self, auth: &EmbedAuth, hash: AuthHash, now_ms: u64) -> Result<(), ErrorCode> {
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

/// A request that may run. Dropping it gives up its place.
struct Admitted<'a> {
    embedding: &'a Embedding,
    auth: Signed<EmbedAuth>,
    /// Not opened yet.
    texts: SealedTexts,
    exchange: ExchangeSecret,
    charge: Charge,
    place: Place,
}

/// Serves one request on its substream.
pub(crate) async fn serve(core: &Arc<Core>, mut stream: TurnStream, who: Caller) -> Result<(), FrameError> {
    let frame = connection::next_frame::<EmbedFrame>(core, &mut stream, &who, MAX_EMBED_FRAME_BYTES).await?;
    let admitted = frame.and_then(|EmbedFrame::Request(request)| {
        core.observer.requested(RequestKind::Embed);
        admit(core, who, request)
    });
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return connection::refuse(core, stream, who, refusal).await,
    };
    let (mut sender, mut receiver) = stream.split();
    let answered = tokio::select! {
        biased;
        answered = answer(core, admitted) => answered,
        () = core.ending.cancelled() => Err(ErrorCode::Busy),
        error = connection::left(&mut receiver) => return Err(error),
    };
    let answer = answered.unwrap_or_else(|code| {
        core.observer.refused(code);
        core.note_refusal(&who, code);
        tracing::debug!(code = code.name(), "a request for embeddings was refused");
        let Refusal { code, retry_after_ms } = code.into();
        EmbedAnswer::Refused { code, retry_after_ms }
    });
    sender.send_by(&codec::encode(&answer), Instant::now() + core.limits.reader_stall).await?;
    sender.close().await
}

/// Checks a request, cheapest first. Nothing is opened, and nothing computed but hashes and signatures.
fn admit(core: &Arc<Core>, who: Caller, request: EmbedRequest) -> Result<Admitted<'_>, Refusal> {
    let now_ms = core.now_ms();
    let EmbedRequest { auth, texts, quota } = request;
    if texts.0.len() > MAX_EMBED_SEALED_BYTES {
        return Err(ErrorCode::FrameTooLarge.into());
    }
    let granted = quota.as_ref().is_some_and(|used| lock(&core.quotas).knows(used));
    core.take_turn(&who, granted, now_ms)?;
    let claimed = Signed::<EmbedAuth>::peek(&auth)?;
    if claimed.audience != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    claimed.check_time(now_ms)?;
    let embedding = core.embedding.as_ref().ok_or(ErrorCode::ModelUnavailable)?;
    let hash = embed_auth_hash(&auth);
    if texts.hash() != claimed.texts_hash {
        return Err(ErrorCode::PayloadRejected.into());
    }
    lock(&embedding.seen).check(&claimed, &hash)?;
    let exchange =
        core.identity.exchange_secret(&claimed.audience_key, now_ms).ok_or(ErrorCode::KxExpired)?;
    let offer = &embedding.model.offer;
    if claimed.model != offer.model {
        return Err(ErrorCode::ModelUnavailable.into());
    }
    if core.draining.is_cancelled() {
        return Err(ErrorCode::Busy.into());
    }
    if core.is_held() {
        return Err(Refusal { code: ErrorCode::Busy, retry_after_ms: DRAIN_RETRY_MS });
    }
    let chain = charge::check_quota(core, quota.as_ref(), claimed.model, &hash)?;
    let guest = charge::guest(core, &who, chain.as_ref());
    if !embedding.slots.has_room(&guest) {
        return Err(ErrorCode::Busy.into());
    }
    let auth = Signed::<EmbedAuth>::verify(auth)?;
    lock(&embedding.seen).note(&auth, hash, now_ms)?;
    // No token is of less than a byte, but for two that mark the ends of a text.
    let longest = MAX_EMBED_TEXTS * offer.context_tokens as usize;
    let charge = Charge::take(core, who, charged(texts.0.len().min(longest)), chain.as_ref())?;
    let place = embedding.slots.enter(guest).map_err(|_| ErrorCode::Busy)?;
    Ok(Admitted { embedding, auth, texts, exchange, charge, place })
}

/// What some tokens of texts are counted as.
fn charged(tokens: usize) -> u32 {
    u32::try_from(tokens.div_ceil(TOKENS_PER_CHARGED)).unwrap_or(u32::MAX)
}

/// Waits for the slot, opens the texts and embeds them. Cancel safe in that a dropped call stops the work soon.
async fn answer(core: &Core, admitted: Admitted<'_>) -> Result<EmbedAnswer, ErrorCode> {
    let Admitted { embedding, auth, texts, exchange, charge, place } = admitted;
    let waited = timeout(core.limits.embed_wait, place.granted()).await;
    waited.unwrap_or(Err(Displaced)).map_err(|Displaced| ErrorCode::Busy)?;
    let began = Instant::now();
    let (texts, secret) = texts.open(&exchange, &auth)?;
    let borrowed: Vec<&str> = texts.texts.iter().map(String::as_str).collect();
    let work = embedding.model.embedder.embed_counted(EmbedRole::Document, &borrowed);
    let embedded = timeout(core.limits.max_embed_time, work).await.map_err(|_| ErrorCode::QuotaExceeded)?;
    let embedded = embedded.map_err(|error| {
        tracing::warn!(%error, "an embedder failed");
        ErrorCode::Internal
    })?;
    let tokens: Vec<u32> =
        embedded.iter().map(|text| u32::try_from(text.tokens).unwrap_or(u32::MAX)).collect();
    let dimensions = embedding.model.embedder.dimensions();
    // At once, so that no shorter buffer is left behind unwiped.
    let mut components = Vec::with_capacity(embedded.iter().map(|text| text.vector.len()).sum());
    for mut text in embedded {
        components.extend_from_slice(&text.vector);
        text.vector.zeroize();
    }
    let reply = EmbedReply {
        version: VERSION,
        node: core.node,
        auth_hash: auth.auth_hash(),
        model: auth.model,
        dimensions: u32::try_from(dimensions).unwrap_or(u32::MAX),
        tokens,
        components,
    };
    let total: usize = reply.tokens.iter().map(|tokens| *tokens as usize).sum();
    let answer = seal(core, &reply, texts.texts.len(), &secret)?;
    charge.served(charged(total));
    core.observer.embedded(reply.tokens.len(), total, began.elapsed());
    Ok(answer)
}

fn seal(
    core: &Core,
    reply: &EmbedReply,
    texts: usize,
    secret: &EmbedSecret,
) -> Result<EmbedAnswer, ErrorCode> {
    if reply.tokens.len() != texts || reply.check().is_err() {
        tracing::error!("the embedder made something else than vectors");
        return Err(ErrorCode::Internal);
    }
    let nonce = random_bytes();
    let sealed = SealedReply::seal(reply, core.identity.signing_key(), secret, &nonce);
    Ok(EmbedAnswer::Embedded { nonce, sealed })
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

    #[test]
    fn reading_counts_for_less_than_writing() {
        assert_eq!([0, 1, 16, 17].map(charged), [0, 1, 1, 2]);
    }
}
