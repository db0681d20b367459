//! Until when the store keeps a session's blobs, and which are due to be renewed. Pure: time is a parameter.
//!
//! Walrus keeps a blob from the epoch of its PUT for so many epochs, that one counted. HTTP tells neither the present
//! epoch nor when it ends, so what is certain is only this: a blob stored for e epochs of length d stays for
//! (e - 1)·d at the least and e·d at the most. It is renewed while at least one whole epoch is certain.

use std::time::Duration;

use baton_proto::ids::BlobId;

use crate::state::{State, TurnMeta};

/// The part of an epoch for which a renewal in doubt is left alone: of the last certain epoch there is then
/// time for several.
const DOUBT_WAIT: u64 = 8;

/// How long an epoch is, and for how many of them blobs are stored where that is not known of a blob.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) epoch: Duration,
    pub(crate) open_epochs: u32,
    pub(crate) closed_epochs: u32,
}

/// A blob that a session needs, and until when the store keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLifetime {
    /// Its last turn.
    pub seq: u64,
    /// Its Walrus ID, once computed.
    pub blob_id: Option<BlobId>,
    /// Bytes.
    pub length: u32,
    /// Whether the store is known to have taken it; the other fields are then of its last PUT.
    pub stored: bool,
    /// First epoch in which it is gone, where the store said.
    pub end_epoch: Option<u64>,
    /// It is kept until then at the least: milliseconds since the Unix epoch.
    pub kept_until_ms: u64,
    /// It is gone by then.
    pub gone_by_ms: u64,
    /// Whether it is time to renew it.
    pub due: bool,
}

/// The lifetimes of all blobs that a session needs, oldest first: the last of each segment. Those before it in a
/// segment are superseded and may run out.
pub(crate) fn lifetimes(state: &State, terms: Terms, now_ms: u64) -> Vec<BlobLifetime> {
    let ends = state.segment_ends(usize::MAX).into_iter().rev();
    ends.filter_map(|seq| lifetime(state, seq, terms, now_ms)).collect()
}

/// Whether any of them is due.
pub(crate) fn any_due(state: &State, terms: Terms, now_ms: u64) -> bool {
    lifetimes(state, terms, now_ms).iter().any(|lifetime| lifetime.due)
}

/// Until when all of them that are stored are kept at the least.
pub(crate) fn kept_until_ms(state: &State, terms: Terms) -> Option<u64> {
    let stored = lifetimes(state, terms, 0).into_iter().filter(|lifetime| lifetime.stored);
    stored.map(|lifetime| lifetime.kept_until_ms).min()
}

fn lifetime(state: &State, seq: u64, terms: Terms, now_ms: u64) -> Option<BlobLifetime> {
    let (turn, meta) = state.turn(seq)?;
    let closed = state.segment(turn.link.segment).is_closed();
    let usual = if closed { terms.closed_epochs } else { terms.open_epochs };
    let (stored_ms, epochs) = match meta.paid {
        Some(paid) => (paid.stored_ms, paid.epochs),
        None => (first_known_ms(turn.link.time_ms, meta), usual),
    };
    let epoch_ms = u64::try_from(terms.epoch.as_millis()).unwrap_or(u64::MAX);
    let after = |epochs: u32| stored_ms.saturating_add(epoch_ms.saturating_mul(epochs.into()));
    let kept_until_ms = after(epochs.saturating_sub(1));
    // In the epoch of its last PUT another one adds nothing, and would be bought all the same.
    let extends = now_ms.saturating_sub(stored_ms) >= epoch_ms / 2;
    // One that may have been paid is not paid again at every start; but it is, before the time is over.
    let waits =
        meta.renewal_doubt_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) < epoch_ms / DOUBT_WAIT);
    Some(BlobLifetime {
        seq,
        blob_id: meta.blob_id,
        length: meta.length,
        stored: meta.stored,
        end_epoch: meta.end_epoch,
        kept_until_ms,
        gone_by_ms: after(epochs),
        due: meta.stored && extends && !waits && now_ms.saturating_add(epoch_ms) > kept_until_ms,
    })
}

/// When a blob was stored whose PUT this journal knows nothing of: with its turn, which in a session brought here from
/// elsewhere only the link dates.
fn first_known_ms(link_ms: u64, meta: &TurnMeta) -> u64 {
    if meta.receipt.is_some() { meta.accepted_ms } else { meta.accepted_ms.min(link_ms) }
}
