//! An embedding request, from its frame to its answer. Embeddings have separate slots with the same rules: a
//! batch takes a moment, and must not wait behind an answer of minutes. Texts and vectors may leave only in
//! the sealed reply.

use std::sync::Arc;

use baton_keys::{
    exchange::{EmbedSecret, ExchangeSecret},
    secret::random_bytes,
};
use baton_limits::{DisplacedError, Ticket};
use baton_mesh::{Caller, FrameError, TurnStream};
use baton_models::embed::EmbedRole;
use baton_proto::{
    ErrorCode, Signable as _, SignedObject, codec,
    embed::{
        EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, SealedReply, SealedTexts,
        embed_auth_hash,
    },
    ids::Encapsulation,
    limits::{MAX_EMBED_FRAME_BYTES, MAX_EMBED_SEALED_BYTES, MAX_EMBED_TEXTS, VERSION},
};
use tokio::time::{Instant, timeout};
use zeroize::Zeroize as _;

use crate::{
    core::{
        Core,
        embedding::{Embedding, EmbeddingModel},
        frames,
        refusal::Refusal,
    },
    turn::charge::{self, Charge},
};

/// Texts that are embedded at once. A request that ends computes no further ones.
const BATCH: usize = 16;

/// Tokens that a model adds to a text; each other token has at least a byte.
const MARKS: usize = 2;

/// An admitted request. Dropping it leaves the queue.
struct AdmittedEmbedding<'a> {
    embedding: &'a Embedding,
    auth: SignedObject<EmbedAuth>,
    /// Not opened yet.
    texts: SealedTexts,
    exchange: ExchangeSecret,
    charge: Charge,
    ticket: Ticket,
}

/// Serves one request on its substream.
pub(crate) async fn serve(core: &Arc<Core>, mut stream: TurnStream, who: Caller) -> Result<(), FrameError> {
    let frame = frames::next_frame::<EmbedFrame>(core, &mut stream, &who, MAX_EMBED_FRAME_BYTES).await?;
    let admitted = frame.and_then(|EmbedFrame::Request(request)| {
        core.observer.requested("embed");
        admit(core, who, request)
    });
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return frames::refuse(core, stream, who, refusal).await,
    };
    let (mut sender, mut receiver) = stream.split();
    let answered = tokio::select! {
        biased;
        answered = answer(core, admitted) => answered,
        () = core.ending.cancelled() => Err(ErrorCode::Busy),
        error = frames::left(&mut receiver) => return Err(error),
    };
    let answer = answered.unwrap_or_else(|code| {
        core.observer.refused(code);
        core.defence.refused(&who, code);
        tracing::debug!(code = code.name(), "a request for embeddings was refused");
        let Refusal { code, retry_after_ms, .. } = code.into();
        EmbedAnswer::Refused { code, retry_after_ms }
    });
    sender.send_by(&codec::encode(&answer), Instant::now() + core.limits.reader_stall).await?;
    sender.close().await
}

/// Checks a request, cheapest checks first. Opens nothing, and computes only hashes and signatures.
fn admit(core: &Arc<Core>, who: Caller, request: EmbedRequest) -> Result<AdmittedEmbedding<'_>, Refusal> {
    let now_ms = core.now_ms();
    let EmbedRequest { auth, texts, quota } = request;
    if texts.0.len() > MAX_EMBED_SEALED_BYTES {
        return Err(ErrorCode::FrameTooLarge.into());
    }
    let granted = quota.as_ref().is_some_and(|used| core.quotas.lock().knows(used));
    core.defence.turn(&who, granted)?;
    let claimed = SignedObject::<EmbedAuth>::peek(&auth)?;
    if claimed.audience != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    claimed.check_time(now_ms)?;
    let embedding = core.embedding.as_ref().ok_or(ErrorCode::ModelUnavailable)?;
    let hash = embed_auth_hash(&auth);
    if texts.hash() != claimed.texts_hash {
        return Err(ErrorCode::PayloadRejected.into());
    }
    embedding.seen.lock().check(&claimed, &hash)?;
    let exchange =
        core.identity.exchange_secret(&claimed.audience_key, now_ms).ok_or(ErrorCode::KxExpired)?;
    let offer = &embedding.model.offer;
    if claimed.model != offer.model {
        return Err(ErrorCode::ModelUnavailable.into());
    }
    if core.draining.is_cancelled() {
        return Err(ErrorCode::Busy.into());
    }
    let chain = charge::check_quota(core, quota.as_ref(), claimed.model, &hash)?;
    let payer = charge::payer(&who, chain.as_ref());
    if !embedding.slots.has_room(&payer) {
        return Err(ErrorCode::Busy.into());
    }
    let auth = SignedObject::<EmbedAuth>::verify(auth)?;
    embedding.seen.lock().note(&auth, hash, now_ms)?;
    // A sealed text has more bytes than tokens, see `MARKS`.
    let longest = MAX_EMBED_TEXTS * offer.context_tokens as usize;
    let sealed = texts.0.len().saturating_sub(Encapsulation::LEN);
    let charge = Charge::take_all(core, who, charge::read_cost(sealed.min(longest)), chain.as_ref())?;
    let ticket = embedding.slots.enter(payer, 1).map_err(|_| ErrorCode::Busy)?;
    Ok(AdmittedEmbedding { embedding, auth, texts, exchange, charge, ticket })
}

/// The tokens of an embedding request, booked however it ends.
struct EmbedUse<'a> {
    charge: &'a Charge,
    /// Tokens of embedded texts.
    done: usize,
    /// The most that the present batch may have.
    under_way: usize,
}

impl Drop for EmbedUse<'_> {
    fn drop(&mut self) {
        self.charge.begin(self.done + self.under_way);
    }
}

/// Embeds texts into the reply, batch by batch. Cancel safe: the batch under way counts with the most tokens
/// that it may have.
async fn embed(
    model: &EmbeddingModel,
    charge: &Charge,
    texts: &[&str],
    reply: &mut EmbedReply,
) -> Result<(), ErrorCode> {
    let mut used = EmbedUse { charge, done: 0, under_way: 0 };
    for batch in texts.chunks(BATCH) {
        let context = model.offer.context_tokens as usize;
        used.under_way = batch.iter().map(|text| context.min(text.len() + MARKS)).sum();
        let embedded = model.embedder.embed_counted(EmbedRole::Document, batch).await.map_err(|error| {
            tracing::warn!(%error, "an embedder failed");
            ErrorCode::Internal
        })?;
        used.under_way = 0;
        for mut text in embedded {
            used.done += text.tokens;
            reply.tokens.push(u32::try_from(text.tokens).unwrap_or(u32::MAX));
            reply.components.extend_from_slice(&text.vector);
            text.vector.zeroize();
        }
    }
    Ok(())
}

/// Waits for the slot, opens the texts and embeds them. Cancel safe: a dropped call stops the work soon.
async fn answer(core: &Core, admitted: AdmittedEmbedding<'_>) -> Result<EmbedAnswer, ErrorCode> {
    let AdmittedEmbedding { embedding, auth, texts, exchange, charge, ticket } = admitted;
    let waited = timeout(core.limits.embed_wait, ticket.granted()).await;
    waited.unwrap_or(Err(DisplacedError)).map_err(|DisplacedError| ErrorCode::Busy)?;
    let began = Instant::now();
    let (texts, secret) = texts.open(&exchange, &auth)?;
    let borrowed: Vec<&str> = texts.texts.iter().map(String::as_str).collect();
    let dimensions = embedding.model.embedder.dimensions();
    let mut reply = EmbedReply {
        version: VERSION,
        node: core.node,
        auth_hash: auth.auth_hash(),
        model: auth.model,
        dimensions: u32::try_from(dimensions).unwrap_or(u32::MAX),
        tokens: Vec::with_capacity(borrowed.len()),
        // Allocated at full size, so that no smaller buffer stays unwiped.
        components: Vec::with_capacity(borrowed.len() * dimensions),
    };
    let work = embed(&embedding.model, &charge, &borrowed, &mut reply);
    timeout(core.limits.max_embed_time, work).await.map_err(|_| ErrorCode::QuotaExceeded)??;
    let total: usize = reply.tokens.iter().map(|tokens| *tokens as usize).sum();
    let answer = seal(core, &reply, texts.texts.len(), &secret)?;
    charge.served(0);
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
