//! Every context string and signature label of the protocol.
//!
//! A context string separates one use of BLAKE3's `derive_key` from all others; a label does the same for
//! signatures. They are part of the frozen byte format: any change is a new protocol version.

/// A BLAKE3 `derive_key` context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(pub(crate) &'static str);

impl Context {
    /// The context string for `derive_key`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

macro_rules! contexts {
    ($(#[$list_meta:meta])* $list:ident: $($(#[$meta:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$meta])* pub const $name: Context = Context(concat!("baton 2026-11-21 ", $text, " v1"));)*
        $(#[$list_meta])*
        pub const $list: &[(&str, Context)] = &[$((stringify!($name), $name)),*];
    };
}

contexts! {
    /// All contexts of the protocol with their names, for documentation and the test that they are distinct.
    ALL_CONTEXTS:
    /// Root secret to the session's Ed25519 seed.
    SESSION_SIGN = "session-sign";
    /// Session public key to session id.
    SESSION_ID = "session-id";
    /// Root secret and period to the head secret of the period.
    HEAD_PERIOD = "head-period";
    /// Head secret of a period to its head records' Ed25519 seed.
    HEAD_SIGN = "head-sign";
    /// Head public key to head index key.
    HEAD_INDEX = "head-index";
    /// Head secret of a period to the key of the outer part of its head records.
    HEAD_LOCATE = "head-locate";
    /// Root secret to the key of the inner part of a head record.
    HEAD_INNER = "head-inner";
    /// Root secret and segment number to the segment secret.
    SEGMENT = "segment";
    /// Segment secret and turn identity to the record key.
    RECORD = "record";
    /// Record key to the salt of the blob that this record completes.
    BLOB_SALT = "blob-salt";
    /// Segment secret and salt to the blob key.
    BLOB = "blob";
    /// Record key to the tag that fences memory items in a prompt.
    MEMORY_FENCE = "memory-fence";
    /// Record key to the key of the commitments in a receipt.
    COMMITMENT = "commitment";
    /// Sealing key to the key that makes the synthetic nonce.
    SIV_MAC = "siv-mac";
    /// Sealing key to the key that encrypts.
    SIV_ENCRYPT = "siv-encrypt";
    /// Root secret to the key that seals the client's journal at rest.
    CLIENT_JOURNAL = "client-journal";
    /// Hybrid share, encapsulation, exchange key id and binding to the secret of a turn.
    TURN_EXCHANGE = "turn-exchange";
    /// Secret of a turn to the payload key.
    TURN_PAYLOAD = "turn-payload";
    /// Secret of a turn, node nonce and authorisation hash to the reply key.
    TURN_REPLY = "turn-reply";
    /// Hybrid share, encapsulation, exchange key id and binding to the key of a memory envelope.
    MEMORY_EXCHANGE = "memory-exchange";
    /// Session id, session key and shard count (and parent, for a branch) to the genesis link hash.
    GENESIS = "genesis";
    /// Signed link to link hash.
    LINK_HASH = "link-hash";
    /// Sealed record to record hash.
    RECORD_HASH = "record-hash";
    /// Signed authorisation to its hash.
    AUTH_HASH = "auth-hash";
    /// Sealed payload to its hash.
    PAYLOAD_HASH = "payload-hash";
    /// Grant to its hash.
    GRANT_HASH = "grant-hash";
    /// Commitment key and sampling settings to their digest.
    SAMPLING_DIGEST = "sampling-digest";
    /// Signed receipt to its hash.
    RECEIPT_HASH = "receipt-hash";
    /// Model manifest to model id.
    MODEL_MANIFEST = "model-manifest";
    /// Commitment key and authorisation hash to the start of the running token hash.
    PROGRESS_START = "progress-start";
    /// Running token hash and one token to the next running token hash.
    PROGRESS_STEP = "progress-step";
    /// Commitment key and token ids of a resume prefix to their hash.
    RESUME_TOKENS = "resume-tokens";
    /// JSON schema text to its hash in the sampling settings.
    JSON_SCHEMA = "json-schema";
    /// Operator's secret to the key that shortens session ids in logs.
    LOG_PSEUDONYM = "log-pseudonym";
    /// Key file secret to the key that seals a program's own files.
    AT_REST = "at-rest";
    /// Blob key and digest to the proof that accompanies a request for the blob's bytes.
    BLOB_FETCH = "blob-fetch";
    /// Seed of a turn to the key of the sampler's random numbers.
    SAMPLER_RANDOMNESS = "sampler-randomness";
    /// Canonical description of a tokenizer to its hash in the model manifest.
    TOKENIZER = "tokenizer";
    /// Signed right to its hash; an encoded chain to the checksum of its text.
    RIGHT_HASH = "right-hash";
    /// Hybrid share, encapsulation, exchange key id and binding to the secret of a request for embeddings.
    EMBED_EXCHANGE = "embed-exchange";
    /// Secret of a request for embeddings to the key of its texts.
    EMBED_TEXTS = "embed-texts";
    /// Secret of a request for embeddings, node nonce and authorisation hash to the key of its reply.
    EMBED_REPLY_KEY = "embed-reply-key";
    /// Sealed texts to their hash.
    EMBED_TEXTS_HASH = "embed-texts-hash";
    /// Signed authorisation of embeddings to its hash.
    EMBED_AUTH_HASH = "embed-auth-hash";
    /// Exchange key to its id.
    EXCHANGE_KEY_ID = "exchange-key-id";
}

contexts! {
    /// Contexts for a relayer's own files alone: no wire object depends on them.
    RELAYER_CONTEXTS:
    /// Secret of an owner of memories to the key of content hashes.
    OWNER_CONTENT_HASH = "owner-content-hash";
    /// Secret of an owner of memories to the key of term hashes.
    OWNER_TERM_HASH = "owner-term-hash";
    /// Key of a segment of an owner's records to the key of the search rows beside them.
    OWNER_ROWS = "owner-rows";
    /// Secret of an owner of memories to the key of the numbers of named records.
    OWNER_RECORD_NAME = "owner-record-name";
    /// Secret of an owner of memories to the Ed25519 seed that signs exports.
    OWNER_EXPORT_SIGN = "owner-export-sign";
}

contexts! {
    /// Contexts for a client's own memory alone: no wire object depends on them.
    CLIENT_CONTEXTS:
    /// Root secret to the key of the tags that record a session's latest reader node.
    WARM_TAG = "warm-tag";
    /// Root secret and device id to the key of the tags in the ids of that device's turns.
    TURN_TAG = "turn-tag";
}

/// The purpose of a signature. The signed message is the label's length as one byte, the label, and the
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureLabel(pub(crate) &'static str);

impl SignatureLabel {
    /// The label's text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

macro_rules! labels {
    ($($(#[$meta:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$meta])* pub const $name: SignatureLabel = SignatureLabel(concat!("baton/v1/", $text));)*
        /// All labels with their names.
        pub const ALL_LABELS: &[(&str, SignatureLabel)] = &[$((stringify!($name), $name)),*];
    };
}

labels! {
    /// A link, by the serving node.
    LINK = "link";
    /// A turn authorisation, by the session key.
    TURN_AUTH = "turn-auth";
    /// A receipt, by the serving node.
    RECEIPT = "receipt";
    /// A note about a turn, by the session key.
    TURN_NOTE = "turn-note";
    /// The end of an exported session, by the session key.
    EXPORT_HEAD = "export-head";
    /// A progress note, by the serving node.
    PROGRESS = "progress";
    /// A head record, by the head key.
    HEAD = "head";
    /// A node record, by the node.
    NODE_RECORD = "node-record";
    /// A memory envelope, by the relayer.
    MEMORY = "memory";
    /// A client's hint for recall in a turn, by its owner's account key.
    RECALL_HINT = "recall-hint";
    /// A session's position, by the relayer that drove its last turn.
    CHAT_HEAD = "chat-head";
    /// An export of an owner's memory, by the owner's export key at the relayer and by the owner's account
    /// key.
    MEMORY_EXPORT = "memory-export";
    /// The URL at which a relayer serves, by the relayer.
    RELAYER_URL = "relayer-url";
    /// A right, by its giver or by the holder that narrows it.
    RIGHT = "right";
    /// The use of a quota for one turn, by its holder.
    QUOTA_PROOF = "quota-proof";
    /// An authorisation of embeddings, by a single-use key of the client.
    EMBED_AUTH = "embed-auth";
    /// Embeddings, by the node that made them.
    EMBED_REPLY = "embed-reply";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn contexts_and_labels_are_distinct() {
        let all = || ALL_CONTEXTS.iter().chain(RELAYER_CONTEXTS).chain(CLIENT_CONTEXTS);
        let contexts: HashSet<_> = all().map(|(_, context)| context.as_str()).collect();
        assert_eq!(contexts.len(), all().count());
        let labels: HashSet<_> = ALL_LABELS.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels.len(), ALL_LABELS.len());
        assert!(ALL_LABELS.iter().all(|(_, label)| label.as_str().len() < 256));
    }
}
