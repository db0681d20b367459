//! Memory for a turn: envelopes and hints.
//!
//! A relayer seals an envelope of memory for exactly one turn, which it cannot read. A hint carries the
//! client's search words to the relayer.

use baton_keys::{
    OpenError, SecretSigningKey,
    contexts::{MEMORY, RECALL_HINT, SignatureLabel},
    exchange::{EphemeralSecret, ExchangeKeyError, ExchangeSecret, MemorySecret},
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    codec,
    error::ErrorCode,
    ids::{AuthHash, Encapsulation, ExchangeKey, NodeId, PublicKey, SuiAddress},
    limits::{
        MAX_CLOCK_SKEW_MS, MAX_HINT_BYTES, MAX_MEMORY_BYTES, MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS,
        MAX_PLACE_BYTES, MEM_ENVELOPE_VERSION,
    },
    signed::{Signable, SignedObject},
    turn::TurnAuth,
};

/// One remembered fact with its source.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct MemoryItem {
    /// The fact, at most 4 KiB.
    pub text: String,
    /// Its source, in words for the user, at most 4 KiB.
    pub source: String,
    /// When it was learned, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

impl std::fmt::Debug for MemoryItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryItem({} bytes)", self.text.len())
    }
}

/// Memory for one turn, sealed to its node and signed by the relayer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemEnvelope {
    /// Format version, 2.
    pub version: u8,
    /// The only authorisation to which it belongs.
    pub auth_hash: AuthHash,
    /// The relayer, which signs.
    pub relayer: PublicKey,
    /// The node to which it is sealed.
    pub node: NodeId,
    /// The relayer's half of the exchange.
    pub encapsulation: Encapsulation,
    /// The items, best first, sealed.
    #[serde(with = "serde_bytes")]
    pub sealed: Vec<u8>,
    /// Most tokens that the items may take in the prompt.
    pub budget_tokens: u32,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When it expires.
    pub expires_ms: u64,
}

impl Signable for MemEnvelope {
    const LABEL: SignatureLabel = MEMORY;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::MemUnauthorized;
    const MAX_BYTES: usize = MAX_MEMORY_BYTES;
    const VERSION: u8 = MEM_ENVELOPE_VERSION;

    fn signer(&self) -> PublicKey {
        self.relayer
    }
}

/// The parts of memory that a turn may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecallScope {
    /// Everything.
    Full,
    /// The profile without intimate items, and the relationship between user and persona.
    #[default]
    NeutralAndRelationship,
    /// Only the relationship between user and persona, without intimate items.
    RelationshipOnly,
    /// Only the profile, without intimate items.
    NeutralOnly,
    /// Only the profile, with intimate items.
    InsightsOnly,
    /// Nothing.
    None,
}

/// A recall order to a relayer, for a turn that the relayer cannot read.
///
/// The client chooses the words. The owner of the memory, or a delegate, signs them for exactly one
/// authorisation.
///
/// The relayer's channel is encrypted and proves its identity, which `memory_from` in the authorisation
/// names. So the hint is signed but not sealed again. The relayer does not forward it: a node never learns
/// the owner.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecallHint {
    /// Format version, 1.
    pub version: u8,
    /// The only authorisation to which it belongs.
    pub auth_hash: AuthHash,
    /// The owner of the memory: the Sui address of an account key.
    pub owner: SuiAddress,
    /// The key that signs: the owner's, or a delegate's.
    pub key: PublicKey,
    /// Search words, at most 2 KiB; empty when the recall needs no search.
    pub hint: String,
    /// The session's name in the memory, at most 256 bytes.
    pub session: Option<String>,
    /// The session's project, at most 256 bytes.
    pub project: Option<String>,
    /// The session's persona, at most 256 bytes; none is the default persona.
    pub persona: Option<String>,
    /// The parts that the turn may use.
    pub scope: RecallScope,
}

impl std::fmt::Debug for RecallHint {
    /// Omits words and names: they belong to the user.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecallHint({} bytes, {:?})", self.hint.len(), self.scope)
    }
}

impl Signable for RecallHint {
    const LABEL: SignatureLabel = RECALL_HINT;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::MemUnauthorized;

    fn signer(&self) -> PublicKey {
        self.key
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let names = [&self.session, &self.project, &self.persona];
        let fits = self.hint.len() <= MAX_HINT_BYTES
            && names.iter().all(|name| name.as_ref().is_none_or(|name| name.len() <= MAX_PLACE_BYTES));
        if fits { Ok(()) } else { Err(ErrorCode::MemUnauthorized) }
    }
}

impl SignedObject<RecallHint> {
    /// The relayer's check: the hint belongs to `auth`, and `auth` names this relayer. It does not check
    /// whether `key` may sign for `owner`.
    ///
    /// # Errors
    /// [`ErrorCode::MemUnauthorized`].
    pub fn check_for(&self, auth: &SignedObject<TurnAuth>, relayer: &PublicKey) -> Result<(), ErrorCode> {
        let meant = self.auth_hash == auth.auth_hash() && auth.memory_from == Some(*relayer);
        if meant { Ok(()) } else { Err(ErrorCode::MemUnauthorized) }
    }
}

/// `auth hash(32) ‖ relayer(32) ‖ node(32)`: the envelope's key is bound to it.
fn binding(auth_hash: &AuthHash, relayer: &PublicKey, node: &NodeId) -> [u8; 96] {
    let mut bytes = [0u8; 96];
    bytes[..32].copy_from_slice(&auth_hash.0);
    bytes[32..64].copy_from_slice(&relayer.0);
    bytes[64..].copy_from_slice(&node.0);
    bytes
}

/// Checks the number of items, and their lengths.
///
/// # Errors
/// [`ErrorCode::MemUnauthorized`].
pub fn check_items(items: &[MemoryItem]) -> Result<(), ErrorCode> {
    let fits = items.len() <= MAX_MEMORY_ITEMS
        && items.iter().all(|item| {
            item.text.len() <= MAX_MEMORY_ITEM_BYTES && item.source.len() <= MAX_MEMORY_ITEM_BYTES
        });
    if fits { Ok(()) } else { Err(ErrorCode::MemUnauthorized) }
}

impl MemEnvelope {
    /// Seals items for the turn of an authorisation. `node_key` is the key whose id the authorisation names.
    ///
    /// # Errors
    /// [`ErrorCode::MemUnauthorized`] for more than the limits, [`ErrorCode::KxExpired`] when the node's key is another one or unusable.
    pub fn seal(
        items: &[MemoryItem],
        auth: &SignedObject<TurnAuth>,
        relayer: &SecretSigningKey,
        node_key: &ExchangeKey,
        ephemeral: EphemeralSecret,
        now_ms: u64,
    ) -> Result<SignedObject<Self>, ErrorCode> {
        check_items(items)?;
        let (auth_hash, key) = (auth.auth_hash(), relayer.public_key());
        if node_key.id() != auth.audience_key {
            return Err(ErrorCode::KxExpired);
        }
        let (encapsulation, secret) =
            MemorySecret::initiate(ephemeral, node_key, &binding(&auth_hash, &key, &auth.audience))
                .map_err(|_: ExchangeKeyError| ErrorCode::KxExpired)?;
        let envelope = Self {
            version: MEM_ENVELOPE_VERSION,
            auth_hash,
            relayer: key,
            node: auth.audience,
            encapsulation,
            sealed: secret.seal(&codec::encode_secret(&items)),
            budget_tokens: auth.memory_tokens,
            issued_ms: now_ms,
            expires_ms: auth.expires_ms,
        };
        let signed = SignedObject::sign(envelope, relayer);
        if signed.bytes().body.len() > MAX_MEMORY_BYTES {
            Err(ErrorCode::MemUnauthorized)
        } else {
            Ok(signed)
        }
    }
}

impl SignedObject<MemEnvelope> {
    /// The node's side: checks that the client allowed this relayer for this turn, and opens the items.
    ///
    /// # Errors
    /// [`ErrorCode::MemUnauthorized`], also for:
    /// - items that do not open, or are not the canonical encoding of a list;
    /// - an envelope out of its time, one that outlives its authorisation or expires before its issue;
    /// - more than the budget or the limits.
    pub fn open(
        &self,
        auth: &SignedObject<TurnAuth>,
        node_secret: &ExchangeSecret,
        now_ms: u64,
    ) -> Result<Vec<MemoryItem>, ErrorCode> {
        let meant = auth.memory_from == Some(self.relayer)
            && self.auth_hash == auth.auth_hash()
            && self.node == auth.audience;
        if !meant {
            return Err(ErrorCode::MemUnauthorized);
        }
        // An envelope expires no later than its turn, and not before its issue.
        let lifetime = self.issued_ms <= self.expires_ms && self.expires_ms <= auth.expires_ms;
        let current = now_ms <= self.expires_ms && self.issued_ms <= now_ms.saturating_add(MAX_CLOCK_SKEW_MS);
        if !lifetime || !current || self.budget_tokens > auth.memory_tokens {
            return Err(ErrorCode::MemUnauthorized);
        }
        let binding = binding(&self.auth_hash, &self.relayer, &self.node);
        let secret = MemorySecret::respond(node_secret, &self.encapsulation, &binding)
            .map_err(|_: ExchangeKeyError| ErrorCode::MemUnauthorized)?;
        let opened = secret.open(&self.sealed).map_err(|OpenError| ErrorCode::MemUnauthorized)?;
        // Malformed content gives the same code as content that does not open.
        let items: Vec<MemoryItem> =
            codec::decode(&opened, MAX_MEMORY_BYTES).map_err(|_| ErrorCode::MemUnauthorized)?;
        check_items(&items)?;
        Ok(items)
    }
}
