//! The limits of memory, with their reasons.

use std::time::Duration;

pub use baton_proto::text::is_name;

/// Most bytes of an outside name (session, project, persona): room for any id or a readable title.
pub const MAX_NAME_BYTES: usize = baton_proto::limits::MAX_PLACE_BYTES;
/// Most bytes of one item's text: a message of a conversation is an item, and has at most 512 KiB.
pub const MAX_TEXT_BYTES: usize = 512 * 1024;
/// Most bytes of a fact: it must fit a memory item of a prompt.
pub const MAX_FACT_BYTES: usize = 4 * 1024;
/// Most bytes of a query that are used: more words find less.
pub const MAX_QUERY_BYTES: usize = 8 * 1024;
/// Default limit of an owner's items: about 500 MB open in memory.
pub const MAX_ITEMS: u64 = 250_000;
/// Most items of a page, and most hits of a recall.
pub const MAX_PAGE: usize = 200;
/// Most items that a deletion names as holders of the same words.
pub const MAX_HOLDERS: usize = 200;
/// Most dropped items that a recall names.
pub const MAX_DROPPED: usize = 64;
/// Most projects, sessions and personas of an owner, each.
pub const MAX_PLACES: u32 = 100_000;
/// Most items of one bulk request.
pub const MAX_BULK: usize = 100;
/// Most idempotency keys that are remembered for an owner, the latest. Retries come within minutes; 1,024
/// keys are about ten bulk requests.
pub const MAX_CALL_ANSWERS: usize = 1_024;
/// Most bytes of an idempotency key: a UUID has 36.
pub const MAX_IDEMPOTENCY_BYTES: usize = 256;
/// Most records of one change.
pub const MAX_RECORDS: usize = 1_024;
/// Time limit of a recall, unless the service sets another; after it, the recall returns its partial result (F5).
pub const RECALL_DEADLINE: Duration = Duration::from_millis(300);
/// Most small owners open at once; opening another closes and wipes the least recently used one.
pub const MAX_OPEN_OWNERS: usize = 1_000;
/// The same with a database that searches: an open owner saves reading its log, which takes milliseconds for a small one.
pub const MAX_OPEN_OWNERS_WITH_ROWS: usize = 128;
/// Approximate bytes of an open owner from which it counts as large: about 4,000 facts, which open in 50 milliseconds.
pub const LARGE_OWNER_BYTES: u64 = 8 << 20;
/// Approximate bytes of open owners; beyond it, the least recently used ones are closed.
pub const MAX_OPEN_BYTES: u64 = 2 << 30;
/// Time without a request after which an owner is closed.
pub const OWNER_IDLE: Duration = Duration::from_secs(300);
/// Quilts that a restore reads at once.
pub const RESTORE_AT_ONCE: usize = 8;
/// The form of an outside name, for errors.
pub const NAME_FORM: &str = "a name has 1 to 256 bytes, not only spaces, and no control characters";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_seen_and_has_bounds() {
        for name in ["a", " a ", "Bücher\u{a0}2", &"x".repeat(MAX_NAME_BYTES)] {
            assert!(is_name(name), "{name:?}");
        }
        for text in ["", " ", "\u{3000}\u{a0}", "a\n", "a\u{9c}", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert!(!is_name(text), "{text:?}");
        }
    }
}
