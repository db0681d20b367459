//! Every limit of memory, with its reason.

use std::time::Duration;

/// Most bytes of an outside name (session, project, persona): room for any id or a readable title.
pub const MAX_NAME_BYTES: usize = 256;
/// Most bytes of one item's text: a message of a conversation has at most 512 KiB, and an item is one.
pub const MAX_TEXT_BYTES: usize = 512 * 1024;
/// Most bytes of a fact: what a model is to be told of one must fit a memory item.
pub const MAX_FACT_BYTES: usize = 4 * 1024;
/// Most bytes of a query that are looked at: more words find less.
pub const MAX_QUERY_BYTES: usize = 8 * 1024;
/// Most items of an owner by default: some 500 MB open in memory.
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
/// Idempotency keys that are known of an owner, the latest: retries come within minutes, and these are ten bulk requests.
pub const MAX_ANSWERED: usize = 1_024;
/// Most bytes of an idempotency key: a UUID has 36.
pub const MAX_IDEMPOTENCY_BYTES: usize = 256;
/// Most records that a door changes together.
pub const MAX_RECORDS: usize = 1_024;
/// Time that a recall may take, after which it does what it can with what it has (F5).
pub const RECALL_DEADLINE: Duration = Duration::from_millis(300);
/// Owners open at once; the one that was idle longest is closed, and wiped, for another.
pub const MAX_OPEN_OWNERS: usize = 1_000;
/// Bytes of owners open at once, about; beyond it the ones idle longest are closed.
pub const MAX_OPEN_BYTES: u64 = 2 << 30;
/// How long an owner stays open without a request.
pub const OWNER_IDLE: Duration = Duration::from_secs(300);
/// Contents read from Walrus at once by a restore.
pub const RESTORE_AT_ONCE: usize = 8;
/// How long after a deletion the keys of a database's index rows may live on: deletions within that time share one rewriting
/// of the rows. The rewriting itself, and the time in which no relayer runs, come on top.
pub const INDEX_KEY_LINGERS: Duration = Duration::from_secs(600);
