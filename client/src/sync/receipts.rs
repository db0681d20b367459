//! The receipts of a home: signed by nodes for its turns, and countersigned by this client. Reads journals
//! without opening them for writing, so it works beside a running client.

use std::sync::Arc;

use baton_proto::{
    ErrorCode, SignedObject,
    commit::check_receipt_of_link,
    ids::{NodeId, SessionId},
    link::Link,
    note::TurnNote,
    receipt::Receipt,
};

use crate::{
    core::Core,
    error::ClientError,
    evidence::Equivocation,
    session::state::{State, TurnMeta},
    sync::sessions,
};

/// The receipt of a turn with its status.
#[derive(Debug, Clone)]
pub struct TurnReceipt {
    /// The turn's position in its session.
    pub seq: u64,
    /// The node that finished it, from the signed link.
    pub node: NodeId,
    /// When it was accepted here, in milliseconds since the Unix epoch.
    pub accepted_ms: u64,
    /// The node's signed claims. Absent in a session recovered from its root: the store has no receipts.
    pub receipt: Option<SignedObject<Receipt>>,
    /// Evidence that the node also signed another link for it.
    pub equivocation: Option<Equivocation>,
    /// State of its countersignature.
    pub countersigned: CountersignatureStatus,
    /// The first failed check, if any.
    pub problem: Option<ErrorCode>,
}

/// State of a turn's acknowledgement, with which its author can prove credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountersignatureStatus {
    /// There is none: the turn came from the store or an export.
    No,
    /// It is signed; its author does not have it yet.
    Pending,
    /// Its author has it.
    Delivered,
    /// It is signed; its author no longer knows the turn.
    Moot,
}

/// As [`SessionHandle::receipts`](crate::SessionHandle::receipts).
pub(crate) async fn receipts(
    core: &Arc<Core>,
    id: SessionId,
    verify: bool,
) -> Result<Vec<TurnReceipt>, ClientError> {
    sessions::with_state(core, id, move |state| all(state, verify)).await
}

fn all(state: &State, verify: bool) -> Vec<TurnReceipt> {
    let turns = state.history.iter().zip(&state.meta);
    turns
        .map(|(turn, meta)| TurnReceipt {
            seq: turn.link.seq,
            node: turn.link.author,
            accepted_ms: meta.accepted_ms,
            receipt: meta.receipt.clone(),
            equivocation: meta
                .signed_twice
                .as_ref()
                .and_then(|other| Equivocation::check(turn.link.bytes().clone(), other.bytes().clone()).ok()),
            countersigned: countersigned(state, turn.link.seq, meta),
            problem: if verify { check(&turn.link, meta).err() } else { None },
        })
        .collect()
}

fn countersigned(state: &State, seq: u64, meta: &TurnMeta) -> CountersignatureStatus {
    match &meta.ack {
        None => CountersignatureStatus::No,
        Some(_) if state.unacked.contains(&seq) => CountersignatureStatus::Pending,
        Some(_) if meta.acked => CountersignatureStatus::Delivered,
        Some(_) => CountersignatureStatus::Moot,
    }
}

/// Checks the signed objects of a turn, from the bytes.
fn check(link: &SignedObject<Link>, meta: &TurnMeta) -> Result<(), ErrorCode> {
    let link = &SignedObject::<Link>::verify(link.bytes().clone())?;
    let Some(receipt) = &meta.receipt else { return Ok(()) };
    let receipt = check_receipt_of_link(link, receipt.bytes().clone())?;
    if let Some(auth) = &meta.auth {
        let auth = SignedObject::<baton_proto::turn::TurnAuth>::verify(auth.bytes().clone())?;
        if auth.auth_hash() != receipt.auth_hash || !receipt.claims_fit(&auth) {
            return Err(ErrorCode::ReceiptMismatch);
        }
    }
    let Some(ack) = &meta.ack else { return Ok(()) };
    let ack = SignedObject::<TurnNote>::verify(ack.bytes().clone())?;
    if ack.accepts(link, meta.digest) { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
}
