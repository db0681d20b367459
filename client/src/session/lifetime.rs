//! How long the store keeps a session's blobs, and which are due for renewal. Pure: time is a parameter.
//!
//! Walrus keeps a blob for a number of epochs, counted from the epoch of its PUT. HTTP tells neither the
//! present epoch nor its end. So a blob stored for e epochs of length d stays for at least (e - 1)·d and at
//! most e·d. It is renewed while at least one whole epoch is certain.

use baton_proto::{chain::HistoryTurn, ids::BlobId, link::BlobRef};

use crate::session::state::{State, StorageTerms, TurnMeta};

/// The part of an epoch for which a doubtful renewal is left alone; the last certain epoch then has time for
/// several.
const DOUBT_WAIT: u64 = 8;

/// A blob that a session needs, with its lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLifetime {
    /// Its last turn.
    pub seq: u64,
    /// Its Walrus ID, once computed.
    pub blob_id: Option<BlobId>,
    /// Bytes.
    pub length: u32,
    /// Whether the store is known to have taken it; then the other fields describe its last PUT.
    pub stored: bool,
    /// First epoch in which it is gone, if the store said.
    pub end_epoch: Option<u64>,
    /// The store keeps it at least until then; milliseconds since the Unix epoch.
    pub kept_until_ms: u64,
    /// It is gone by then.
    pub gone_by_ms: u64,
    /// Whether it is due for renewal.
    pub due: bool,
}

/// The lifetimes of all blobs that a session needs, oldest first: the last of each segment. Earlier blobs of
/// a segment are superseded and may expire.
pub(crate) fn lifetimes(state: &State, terms: StorageTerms, now_ms: u64) -> Vec<BlobLifetime> {
    let ends = state.segment_ends(usize::MAX).into_iter().rev();
    ends.filter_map(|seq| lifetime(state, seq, terms, now_ms)).collect()
}

/// Whether any blob is due for renewal.
pub(crate) fn any_due(state: &State, terms: StorageTerms, now_ms: u64) -> bool {
    let mut due = state.segment_ends(usize::MAX).into_iter().filter_map(|seq| due_from_ms(state, seq, terms));
    state.needs_omitted(terms, now_ms) || due.any(|from_ms| now_ms >= from_ms)
}

/// Last turns of the blobs to look for in the store, least recently seen first, at most `most`: a node's word
/// and a publisher's answer may be wrong, and a blob may be gone early.
pub(crate) fn looks_due(state: &State, terms: StorageTerms, now_ms: u64, most: usize) -> Vec<(u64, BlobRef)> {
    let mut due: Vec<(Option<u64>, u64)> = Vec::new();
    for seq in state.segment_ends(usize::MAX) {
        let Some(blob) = lifetime(state, seq, terms, now_ms).filter(|blob| blob.stored) else { continue };
        let confirmed_ms = state.turn(seq).and_then(|(_, meta)| meta.blob.confirmed_ms);
        // A blob whose time may be over is left to a renewal.
        if blob.kept_until_ms > now_ms && look_from_ms(confirmed_ms, blob.kept_until_ms, terms) <= now_ms {
            due.push((confirmed_ms, seq));
        }
    }
    due.sort_unstable();
    due.into_iter().take(most).filter_map(|(_, seq)| Some((seq, state.blob_ref(seq)?))).collect()
}

/// When a stored blob is looked for again: before half of its believed time has passed, and once an epoch.
fn look_from_ms(confirmed_ms: Option<u64>, kept_until_ms: u64, terms: StorageTerms) -> u64 {
    confirmed_ms.map_or(0, |at_ms| {
        at_ms.saturating_add((kept_until_ms.saturating_sub(at_ms) / 2).min(terms.epoch_ms()))
    })
}

/// Until when all stored blobs are kept at least.
pub(crate) fn kept_until_ms(state: &State, terms: StorageTerms) -> Option<u64> {
    let stored = lifetimes(state, terms, 0).into_iter().filter(|lifetime| lifetime.stored);
    let omitted = state.omitted().and_then(|omitted| omitted.kept_until_ms);
    stored.map(|lifetime| lifetime.kept_until_ms).chain(omitted).min()
}

/// Of the blobs that end before a turn: until when all are kept at least, and when the first is due for a look or for
/// renewal.
pub(crate) fn of_omitted(state: &State, terms: StorageTerms, first: u64) -> (Option<u64>, u64) {
    let omitted = state.omitted();
    let mut kept_until_ms = omitted.and_then(|omitted| omitted.kept_until_ms);
    let mut needed_ms = omitted.map_or(u64::MAX, |omitted| omitted.needed_ms);
    for blob in lifetimes(state, terms, 0).into_iter().filter(|blob| blob.stored && blob.seq < first) {
        kept_until_ms = Some(kept_until_ms.map_or(blob.kept_until_ms, |kept| kept.min(blob.kept_until_ms)));
        let confirmed_ms = state.turn(blob.seq).and_then(|(_, meta)| meta.blob.confirmed_ms);
        let look_ms = look_from_ms(confirmed_ms, blob.kept_until_ms, terms);
        needed_ms = needed_ms.min(look_ms).min(due_from_ms(state, blob.seq, terms).unwrap_or(u64::MAX));
    }
    (kept_until_ms, needed_ms)
}

fn lifetime(state: &State, seq: u64, terms: StorageTerms, now_ms: u64) -> Option<BlobLifetime> {
    let (turn, meta) = state.turn(seq)?;
    let (stored_ms, epochs) = bought(state, (turn, meta), terms);
    let epoch_ms = terms.epoch_ms();
    let after = |epochs: u32| stored_ms.saturating_add(epoch_ms.saturating_mul(epochs.into()));
    Some(BlobLifetime {
        seq,
        blob_id: meta.blob_id,
        length: meta.length,
        stored: meta.stored,
        end_epoch: meta.blob.end_epoch,
        kept_until_ms: after(epochs.saturating_sub(1)),
        gone_by_ms: after(epochs),
        due: due_from_ms(state, seq, terms).is_some_and(|from_ms| now_ms >= from_ms),
    })
}

/// Time and epochs of the last purchase of the blob that ends with a turn. A blob that its author stored has
/// the ordered epochs.
fn bought(state: &State, (turn, meta): (&HistoryTurn, &TurnMeta), terms: StorageTerms) -> (u64, u32) {
    let closed = || state.turn(turn.link.seq + 1).is_some() || state.segment(turn.link.segment).is_closed();
    let ordered = meta.ordered.map(|ordered| (ordered.open_epochs, ordered.closed_epochs));
    let (open_epochs, closed_epochs) = ordered.unwrap_or((terms.open_epochs, terms.closed_epochs));
    match meta.blob.paid {
        Some(paid) => (paid.stored_ms, paid.epochs),
        None if closed() => (first_known_ms(turn.link.time_ms, meta), closed_epochs),
        None => (first_known_ms(turn.link.time_ms, meta), open_epochs),
    }
}

/// When the blob that ends with a turn becomes due; none for a blob not known to be stored.
fn due_from_ms(state: &State, seq: u64, terms: StorageTerms) -> Option<u64> {
    let (turn, meta) = state.turn(seq).filter(|(_, meta)| meta.stored)?;
    let (stored_ms, epochs) = bought(state, (turn, meta), terms);
    let epoch_ms = terms.epoch_ms();
    // At least one whole epoch is certain until then.
    let certain = stored_ms.saturating_add(epoch_ms.saturating_mul(epochs.saturating_sub(2).into()));
    let certain = if epochs < 2 { 0 } else { certain.saturating_add(1) };
    // A second PUT in the same epoch adds nothing, but costs the same.
    let extends = stored_ms.saturating_add(epoch_ms / 2);
    // A possibly paid blob is not paid again at every start, but it is before its time is over.
    let doubt = meta.renewal_doubt_ms.map_or(0, |since_ms| since_ms.saturating_add(epoch_ms / DOUBT_WAIT));
    Some(certain.max(extends).max(doubt))
}

/// Storing time of a blob whose PUT is not in this journal: its turn's time, which in an imported session
/// only the link dates.
fn first_known_ms(link_ms: u64, meta: &TurnMeta) -> u64 {
    if meta.receipt.is_some() { meta.accepted_ms } else { meta.accepted_ms.min(link_ms) }
}
