//! The snapshot of a session: the entries that the next turns need, and facts about the turns that it leaves out.
//! Pure: time is a parameter.

use baton_proto::chain::effective_newest_first;

use crate::session::{
    lifetime,
    state::{Entry, OmittedTurns, State, StorageTerms},
    title,
};

/// When acknowledgements of turns that a snapshot leaves out are sent again.
const ACKS_AGAIN_MS: u64 = 24 * 3600 * 1000;

/// The entries of a snapshot. None while a turn is pending, turns may be missing, or the store lacks an early blob.
pub(crate) fn entries(state: &State, terms: StorageTerms, now_ms: u64) -> Option<Vec<Entry>> {
    let from = state.needed_from().filter(|_| state.pending.is_none() && state.torn_end == 0)?;
    let first = state.first_seq() + from as u64;
    let newest_first = state.history.iter().enumerate().rev();
    let here = effective_newest_first(newest_first.take_while(|(position, _)| *position >= from)).count();
    let (kept_until_ms, mut needed_ms) = lifetime::of_omitted(state, terms, first);
    if state.unacked.first().is_some_and(|seq| *seq < first) {
        needed_ms = needed_ms.min(now_ms.saturating_add(ACKS_AGAIN_MS));
    }
    let omitted = OmittedTurns {
        effective: state.effective_turns.saturating_sub(here as u64),
        title: if first > 0 { title::of_messages(state) } else { String::new() },
        kept_until_ms,
        needed_ms,
        terms,
    };
    Some(state.entries_from(from, Some(omitted)))
}
