//! Embeddings from any node that offers them: each batch is its own order, tried elsewhere if a node fails.

use std::{sync::Arc, time::Duration};

use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, SUITE},
    secret::random_bytes,
};
use baton_mesh::{EMBED_PROTOCOL, OpenError};
use baton_proto::{
    ErrorCode, Retry, SignedObject, codec,
    embed::{EmbedAnswer, EmbedAuth, EmbedFrame, EmbedReply, EmbedRequest, EmbedTexts, SealedTexts},
    ids::{EmbedId, ModelId, NodeId, PayloadHash},
    limits::{
        EMBED_AUTH_VERSION, MAX_EMBED_ANSWER_BYTES, MAX_EMBED_FRAME_BYTES, MAX_EMBED_TEXT_BYTES,
        MAX_EMBED_TEXTS,
    },
};
use tokio::time::Instant;

use crate::{
    core::Core,
    error::ClientError,
    network::{
        choose::{Choice, Wish},
        exchange::ExchangeError,
        retry::AttemptFailure,
    },
};

/// Attempts at one batch: enough for a few nodes that just left and a moment of load.
const MAX_ATTEMPTS: u32 = 4;
/// Most bytes of a batch, except a single longer text. A small model embeds them in seconds, on a slow
/// machine too, so that others wait only briefly.
const MAX_BATCH_BYTES: usize = 16 * 1024;
/// How long an order is valid: a node admits it at once, or never.
const LIFETIME_MS: u64 = 60_000;
/// Pause before the same node is asked again, if it named none.
const DEFAULT_PAUSE_MS: u32 = 250;
/// Longest pause between two attempts.
const MAX_PAUSE_MS: u32 = 5_000;

/// The embeddings of some texts.
#[derive(Clone, PartialEq)]
pub struct Embeddings {
    /// The model's name, as a node offered it.
    pub model: String,
    /// The model's manifest hash.
    pub model_id: ModelId,
    /// Components of each vector.
    pub dimensions: usize,
    /// The vector of each text in order, with the node that made and signed it.
    pub texts: Vec<EmbeddedText>,
}

/// One text's embedding.
#[derive(Clone, PartialEq)]
pub struct EmbeddedText {
    /// The vector; all components are finite.
    pub vector: Vec<f32>,
    /// Embedded tokens of the text, as the node said.
    pub tokens: u32,
    /// The node.
    pub node: NodeId,
}

impl std::fmt::Debug for Embeddings {
    /// Without the vectors, which reveal the texts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Embeddings({} of {} by {})", self.texts.len(), self.dimensions, self.model)
    }
}

impl std::fmt::Debug for EmbeddedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmbeddedText({} components by {})", self.vector.len(), self.node)
    }
}

/// Splits texts into batches of one order each.
fn batches(mut texts: &[String]) -> impl Iterator<Item = &[String]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |text: &&String| {
            bytes += text.len();
            bytes <= MAX_BATCH_BYTES
        };
        let count = texts.iter().take(MAX_EMBED_TEXTS).take_while(fits).count().max(1);
        let (batch, rest) = texts.split_at_checked(count)?;
        texts = rest;
        Some(batch)
    })
}

/// As [`Client::embed`](crate::Client::embed).
pub(crate) async fn embed(
    core: &Arc<Core>,
    texts: &[String],
    model: Option<&str>,
) -> Result<Embeddings, ClientError> {
    if texts.is_empty() {
        return Err(ClientError::EmptyMessage);
    }
    if let Some(long) = texts.iter().find(|text| text.len() > MAX_EMBED_TEXT_BYTES) {
        return Err(ClientError::MessageTooLong { bytes: long.len(), limit: MAX_EMBED_TEXT_BYTES });
    }
    let mut all: Option<Embeddings> = None;
    for batch in batches(texts) {
        // Vectors of two models cannot be compared, and names are only names.
        let same = all.as_ref().map(|all| all.model_id.to_string());
        let dimensions = all.as_ref().map(|all| all.dimensions);
        let (choice, reply) =
            Box::pin(embed_batch(core, batch, same.as_deref().or(model), dimensions)).await?;
        let texts = reply.vectors().zip(&reply.tokens).map(|(vector, tokens)| EmbeddedText {
            vector: vector.to_vec(),
            tokens: *tokens,
            node: reply.node,
        });
        let all = all.get_or_insert_with(|| Embeddings {
            model: choice.offer.name.clone(),
            model_id: choice.offer.model,
            dimensions: reply.dimensions as usize,
            texts: Vec::new(),
        });
        all.texts.extend(texts);
    }
    // There is at least one batch.
    all.ok_or(ClientError::EmptyMessage)
}

/// Embeds one batch, and tries another node after a failure.
async fn embed_batch(
    core: &Arc<Core>,
    texts: &[String],
    model: Option<&str>,
    dimensions: Option<usize>,
) -> Result<(Choice, EmbedReply), ClientError> {
    let (directory, config) = (&core.directory, &core.config);
    let mut tried: Vec<NodeId> = Vec::new();
    let mut last: Option<ClientError> = None;
    let mut rejected = None;
    let mut pause_ms = 0;
    for attempts in 1..=MAX_ATTEMPTS {
        let wish = Wish {
            model,
            embeddings: true,
            max_price: Some(config.max_price),
            tried: &tried,
            now_ms: core.now_ms(),
            ..Wish::default()
        };
        let (choice, in_flight) = match directory.choose(&wish).await {
            Ok(chosen) => chosen,
            Err(none) => return Err(last.unwrap_or_else(|| none.into())),
        };
        if tried.contains(&choice.node) {
            tokio::time::sleep(Duration::from_millis(pause_ms.into())).await;
        }
        let asked = ask_for_embeddings(core, &choice, texts).await;
        // All vectors of a model have the same length, at any node.
        let fits = |reply: &EmbedReply| dimensions.is_none_or(|known| known == reply.dimensions as usize);
        let asked = match asked {
            Ok(reply) if !fits(&reply) => Err(AttemptFailure::check(ErrorCode::PayloadRejected)),
            asked => asked,
        };
        let failure = match asked {
            Ok(reply) => {
                directory.answered(choice.node);
                return Ok((choice, reply));
            }
            Err(failure) => failure,
        };
        drop(in_flight);
        tracing::debug!(node = %choice.node, reason = failure.reason, "a node embedded nothing");
        directory.failed(choice.node, failure.fault, failure.retry_after_ms.into());
        if failure.code == Some(ErrorCode::KxExpired) {
            directory.renew(choice.node).await;
        }
        pause_ms = if failure.retry_after_ms == 0 { DEFAULT_PAUSE_MS } else { failure.retry_after_ms };
        pause_ms = pause_ms.min(MAX_PAUSE_MS);
        tried.push(choice.node);
        let said = failure.code.filter(|code| failure.is_claim() && code.retry() == Retry::Never);
        // One node's unsigned claim decides nothing; two do.
        let wrong = said.is_some() && said == rejected;
        rejected = said.or(rejected);
        let (node, code, reason) = (choice.node, failure.code, failure.reason);
        let failed = ClientError::EmbedFailed { attempts, node, code, reason };
        if wrong {
            // The request is wrong at every node.
            return Err(failed);
        }
        last = Some(failed);
    }
    Err(last.unwrap_or(ClientError::TaskEnded))
}

/// One order, to one node.
async fn ask_for_embeddings(
    core: &Arc<Core>,
    choice: &Choice,
    texts: &[String],
) -> Result<EmbedReply, AttemptFailure> {
    let (directory, config) = (&core.directory, &core.config);
    // A fresh key for each order, so that no node can link two orders by it.
    let client_key = SecretSigningKey::generate();
    let issued_ms = core.now_ms();
    let mut auth = EmbedAuth {
        version: EMBED_AUTH_VERSION,
        suite: SUITE,
        client_key: client_key.public_key(),
        request: EmbedId(random_bytes()),
        audience: choice.node,
        audience_key: choice.key.id(),
        model: choice.offer.model,
        texts_hash: PayloadHash([0; 32]),
        issued_ms,
        expires_ms: issued_ms.saturating_add(LIFETIME_MS),
    };
    let plain = EmbedTexts::new(texts.to_vec());
    let ephemeral = EphemeralSecret::generate();
    let (sealed, secret) =
        SealedTexts::seal(&plain, ephemeral, &choice.key, &auth.binding()).map_err(AttemptFailure::check)?;
    auth.texts_hash = sealed.hash();
    let auth = SignedObject::sign(auth, &client_key);
    let quota = config.quota.as_deref().and_then(|quota| quota.for_embeddings(&auth));
    let request = EmbedRequest { auth: auth.bytes().clone(), texts: sealed, quota };
    let frame = codec::encode(&EmbedFrame::Request(request));
    if frame.len() > MAX_EMBED_FRAME_BYTES {
        return Err(AttemptFailure::check(ErrorCode::FrameTooLarge).unclear());
    }
    let (open, answer) = (config.timeouts.open, config.timeouts.embed);
    let (mesh, addrs) = (directory.mesh(), directory.addrs(choice.node));
    let opened = mesh.open_side(choice.node, &addrs, &EMBED_PROTOCOL, Instant::now() + open).await;
    let mut stream = opened.map_err(|error| match error {
        // The node is up, but offers a model that it does not have.
        OpenError::ProtocolUnsupported => AttemptFailure::node(ErrorCode::ModelUnavailable, 0),
        error => ExchangeError::Open(error).into(),
    })?;
    let failed = |error| AttemptFailure::from(ExchangeError::Frame(error));
    stream.send_by(&frame, Instant::now() + open).await.map_err(failed)?;
    // This side stays open: closing it would cancel the request.
    let received = stream.recv_by(MAX_EMBED_ANSWER_BYTES, Instant::now() + answer).await;
    let bytes = received.map_err(failed)?.ok_or(ExchangeError::Ended)?;
    match codec::decode(&bytes, MAX_EMBED_ANSWER_BYTES).map_err(AttemptFailure::check)? {
        EmbedAnswer::Refused { code, retry_after_ms } => Err(AttemptFailure::node(code, retry_after_ms)),
        EmbedAnswer::Embedded { nonce, sealed } => {
            sealed.open(&secret, &nonce, &auth, texts.len()).map_err(AttemptFailure::check)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_so_many_texts_and_bytes_and_leave_none_out() {
        let lengths = |texts: &[String]| -> Vec<usize> { batches(texts).map(<[String]>::len).collect() };
        assert_eq!(lengths(&vec![String::new(); 130]), [64, 64, 2]);
        assert_eq!(lengths(&vec!["x".repeat(6000); 5]), [2, 2, 1]);
        assert_eq!(lengths(&vec!["x".repeat(8192); 3]), [2, 1]);
        assert_eq!(lengths(&[]), [0; 0]);
    }
}
