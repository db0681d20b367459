//! The end of a turn: seal, journal, send the signatures to the client, then store.
//!
//! The order is the promise: a journaled turn is never sealed again, and nothing signed leaves before it is
//! on the disk.

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    check::AnswerCheck,
    commit::{ChainPosition, SealedTurn, closes_segment, seal_turn},
    ids::FetchProof,
    limits::MAX_BLOB_BYTES,
    link::BlobRef,
    node_record::storage_units,
    receipt::{Receipt, ServedContents, Timings, TokenCounts},
    record::Record,
    segment::Segment,
    turn::StoragePolicy,
    wire::{ReplyEvent, StoreState},
};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    DecryptedRequest,
    admission::AdmittedTurn,
    events::ReplyWriter,
    generate::Answer,
    window::{TurnPrompt, price_of},
};
use crate::{
    core::{Core, pause::Step, refusal::Refusal, storing},
    journal::{PutPlan, SealedEntry},
    ledger::ReceiptKind,
    observer::TurnSummary,
};

/// An answer, and its position in the chain.
pub(crate) struct AnsweredTurn {
    /// The segment to append to.
    pub(crate) base: Segment,
    /// The blob of the previous turn.
    pub(crate) prev_blob: Option<BlobRef>,
    /// The prompt and its figures.
    pub(crate) turn_prompt: TurnPrompt,
    /// The results of the ordered checks.
    pub(crate) checks: Vec<AnswerCheck>,
    /// The answer.
    pub(crate) answer: Answer,
    /// From admission to the start of generation.
    pub(crate) queue: Duration,
}

/// Whole milliseconds, as in receipts.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Seals, journals, sends Committed, and starts to store. The receiver gets the store's answer.
///
/// # Errors
/// Before Committed: the failure; nothing signed has left then.
pub(crate) async fn commit(
    core: &Arc<Core>,
    admitted: &AdmittedTurn,
    opened: &Arc<DecryptedRequest>,
    answered: AnsweredTurn,
    events: &mut ReplyWriter,
) -> Result<oneshot::Receiver<StoreState>, ErrorCode> {
    let receipt = receipt(core, admitted, opened, &answered);
    let sealed = seal(core, admitted, opened, answered, receipt).await?;
    let receipt = &sealed.receipt;
    let summary = TurnSummary {
        input_tokens: receipt.tokens.input,
        output_tokens: receipt.tokens.output - receipt.tokens.resumed,
        queue_ms: receipt.timings.queue_ms,
        first_token_ms: receipt.timings.first_token_ms,
        total_ms: millis(admitted.began.elapsed()),
        price: receipt.price,
    };
    core.pause.pass(Step::Sealed).await;
    let (key, digest) = (admitted.guard.job.key, sealed.blob_digest);
    let plan = PutPlan {
        epochs: epochs(&opened.payload.storage, sealed.closes_segment),
        send_object_to: opened.payload.storage.send_object_to,
        n_shards: admitted.auth.n_shards,
    };
    let units = storage_units(sealed.blob.len(), plan.epochs);
    let blob_key = opened.payload.grant.blob_key.blob_key();
    let entry = SealedEntry {
        committed: sealed.committed(),
        fetch_proof: FetchProof(blob_key.fetch_proof(&digest.0)),
        link_hash: sealed.link.link_hash(),
        receipt_hash: sealed.receipt.receipt_hash(),
        store: StoreState::Pending,
        plan,
        receipt_kind: receipt_kind(admitted, summary.price),
        ack: None,
    };
    let committed = Box::new(entry.committed.clone());
    let journaled = core.journal.seal(key, admitted.auth.auth_hash(), entry, sealed.blob).await;
    journaled.map_err(|error| Refusal::of_journal(error).code)??;
    core.pause.pass(Step::Journaled).await;

    // The turn is done, even if its reader is gone.
    core.observer.finished(&summary);
    admitted.charge.served(units);
    tracing::info!(
        session = core.log_key.short(&admitted.auth.session_id),
        input = summary.input_tokens,
        output = summary.output_tokens,
        total_ms = summary.total_ms,
        "a turn was committed"
    );
    let said = events.send(ReplyEvent::Committed(committed));
    // The client may continue with its next turn, however the storing ends.
    admitted.guard.release();
    said?;
    if core.pause.stops_at(Step::ReceiptSent) {
        events.delivered().await;
        core.pause.pass(Step::ReceiptSent).await;
    }
    let storing = storing::StoreTask { key, digest, plan, uncertain: false, payer: admitted.payer };
    Ok(storing::start(core, storing))
}

/// Signs the receipt of a request for checks alone, and sends it. It promises nothing that the journal must keep.
pub(crate) fn send_checked(
    core: &Core,
    admitted: &AdmittedTurn,
    opened: &DecryptedRequest,
    answered: &AnsweredTurn,
    events: &mut ReplyWriter,
) -> Result<(), ErrorCode> {
    let receipt = receipt(core, admitted, opened, answered);
    admitted.charge.served(0);
    let signed = SignedObject::sign(receipt, core.identity.signing_key());
    events.send_last(ReplyEvent::Checked(signed.bytes().clone()))
}

/// Sends the store's answer, or that it is still to come.
pub(crate) async fn send_stored(
    core: &Core,
    stored: oneshot::Receiver<StoreState>,
    events: &mut ReplyWriter,
) -> Result<(), ErrorCode> {
    let state = match timeout(core.limits.store_wait, stored).await {
        Ok(Ok(state)) => state,
        // Storing takes longer, or the service ends and the next start continues.
        Ok(Err(_)) | Err(_) => StoreState::Pending,
    };
    events.send_last(ReplyEvent::Store(state))
}

/// The file of the ledger: identities are free, so only a grant makes a paying client.
fn receipt_kind(admitted: &AdmittedTurn, price: u64) -> ReceiptKind {
    if price > 0 && !admitted.payer.is_unknown() { ReceiptKind::Paying } else { ReceiptKind::Other }
}

/// Epochs for a blob that closes its segment, or does not.
fn epochs(storage: &StoragePolicy, closes_segment: bool) -> u32 {
    if closes_segment { storage.closed_epochs } else { storage.open_epochs }
}

/// The receipt, without the price of the storage.
fn receipt(
    core: &Core,
    admitted: &AdmittedTurn,
    opened: &DecryptedRequest,
    answered: &AnsweredTurn,
) -> Receipt {
    let (auth, payload, answer) = (&admitted.auth, &opened.payload, &answered.answer);
    let turn_prompt = &answered.turn_prompt;
    let used = opened.memory.get(..turn_prompt.memory_used).unwrap_or_default();
    let resumed = auth.resume.map_or(0, |prefix| prefix.token_count);
    // A proxied engine's counts are its server's; they must not exceed the client's limit.
    let output = answer.output_tokens.max(resumed).min(auth.max_output_tokens.max(resumed));
    let input =
        if answer.stats.input_tokens > 0 { answer.stats.input_tokens } else { turn_prompt.input_tokens };
    // So may its counts exceed the offered context.
    let input = input.min(admitted.engine.info().context_tokens);
    let price = price_of(core.limits.price, input, output - resumed).min(auth.max_price);
    let first_token = answer.first_token_at.map_or(0, |at| millis(at - admitted.began));
    let contents = ServedContents {
        window_from: turn_prompt.window_from,
        memory: used,
        answer: &answer.text,
        finish: answer.finish,
    };
    Receipt {
        engine: admitted.engine.info().kind,
        tokens: TokenCounts { input, output, memory: turn_prompt.memory_tokens, resumed },
        running_hash: answer.running_hash,
        checks: answered.checks.clone(),
        timings: Timings {
            queue_ms: millis(answered.queue),
            prefill_ms: u32::try_from(answer.stats.prefill_ms).unwrap_or(u32::MAX),
            first_token_ms: first_token,
            decode_ms: answer.first_token_at.map_or(0, |at| millis(Instant::now() - at)),
        },
        price,
        time_ms: core.now_ms(),
        ..Receipt::of_turn(auth, payload, &contents)
    }
}

/// Seals record and blob and signs link and receipt, off the reactor: a blob may have two megabytes.
async fn seal(
    core: &Arc<Core>,
    admitted: &AdmittedTurn,
    opened: &Arc<DecryptedRequest>,
    answered: AnsweredTurn,
    mut receipt: Receipt,
) -> Result<SealedTurn, ErrorCode> {
    let storage_price = core.limits.storage.price;
    let (identity, auth, opened) = (core.identity.clone(), admitted.auth.clone(), opened.clone());
    let sealing = tokio::task::spawn_blocking(move || {
        let AnsweredTurn { base, prev_blob, answer, .. } = answered;
        let payload = &opened.payload;
        let record = Record::of_turn(
            payload.kind,
            payload.supersedes_from,
            &payload.messages,
            &answer.text,
            answer.finish,
        );
        let position = ChainPosition { base: &base, prev_blob };
        let epochs = epochs(&payload.storage, closes_segment(&auth, position, &record)?);
        let storage = storage_units(MAX_BLOB_BYTES, epochs).saturating_mul(storage_price);
        receipt.price = receipt.price.saturating_add(storage).min(auth.max_price);
        seal_turn(&auth, position, &payload.grant, &record, receipt, identity.signing_key())
    });
    sealing.await.map_err(|_| ErrorCode::Internal)?
}
