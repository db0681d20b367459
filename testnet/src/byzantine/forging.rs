//! Forged signatures and turns of a byzantine node: links and receipts that do not match, and whole turns
//! over other content.

use baton_keys::SecretSigningKey;
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    commit::{ChainPosition, SealedTurn, seal_turn},
    ids::{ModelId, RunningHash},
    limits::{MAX_TURN_MS, VERSION},
    link::Link,
    receipt::{EngineKind, ProgressNote, Receipt, commit_output},
    record::{Message, Record, Role},
    segment::Segment,
    turn::{Payload, TurnAuth},
    wire::{ClientFrame, Committed},
};

use super::Misbehaviour;

/// Changes link and receipt, and signs both again.
pub(super) fn remake(
    committed: &Committed,
    signer: &SecretSigningKey,
    change: impl FnOnce(&mut Receipt, &mut Link),
) -> Result<Committed, ErrorCode> {
    let mut receipt = SignedObject::<Receipt>::verify(committed.receipt.clone())?.into_value();
    let mut link = SignedObject::<Link>::verify(committed.link.clone())?.into_value();
    change(&mut receipt, &mut link);
    let receipt = SignedObject::sign(receipt, signer);
    link.receipt_hash = receipt.receipt_hash();
    let link = SignedObject::sign(link, signer);
    Ok(Committed { link: link.bytes().clone(), receipt: receipt.bytes().clone(), ..committed.clone() })
}

/// A signed object with an invalid signature.
pub(super) fn spoil(mut signed: SignedBytes) -> SignedBytes {
    signed.signature.0[7] ^= 0x20;
    signed
}

/// A commitment with a falsified field of link or receipt; `None` for a misbehaviour of another kind.
pub(super) fn forge(
    misbehaviour: Misbehaviour,
    committed: &Committed,
    auth: &TurnAuth,
    signer: &SecretSigningKey,
) -> Result<Option<Committed>, ErrorCode> {
    Ok(Some(match misbehaviour {
        Misbehaviour::BadLinkSignature => {
            Committed { link: spoil(committed.link.clone()), ..committed.clone() }
        }
        Misbehaviour::BadReceiptSignature => {
            Committed { receipt: spoil(committed.receipt.clone()), ..committed.clone() }
        }
        Misbehaviour::OtherModel => remake(committed, signer, |receipt, _| receipt.model = ModelId([8; 32]))?,
        Misbehaviour::OtherEngine => {
            remake(committed, signer, |receipt, _| receipt.engine = EngineKind::Proxied)?
        }
        Misbehaviour::Overclaim => {
            remake(committed, signer, |receipt, _| receipt.tokens.output = auth.max_output_tokens + 1)?
        }
        Misbehaviour::OtherTime => remake(committed, signer, |receipt, link| {
            receipt.time_ms += 2 * MAX_TURN_MS;
            link.time_ms += 2 * MAX_TURN_MS;
        })?,
        Misbehaviour::Overcount => remake(committed, signer, |receipt, _| receipt.tokens.output += 1)?,
        Misbehaviour::OtherRunningHash => {
            remake(committed, signer, |receipt, _| receipt.running_hash = RunningHash([9; 32]))?
        }
        Misbehaviour::OtherAuthor => {
            let other_node = SecretSigningKey::generate();
            remake(committed, &other_node, |receipt, link| {
                receipt.node = other_node.node_id();
                link.author = other_node.node_id();
            })?
        }
        Misbehaviour::OtherPrevLink => remake(committed, signer, |_, link| link.prev_link.0[0] ^= 1)?,
        Misbehaviour::OtherPrevBlob => remake(committed, signer, |_, link| match &mut link.prev_blob {
            Some(blob) => blob.digest.0[0] ^= 1,
            // The first turn has no previous blob, so the record's length changes instead.
            None => link.record_length ^= 1,
        })?,
        Misbehaviour::OtherSequence => remake(committed, signer, |_, link| link.seq += 1)?,
        // A second signing of the same turn, a moment later.
        Misbehaviour::TwoLinks => remake(committed, signer, |receipt, link| {
            receipt.time_ms += 1;
            link.time_ms += 1;
        })?,
        _ => return Ok(None),
    }))
}

/// The request that fetches the turn's blob from the honest service.
pub(super) fn fetch(committed: &Committed, payload: &Payload) -> ClientFrame {
    let key = payload.grant.blob_key.blob_key();
    let digest = committed.blob_digest;
    ClientFrame::FetchBlob { digest, proof: baton_proto::ids::FetchProof(key.fetch_proof(&digest.0)) }
}

/// A correctly sealed turn over another answer, question, history or count.
pub(super) fn reseal(
    misbehaviour: Misbehaviour,
    (auth, payload, answer): (&SignedObject<TurnAuth>, &Payload, &str),
    committed: &Committed,
    blob: &[u8],
    signer: &SecretSigningKey,
) -> Result<SealedTurn, ErrorCode> {
    let link = SignedObject::<Link>::verify(committed.link.clone())?;
    let mut receipt = SignedObject::<Receipt>::verify(committed.receipt.clone())?.into_value();
    let (record_key, blob_key) = (payload.grant.record_key.record_key(), payload.grant.blob_key.blob_key());
    let mut base = Segment::open(blob, &blob_key, &auth.session_id, link.segment)?;
    base.entries.pop();
    let (mut messages, mut text) = (payload.messages.clone(), answer.to_owned());
    match misbehaviour {
        Misbehaviour::AlteredQuestion => messages = vec![Message::new(Role::User, "what nobody asked")],
        Misbehaviour::AlteredHistory => {
            match base.entries.first_mut().and_then(|entry| entry.record.0.last_mut()) {
                Some(byte) => *byte ^= 1,
                // Without an earlier turn in this segment, the segment number changes instead.
                None => base.segment += 1,
            }
        }
        Misbehaviour::LosesReply => receipt.tokens.output = auth.max_output_tokens,
        _ => text = text.replacen("echo:", "echo: indeed", 1),
    }
    receipt.commitments.output = commit_output(&record_key, &text, committed.finish);
    let record = Record::of_turn(payload.kind, payload.supersedes_from, &messages, &text, committed.finish);
    let position = ChainPosition { base: &base, prev_blob: link.prev_blob };
    seal_turn(auth, position, &payload.grant, &record, receipt, signer)
}

/// A progress note with an invalid signature, or over other tokens.
pub(super) fn note(
    misbehaviour: Misbehaviour,
    auth: &SignedObject<TurnAuth>,
    tokens: u32,
    signer: &SecretSigningKey,
) -> SignedBytes {
    let note = ProgressNote {
        version: VERSION,
        node: signer.node_id(),
        auth_hash: auth.auth_hash(),
        token_count: tokens,
        running_hash: RunningHash([7; 32]),
        time_ms: auth.issued_ms,
    };
    let signed = SignedObject::sign(note, signer).bytes().clone();
    if misbehaviour == Misbehaviour::ForgedNote { spoil(signed) } else { signed }
}
