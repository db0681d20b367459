//! Every limit of the protocol with its reason. Both sides check them; `docs/PROTOCOL.md` repeats the table.

macro_rules! limits {
    ($($(#[$doc:meta])* pub const $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*

        /// All of them by name.
        pub const ALL_LIMITS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

limits! {
/// Version of the session chain and of every signed object without a version of its own.
pub const VERSION: u8 = 1;
/// Version of node records: 3 has hybrid exchange keys.
pub const NODE_RECORD_VERSION: u8 = 3;

/// Version of model manifests: 2 has the engine's revision.
pub const MODEL_MANIFEST_VERSION: u8 = 2;
/// Version of turn authorisations: 4 orders checks of earlier answers.
pub const TURN_AUTH_VERSION: u8 = 4;
/// Version of receipts: 3 has the results of checks.
pub const RECEIPT_VERSION: u8 = 3;
/// Version of payloads: 5 has `min_p` and the inputs of checks.
pub const PAYLOAD_VERSION: u8 = 5;
/// Version of memory envelopes: 2 is sealed by a hybrid exchange.
pub const MEM_ENVELOPE_VERSION: u8 = 2;
/// Version of authorisations of embeddings: 2 names the exchange key by its id.
pub const EMBED_AUTH_VERSION: u8 = 2;
/// Version of head records: 3 names the branches that forks left.
pub const HEAD_RECORD_VERSION: u8 = 3;

/// Largest object that the codec decodes: a turn request with two inline blobs and some room.
pub const MAX_OBJECT_BYTES: usize = 8 * 1024 * 1024;
/// Largest frame of a turn substream: the largest object.
pub const MAX_FRAME_BYTES: usize = MAX_OBJECT_BYTES;
/// Largest frame that a client accepts from a node: a blob with its framing.
pub const MAX_NODE_FRAME_BYTES: usize = MAX_BLOB_BYTES + 4096;

/// Largest text of one message: room for a 128k-token document, far below a blob.
pub const MAX_MESSAGE_BYTES: usize = 512 * 1024;
/// Most messages in one record: short ones of a long conversation that another program began. Bytes bound long ones.
pub const MAX_MESSAGES: usize = 4096;
/// Longest name or tool call id of a message.
pub const MAX_NAME_BYTES: usize = 128;
/// Smallest padded record.
pub const MIN_RECORD_BUCKET: usize = 256;
/// Largest padded record: with the rest of a segment it still fits one blob.
pub const MAX_RECORD_BUCKET: usize = 1024 * 1024;

/// Most turns of a segment.
pub const SEGMENT_TURNS: usize = 16;
/// Encoded bytes at which a segment closes.
pub const SEGMENT_BYTES: usize = 256 * 1024;
/// Smallest padded segment.
pub const MIN_SEGMENT_BUCKET: usize = 1024;
/// Largest padded segment: just under [`SEGMENT_BYTES`] plus one largest record.
pub const MAX_SEGMENT_BUCKET: usize = 2 * 1024 * 1024;
/// Largest stored blob: salt, synthetic nonce and tag around the largest padded segment.
pub const MAX_BLOB_BYTES: usize = MAX_SEGMENT_BUCKET + 16 + 48;

/// Most blobs that a turn may ask a node to read: the open segment and eight closed ones.
pub const MAX_READ_BLOBS: usize = 9;
/// Most record keys in a grant: all turns of those blobs.
pub const MAX_READ_RECORDS: usize = MAX_READ_BLOBS * SEGMENT_TURNS;
/// Most blobs inside a request: the two latest, as the store may not have certified them yet.
pub const MAX_INLINE_BLOBS: usize = 2;
/// Largest sealed payload: the largest record, as much pinned system text, the keys, and the encapsulation.
pub const MAX_PAYLOAD_BYTES: usize = 2 * 1024 * 1024 + 64 * 1024;
/// Payloads are padded to a multiple of this, so that an ordinary message does not show its length.
pub const PAYLOAD_BLOCK: usize = 1024;
/// Reply events are padded to a multiple of this, so that no token shows its length.
pub const REPLY_BLOCK: usize = 128;
/// The outer part of a head record is padded to a multiple of this: nine blobs and a parent fit.
pub const HEAD_OUTER_BLOCK: usize = 1024;
/// The inner part of a head record is padded to a multiple of this: sixteen devices fit.
pub const HEAD_INNER_BLOCK: usize = 512;
/// Longest reason of a failed turn.
pub const MAX_REASON_BYTES: usize = 256;
/// Largest JSON schema of an answer.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Most alternatives reported for each token.
pub const MAX_LOGPROBS: u8 = 20;
/// Largest body of a signed object without a limit of its own.
pub const MAX_SIGNED_BYTES: usize = 16 * 1024;

/// Most stop strings.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string.
pub const MAX_STOP_BYTES: usize = 256;
/// Most tokens whose likelihood a turn changes, as in OpenAI's API.
pub const MAX_TOKEN_BIASES: usize = 300;
/// Most tokens that a client may order for an answer.
pub const MAX_OUTPUT_TOKENS: u32 = 32 * 1024;
/// Most earlier answers that a turn's node checks.
pub const MAX_CHECKS: usize = 4;
/// Most tokens of an answer that one check covers.
pub const CHECKED_TOKENS: u32 = 32;
/// Most tokens of a resume prefix.
pub const MAX_RESUME_TOKENS: usize = MAX_OUTPUT_TOKENS as usize;

/// Longest life of a turn authorisation.
pub const MAX_AUTH_LIFETIME_MS: u64 = 120_000;
/// Clock skew allowed: an authorisation's issue time ahead of a node's clock, and a client's clock outside
/// the times of a node record.
pub const MAX_CLOCK_SKEW_MS: u64 = 30_000;
/// How far a link's time may lie ahead of the client's clock: as far as the clock of a node that still admits
/// the authorisation.
pub const MAX_LINK_LEAD_MS: u64 = MAX_AUTH_LIFETIME_MS;
/// Longest time between the expiry of an authorisation and the time of its link: the longest answer of a slow
/// node. It bounds a link's time for a reader that did not see the turn.
pub const MAX_TURN_MS: u64 = 24 * 3600 * 1000;
/// Longest life of a node's exchange key.
pub const MAX_EXCHANGE_KEY_LIFETIME_MS: u64 = 24 * 3600 * 1000;
/// Time after a key's expiry for which a node keeps its exchange secret, for turns already under way.
pub const EXCHANGE_KEY_GRACE_MS: u64 = 3600 * 1000;
/// Longest life of a head record.
pub const MAX_HEAD_LIFETIME_MS: u64 = 400 * 24 * 3600 * 1000;
/// Length of a period of head records, a week: the longest time for which a granted place is of use. A shorter
/// one would cost a client with its root alone more look-ups.
pub const HEAD_PERIOD_MS: u64 = 7 * 24 * 3600 * 1000;
/// Most periods in which a head record of a session may lie: those of [`MAX_HEAD_LIFETIME_MS`], the present
/// one, and the next one for a clock that is ahead.
pub const MAX_HEAD_PERIODS: usize = 60;

/// Largest body of a head record; in the DHT, of the whole encoded record.
pub const MAX_HEAD_BYTES: usize = 4096;
/// Most branches in a head record.
pub const MAX_BRANCHES: usize = 8;
/// Most device leases in a head record.
pub const MAX_DEVICES: usize = 16;

/// Largest body of a memory envelope.
pub const MAX_MEMORY_BYTES: usize = 64 * 1024;
/// Most items in a memory envelope.
pub const MAX_MEMORY_ITEMS: usize = 64;
/// Largest text of one memory item.
pub const MAX_MEMORY_ITEM_BYTES: usize = 4096;

/// Most addresses, models and versions in a node record.
pub const MAX_RECORD_LIST: usize = 16;
/// Most exchange keys in a node record: the current key, the next one, and two for a clock that was set back. At
/// 1,216 bytes each, the largest record still keeps [`MAX_SIGNED_BYTES`].
pub const MAX_RECORD_KEYS: usize = 4;
/// Longest address or name in a node record.
pub const MAX_RECORD_TEXT_BYTES: usize = 256;

/// Fewest MiB that a stored blob counts for. Walrus bills 66 MB for the smallest blob at 1,000 shards,
/// because every shard stores hashes of all of them; that is the encoded size of about 13 MiB. No blob of a
/// session is larger, so each counts for this.
pub const MIN_BILLED_MIB: u64 = 13;

/// Longest hint for recall: a few sentences.
pub const MAX_HINT_BYTES: usize = 2048;
/// Longest name of a session, project or persona in a hint.
pub const MAX_PLACE_BYTES: usize = 256;

/// Most links of a chain of rights.
pub const MAX_RIGHT_CHAIN: usize = 4;
/// Most places, and most models, in a right.
pub const MAX_RIGHT_LIST: usize = 16;
/// Longest validity of a right to memory; for a longer time, the owner signs another.
pub const MAX_MEMORY_RIGHT_MS: u64 = 366 * 86_400_000;

/// Most texts of one request for embeddings: a batch that a small model embeds in about a second.
pub const MAX_EMBED_TEXTS: usize = 64;
/// Longest text to embed: embedding models read a few hundred word pieces.
pub const MAX_EMBED_TEXT_BYTES: usize = 8 * 1024;
/// Largest sealed texts of a request: the most texts of the longest kind, with lengths, padding and encapsulation.
pub const MAX_EMBED_SEALED_BYTES: usize = MAX_EMBED_TEXTS * (MAX_EMBED_TEXT_BYTES + 8) + 3 * PAYLOAD_BLOCK;
/// Largest frame of a request for embeddings: the texts and a chain of grants.
pub const MAX_EMBED_FRAME_BYTES: usize =
    MAX_EMBED_SEALED_BYTES + (MAX_RIGHT_CHAIN + 2) * (MAX_SIGNED_BYTES + 72);
/// Most components of a vector.
pub const MAX_EMBED_DIMENSIONS: usize = 4096;
/// Largest body of a signed reply for embeddings: the most vectors of the longest kind.
pub const MAX_EMBED_REPLY_BYTES: usize = MAX_EMBED_TEXTS * (4 * MAX_EMBED_DIMENSIONS + 12) + 1024;
/// Largest frame of a reply: the reply with its padding and seal.
pub const MAX_EMBED_ANSWER_BYTES: usize = MAX_EMBED_REPLY_BYTES + 2 * PAYLOAD_BLOCK;

/// Tokens between two progress notes.
pub const PROGRESS_TOKENS: u32 = 32;
/// Time for which only the author of a turn stores its blob.
pub const AUTHOR_STORES_ALONE_MS: u64 = 60_000;
}
