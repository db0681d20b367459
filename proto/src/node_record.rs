//! Node records: a node's signed description of its exchange keys, models and limits.

use baton_keys::{
    contexts::{MODEL_MANIFEST, NODE_RECORD, SignatureLabel},
    exchange::ExchangeKeyError,
    secret::kdf,
};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{ExchangeKey, ModelId, NodeId, PublicKey},
    limits::{
        MAX_CLOCK_SKEW_MS, MAX_EXCHANGE_KEY_LIFETIME_MS, MAX_RECORD_KEYS, MAX_RECORD_LIST,
        MAX_RECORD_TEXT_BYTES, MIN_BILLED_MIB, NODE_RECORD_VERSION,
    },
    receipt::EngineKind,
    signed::Signable,
    turn::StoragePolicy,
};

/// An exchange key and the period for sealing to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyWindow {
    /// The hybrid key.
    pub key: ExchangeKey,
    /// Start, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End; at most a day later.
    pub until_ms: u64,
}

/// The description of a model; its hash is the model's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// Format version, 2.
    pub version: u8,
    /// Architecture, as the weights name it. For a proxied model: `proxied:` and its name at the server
    /// behind the node.
    pub architecture: String,
    /// SHA-256 of the weights file; zero for a proxied model.
    pub weights_sha256: [u8; 32],
    /// BLAKE3 of the tokenizer's canonical description; zero for a proxied model.
    pub tokenizer_hash: [u8; 32],
    /// BLAKE3 of the chat template's text; zero for a proxied model.
    pub template_hash: [u8; 32],
    /// Revision of the native engine: the number of everything else that decides an answer's bits. 0 for all other
    /// engines.
    pub engine_revision: u32,
}

impl ModelManifest {
    /// `KDF("model-manifest", encoding)`.
    #[must_use]
    pub fn model_id(&self) -> ModelId {
        ModelId(kdf(MODEL_MANIFEST, &[&codec::encode(self)]))
    }
}

/// A model that a node serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOffer {
    /// The model's manifest hash.
    pub model: ModelId,
    /// A name for users.
    pub name: String,
    /// The kind of engine.
    pub engine: EngineKind,
    /// Tokens of context.
    pub context_tokens: u32,
    /// Price of a thousand input tokens, in millionths of the node's unit.
    pub input_price: u64,
    /// Price of a thousand output tokens, in millionths of the node's unit.
    pub output_price: u64,
}

/// A node's own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLimits {
    /// Turns served at once.
    pub slots: u32,
    /// Turns that may wait.
    pub queue: u32,
    /// Turns a minute from one peer.
    pub turns_per_minute: u32,
    /// Most tokens of an answer.
    pub max_output_tokens: u32,
}

/// A node's terms for the storage of blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageOffer {
    /// Price of a [storage unit](storage_units), in millionths of the node's unit.
    pub price: u64,
    /// Most epochs for the blob of a turn under a grant.
    pub max_epochs: u32,
    /// Most epochs for the blob of a turn without a grant.
    pub unknown_max_epochs: u32,
}

/// Most epochs ahead that Walrus sells.
pub const MAX_EPOCHS: u32 = 53;
/// Default of [`StorageOffer::unknown_max_epochs`]: identities are free, so a peer without a grant gets a
/// tenth of the longest time. Ten weeks on Walrus's mainnet let a client come back and renew.
pub const UNKNOWN_MAX_EPOCHS: u32 = 5;

impl Default for StorageOffer {
    /// Free, and as long as Walrus sells under a grant.
    fn default() -> Self {
        Self { price: 0, max_epochs: MAX_EPOCHS, unknown_max_epochs: UNKNOWN_MAX_EPOCHS }
    }
}

impl StorageOffer {
    /// Most epochs for a blob.
    #[must_use]
    pub fn epochs(&self, granted: bool) -> u32 {
        if granted { self.max_epochs.max(self.unknown_max_epochs) } else { self.unknown_max_epochs }
    }

    /// The part of a policy that the node offers: never less than an epoch.
    #[must_use]
    pub fn limit(&self, policy: StoragePolicy, granted: bool) -> StoragePolicy {
        let most = self.epochs(granted).max(1);
        StoragePolicy {
            open_epochs: policy.open_epochs.min(most),
            closed_epochs: policy.closed_epochs.min(most),
            ..policy
        }
    }
}

/// Storage units of a blob: MiB x epochs, with at least [`MIN_BILLED_MIB`] and one epoch.
#[must_use]
pub fn storage_units(bytes: usize, epochs: u32) -> u64 {
    let mib = u64::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u64::MAX).max(MIN_BILLED_MIB);
    mib.saturating_mul(epochs.max(1).into())
}

/// The mismatch between a record's times and a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfTime {
    /// Its first key begins this much later.
    NotBegun {
        /// Milliseconds.
        by_ms: u64,
    },
    /// It ended this much earlier.
    RanOut {
        /// Milliseconds.
        by_ms: u64,
    },
}

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Format version, 3.
    pub version: u8,
    /// The node, which signs.
    pub node: NodeId,
    /// Rises with every publication.
    pub sequence: u64,
    /// Multiaddresses.
    pub addresses: Vec<String>,
    /// Exchange keys, the current one first.
    pub keys: Vec<KeyWindow>,
    /// Models served.
    pub models: Vec<ModelOffer>,
    /// The node's limits.
    pub limits: NodeLimits,
    /// The node's terms for the storage of blobs.
    pub storage: StorageOffer,
    /// Session chain versions spoken.
    pub versions: Vec<u8>,
    /// Name and version of the software.
    pub software: String,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When it expires.
    pub expires_ms: u64,
}

impl Signable for NodeRecord {
    const LABEL: SignatureLabel = NODE_RECORD;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadNodeSignature;
    const VERSION: u8 = NODE_RECORD_VERSION;

    fn signer(&self) -> PublicKey {
        self.node.public_key()
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let lists = [self.addresses.len(), self.models.len(), self.versions.len()];
        let texts =
            self.addresses.iter().chain(self.models.iter().map(|offer| &offer.name)).chain([&self.software]);
        if lists.iter().any(|length| *length > MAX_RECORD_LIST)
            || self.keys.len() > MAX_RECORD_KEYS
            || texts.into_iter().any(|text| text.len() > MAX_RECORD_TEXT_BYTES)
        {
            return Err(ErrorCode::FrameTooLarge);
        }
        let windows = self.keys.iter().all(|window| {
            window
                .until_ms
                .checked_sub(window.from_ms)
                .is_some_and(|lifetime| lifetime <= MAX_EXCHANGE_KEY_LIFETIME_MS)
        });
        if windows && self.issued_ms < self.expires_ms { Ok(()) } else { Err(ErrorCode::KxExpired) }
    }
}

impl NodeRecord {
    /// The exchange key for sealing now. The node's clock and the caller's may differ by
    /// [`MAX_CLOCK_SKEW_MS`]. A key that is valid without that tolerance comes first.
    ///
    /// # Errors
    /// [`ErrorCode::KxExpired`] when the record, or every key in it, is out of date.
    pub fn current_key(&self, now_ms: u64) -> Result<&ExchangeKey, ErrorCode> {
        if now_ms > self.expires_ms.saturating_add(MAX_CLOCK_SKEW_MS) {
            return Err(ErrorCode::KxExpired);
        }
        let holds = |window: &&KeyWindow, skew_ms: u64| {
            window.from_ms <= now_ms.saturating_add(skew_ms)
                && now_ms <= window.until_ms.saturating_add(skew_ms)
        };
        let exact = self.keys.iter().find(|window| holds(window, 0));
        let nearly = || self.keys.iter().find(|window| holds(window, MAX_CLOCK_SKEW_MS));
        exact.or_else(nearly).map(|window| &window.key).ok_or(ErrorCode::KxExpired)
    }

    /// Checks that something can be sealed to every key. It costs a tenth of a millisecond a key, so only a
    /// client does it, once for each record.
    ///
    /// # Errors
    /// [`ExchangeKeyError`], which names the bad part of the first bad key.
    pub fn check_keys(&self) -> Result<(), ExchangeKeyError> {
        self.keys.iter().try_for_each(|window| window.key.check())
    }

    /// The mismatch between the record's times and the caller's clock. None for a record with a current key,
    /// and for a record without any key.
    #[must_use]
    pub fn out_of_time(&self, now_ms: u64) -> Option<OutOfTime> {
        if self.current_key(now_ms).is_ok() {
            return None;
        }
        let first = self.keys.iter().map(|window| window.from_ms).min()?;
        let last = self.keys.iter().map(|window| window.until_ms).max()?.min(self.expires_ms);
        if now_ms < first {
            Some(OutOfTime::NotBegun { by_ms: first - now_ms })
        } else {
            // A time between two keys counts as after them.
            Some(OutOfTime::RanOut { by_ms: now_ms.saturating_sub(last) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_SIGNED_BYTES;

    const NOW: u64 = 1_800_000_000_000;
    const LIFE: u64 = MAX_EXCHANGE_KEY_LIFETIME_MS;

    fn record(windows: &[(u8, u64, u64)], expires_ms: u64) -> NodeRecord {
        let key = |(key, from_ms, until_ms): &(u8, u64, u64)| KeyWindow {
            key: ExchangeKey::from([*key; ExchangeKey::LEN]),
            from_ms: *from_ms,
            until_ms: *until_ms,
        };
        NodeRecord {
            version: NODE_RECORD_VERSION,
            node: NodeId([1; 32]),
            sequence: 1,
            addresses: Vec::new(),
            keys: windows.iter().map(key).collect(),
            models: Vec::new(),
            limits: NodeLimits { slots: 1, queue: 1, turns_per_minute: 1, max_output_tokens: 1 },
            storage: StorageOffer::default(),
            versions: vec![1],
            software: String::new(),
            issued_ms: NOW,
            expires_ms,
        }
    }

    #[test]
    fn clocks_may_differ_by_thirty_seconds_at_both_ends_and_no_more() {
        let one = record(&[(1, NOW, NOW + LIFE)], NOW + LIFE / 2);
        let (begin, end) = (NOW - MAX_CLOCK_SKEW_MS, NOW + LIFE / 2 + MAX_CLOCK_SKEW_MS);
        for now in [begin, NOW, NOW + 1, end] {
            assert_eq!(
                (one.current_key(now), one.out_of_time(now)),
                (Ok(&ExchangeKey::from([1; ExchangeKey::LEN])), None),
                "{now}"
            );
        }
        assert_eq!(one.current_key(begin - 1), Err(ErrorCode::KxExpired));
        assert_eq!(one.out_of_time(begin - 1), Some(OutOfTime::NotBegun { by_ms: MAX_CLOCK_SKEW_MS + 1 }));
        assert_eq!(one.current_key(end + 1), Err(ErrorCode::KxExpired));
        assert_eq!(one.out_of_time(end + 1), Some(OutOfTime::RanOut { by_ms: MAX_CLOCK_SKEW_MS + 1 }));
        assert_eq!(record(&[], NOW + LIFE).out_of_time(NOW), None, "nothing to tell the time by");
    }

    #[test]
    fn an_order_is_lowered_to_the_offer_and_a_small_blob_counts_like_a_large_one() {
        let offer = StorageOffer { price: 1, max_epochs: 20, unknown_max_epochs: 5 };
        let wanted = StoragePolicy { open_epochs: 3, closed_epochs: 53, send_object_to: None };
        let lowered = |granted| {
            let policy = offer.limit(wanted, granted);
            (policy.open_epochs, policy.closed_epochs)
        };
        assert_eq!((lowered(false), lowered(true)), ((3, 5), (3, 20)));
        let none = StorageOffer { max_epochs: 0, unknown_max_epochs: 0, ..offer };
        assert_eq!(none.limit(wanted, true).closed_epochs, 1, "an epoch at least");
        let mib = 1 << 20;
        assert_eq!([1, 2 * mib, 13 * mib].map(|bytes| storage_units(bytes, 5)), [65; 3]);
        assert_eq!((storage_units(13 * mib + 1, 5), storage_units(0, 0)), (70, 13));
        assert_eq!(storage_units(usize::MAX, u32::MAX), u64::MAX, "no overflow");
    }

    #[test]
    fn the_largest_record_fits_a_signed_object_and_one_key_more_is_refused() {
        let windows = [(1, NOW, NOW + LIFE); MAX_RECORD_KEYS + 1];
        let (mut full, over) = (record(&windows[1..], NOW + 1), record(&windows, NOW + 1));
        assert_eq!(over.check(), Err(ErrorCode::FrameTooLarge));
        let text = "x".repeat(MAX_RECORD_TEXT_BYTES);
        let offer = ModelOffer {
            model: ModelId([1; 32]),
            name: text.clone(),
            engine: EngineKind::Native,
            context_tokens: 1,
            input_price: 1,
            output_price: 1,
        };
        full.addresses = vec![text.clone(); MAX_RECORD_LIST];
        full.models = vec![offer; MAX_RECORD_LIST];
        full.versions = vec![1; MAX_RECORD_LIST];
        full.software = text;
        assert_eq!(full.check(), Ok(()));
        let length = codec::encode(&full).len();
        assert!(length + 72 <= MAX_SIGNED_BYTES, "{length}");
    }

    #[test]
    fn a_key_that_holds_comes_before_one_that_nearly_does() {
        let two = record(&[(1, NOW - LIFE, NOW), (2, NOW + 10, NOW + LIFE)], NOW + LIFE);
        for (now, key) in [(NOW - 20_000, 1), (NOW, 1), (NOW + 5, 1), (NOW + 10, 2), (NOW + 20_000, 2)] {
            assert_eq!(two.current_key(now), Ok(&ExchangeKey::from([key; ExchangeKey::LEN])), "{now}");
        }
    }
}
