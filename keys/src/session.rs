//! The key schedule of a session. All keys derive from one 32-byte root, which no node, relayer or store ever
//! holds.
//!
//! Each derivation is an independent leaf. There is no ratchet: the holder of one ratchet step would hold all
//! later steps.

use zeroize::Zeroizing;

use crate::{
    contexts::{
        BLOB, BLOB_FETCH, BLOB_SALT, CLIENT_JOURNAL, COMMITMENT, HEAD_INDEX, HEAD_INNER, HEAD_LOCATE,
        HEAD_PERIOD, HEAD_SIGN, MEMORY_FENCE, RECORD, SEGMENT, SESSION_ID, SESSION_SIGN, TURN_TAG, WARM_TAG,
    },
    ids::{BlobSalt, HeadIndexKey, NodeId, PublicKey, SessionId, TurnId},
    seal::{OpenError, open_deterministic, open_random, seal_deterministic, seal_random},
    secret::{fill_random, kdf, random_bytes, secret_key},
    sign::SecretSigningKey,
};

/// The root secret `R` of a session. Its holder controls the session.
///
/// It lies in a box: a move leaves no copy in the frames and futures on its way.
#[derive(Clone)]
pub struct SessionRoot(Box<Zeroizing<[u8; 32]>>);

impl std::fmt::Debug for SessionRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionRoot(redacted)")
    }
}

impl PartialEq for SessionRoot {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        subtle::ConstantTimeEq::ct_eq(&self.0[..], &other.0[..]).into()
    }
}

impl Eq for SessionRoot {}

secret_key!(
    /// `KDF("segment", R ‖ u64le(segment))`. Never leaves the client.
    SegmentSecret
);
secret_key!(
    /// Opens and seals one turn's text: `KDF("record", segment secret ‖ turn identity)`.
    RecordKey
);
secret_key!(
    /// Opens and seals one stored blob: `KDF("blob", segment secret ‖ salt)`.
    BlobKey
);
secret_key!(
    /// The keys of a session's head records of one period: `KDF("head-period", R ‖ u64le(period))`. Never leaves
    /// the client.
    HeadSecret
);
secret_key!(
    /// Opens and seals one part of a head record.
    HeadPartKey
);
secret_key!(
    /// Seals the client's own journal: `KDF("client-journal", R)`.
    JournalKey
);
secret_key!(
    /// Makes the tags by which a client remembers a session's latest reader: `KDF("warm-tag", R)`.
    WarmKey
);

/// The fields that make a record key unique: another attempt, or another author, has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordIdentity {
    /// The session.
    pub session_id: SessionId,
    /// The segment that holds the turn.
    pub segment: u64,
    /// The turn's position in the chain, from 0.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt at the turn, from 0.
    pub attempt: u32,
    /// The node that serves the attempt.
    pub author: NodeId,
}

impl RecordIdentity {
    /// `session_id(32) ‖ u64le(segment) ‖ u64le(seq) ‖ turn_id(16) ‖ u32le(attempt) ‖ author(32)`, 100 bytes.
    /// It is the input of the record key, and the associated data of the sealed record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 100] {
        let mut bytes = [0u8; 100];
        bytes[..32].copy_from_slice(&self.session_id.0);
        bytes[32..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.seq.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.turn_id.0);
        bytes[64..68].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[68..].copy_from_slice(&self.author.0);
        bytes
    }
}

impl SessionRoot {
    /// A fresh random root.
    #[must_use]
    pub fn generate() -> Self {
        let mut root = Box::new(Zeroizing::new([0; 32]));
        fill_random(&mut root[..]);
        Self(root)
    }

    /// Takes the root from bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let mut root = Box::new(Zeroizing::new([0; 32]));
        root.copy_from_slice(&bytes[..]);
        Self(root)
    }

    /// The root's bytes. The name makes every use visible in a review.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The session's signing key.
    #[must_use]
    pub fn signing_key(&self) -> SecretSigningKey {
        SecretSigningKey::from_seed(&Zeroizing::new(kdf(SESSION_SIGN, &[self.expose()])))
    }

    /// The session's id.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        session_id(&self.signing_key().public_key())
    }

    /// The secret of the head records of one period. Nothing derived from one period's secret leads to another
    /// period.
    #[must_use]
    pub fn head_secret(&self, period: u64) -> HeadSecret {
        HeadSecret(kdf(HEAD_PERIOD, &[self.expose(), &period.to_le_bytes()]))
    }

    /// The key of the inner part of head records, for the client's own devices.
    #[must_use]
    pub fn head_inner_key(&self) -> HeadPartKey {
        HeadPartKey(kdf(HEAD_INNER, &[self.expose()]))
    }

    /// The secret of one segment.
    #[must_use]
    pub fn segment(&self, segment: u64) -> SegmentSecret {
        SegmentSecret(kdf(SEGMENT, &[self.expose(), &segment.to_le_bytes()]))
    }

    /// The record key of one attempt at a turn.
    #[must_use]
    pub fn record_key(&self, identity: &RecordIdentity) -> RecordKey {
        self.segment(identity.segment).record_key(identity)
    }

    /// The key of a segment's blob with this salt.
    #[must_use]
    pub fn blob_key(&self, segment: u64, salt: &BlobSalt) -> BlobKey {
        self.segment(segment).blob_key(salt)
    }

    /// The key that seals the client's own files about this session.
    #[must_use]
    pub fn journal_key(&self) -> JournalKey {
        JournalKey(kdf(CLIENT_JOURNAL, &[self.expose()]))
    }

    /// The key of the tags that record the session's latest reader node.
    #[must_use]
    pub fn warm_key(&self) -> WarmKey {
        WarmKey(kdf(WARM_TAG, &[self.expose()]))
    }

    /// A fresh id for a turn of a device: 8 random bytes `n`, then the first 8 of the keyed BLAKE3 of `n`
    /// under `KDF("turn-tag", R ‖ device)`.
    ///
    /// A link does not name its device. By this tag the device finds its own turns in a chain, even turns
    /// lost from its disk. Without the root, the id looks random.
    #[must_use]
    pub fn draw_turn_id(&self, device: &[u8; 16]) -> TurnId {
        self.turn_id_of(device, random_bytes())
    }

    /// The id under which a device replays a turn: `n` is the first 8 bytes of the keyed BLAKE3 of the turn's
    /// id. So a device that lost its notes still detects a finished replay.
    #[must_use]
    pub fn next_turn_id(&self, device: &[u8; 16], turn: &TurnId) -> TurnId {
        self.turn_id_of(device, self.turn_tag(device, &turn.0))
    }

    fn turn_id_of(&self, device: &[u8; 16], nonce: [u8; 8]) -> TurnId {
        let mut id = [0u8; 16];
        id[..8].copy_from_slice(&nonce);
        id[8..].copy_from_slice(&self.turn_tag(device, &nonce));
        TurnId(id)
    }

    /// Whether [`Self::draw_turn_id`] or [`Self::next_turn_id`] made this id for the device. A random id passes
    /// once in 2^64.
    #[must_use]
    pub fn is_turn_of(&self, device: &[u8; 16], turn: &TurnId) -> bool {
        let (nonce, tag) = turn.0.split_at(8);
        self.turn_tag(device, nonce) == tag
    }

    fn turn_tag(&self, device: &[u8; 16], nonce: &[u8]) -> [u8; 8] {
        let key = Zeroizing::new(kdf(TURN_TAG, &[self.expose(), device]));
        let hash = blake3::keyed_hash(&key, nonce);
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

/// `KDF("session-id", session public key)`.
#[must_use]
pub fn session_id(session_key: &PublicKey) -> SessionId {
    SessionId(kdf(SESSION_ID, &[&session_key.0]))
}

/// `KDF("head-index", head public key)`.
#[must_use]
pub fn head_index_key(head_key: &PublicKey) -> HeadIndexKey {
    HeadIndexKey(kdf(HEAD_INDEX, &[&head_key.0]))
}

impl HeadSecret {
    /// The key that signs the period's head records. It differs from the session key, so an index that
    /// validates head records cannot link them to a session id, nor to those of another period.
    #[must_use]
    pub fn signing_key(&self) -> SecretSigningKey {
        SecretSigningKey::from_seed(&Zeroizing::new(kdf(HEAD_SIGN, &[&self.0])))
    }

    /// The key that indexes the period's head records.
    #[must_use]
    pub fn index_key(&self) -> HeadIndexKey {
        head_index_key(&self.signing_key().public_key())
    }

    /// The key of the outer part of the period's head records. A client may grant it to a node.
    #[must_use]
    pub fn locate_key(&self) -> HeadPartKey {
        HeadPartKey(kdf(HEAD_LOCATE, &[&self.0]))
    }
}

impl SegmentSecret {
    /// As [`SessionRoot::record_key`]; the identity's segment must be this one.
    #[must_use]
    pub fn record_key(&self, identity: &RecordIdentity) -> RecordKey {
        RecordKey(kdf(RECORD, &[&self.0, &identity.to_bytes()]))
    }

    /// As [`SessionRoot::blob_key`].
    #[must_use]
    pub fn blob_key(&self, salt: &BlobSalt) -> BlobKey {
        BlobKey(kdf(BLOB, &[&self.0, &salt.0]))
    }
}

impl RecordKey {
    /// The salt of the blob that this record completes: the first 16 bytes of `KDF("blob-salt", record key)`.
    #[must_use]
    pub fn blob_salt(&self) -> BlobSalt {
        let derived = kdf(BLOB_SALT, &[&self.0]);
        BlobSalt(*derived.first_chunk().expect("32 bytes hold 16"))
    }

    /// The tag that fences memory items in a prompt, 16 hex characters. Only the record key gives it: no
    /// other party can guess it, and a replay can rebuild it.
    #[must_use]
    pub fn memory_fence(&self) -> String {
        let derived = kdf(MEMORY_FENCE, &[&self.0]);
        hex::encode(&derived[..8])
    }

    /// The key of a receipt's commitments: `KDF("commitment", record key)`.
    #[must_use]
    pub fn commitment_key(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(kdf(COMMITMENT, &[&self.0]))
    }

    /// Seals a padded record, deterministically; the identity is the associated data.
    #[must_use]
    pub fn seal(&self, identity: &RecordIdentity, padded: &[u8]) -> Vec<u8> {
        seal_deterministic(&self.0, &identity.to_bytes(), padded)
    }

    /// Opens a sealed record to its padded form.
    ///
    /// # Errors
    /// [`OpenError`] when key, identity or bytes do not belong together.
    pub fn open(&self, identity: &RecordIdentity, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_deterministic(&self.0, &identity.to_bytes(), sealed)
    }
}

impl BlobKey {
    /// Seals a padded segment, deterministically. Associated data:
    /// `salt(16) ‖ session_id(32) ‖ u64le(segment)`.
    #[must_use]
    pub fn seal(&self, salt: &BlobSalt, session_id: &SessionId, segment: u64, padded: &[u8]) -> Vec<u8> {
        seal_deterministic(&self.0, &blob_associated(salt, session_id, segment), padded)
    }

    /// The proof that accompanies a request for the blob of this digest to its author or another reader:
    /// `KDF("blob-fetch", blob key ‖ digest)`. Every reader of the store can compute the digest, but not this
    /// proof.
    #[must_use]
    pub fn fetch_proof(&self, digest: &[u8; 32]) -> [u8; 32] {
        kdf(BLOB_FETCH, &[&self.0, digest])
    }

    /// Opens a sealed segment to its padded form.
    ///
    /// # Errors
    /// [`OpenError`] when key, position or bytes do not belong together.
    pub fn open(
        &self,
        salt: &BlobSalt,
        session_id: &SessionId,
        segment: u64,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_deterministic(&self.0, &blob_associated(salt, session_id, segment), sealed)
    }
}

fn blob_associated(salt: &BlobSalt, session_id: &SessionId, segment: u64) -> Vec<u8> {
    [&salt.0[..], &session_id.0, &segment.to_le_bytes()].concat()
}

impl HeadPartKey {
    /// Seals one part of a head record, deterministically; the head public key is the associated data.
    #[must_use]
    pub fn seal(&self, head_key: &PublicKey, text: &[u8]) -> Vec<u8> {
        seal_deterministic(&self.0, &head_key.0, text)
    }

    /// Opens one part of a head record.
    ///
    /// # Errors
    /// [`OpenError`] when key, head key or bytes do not belong together.
    pub fn open(&self, head_key: &PublicKey, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_deterministic(&self.0, &head_key.0, sealed)
    }
}

impl JournalKey {
    /// Seals an entry of the client's journal under a random nonce.
    #[must_use]
    pub fn seal(&self, associated: &[u8], text: &[u8]) -> Vec<u8> {
        seal_random(&self.0, associated, text)
    }

    /// Opens an entry of the client's journal.
    ///
    /// # Errors
    /// [`OpenError`] when key, associated data or bytes do not belong together.
    pub fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_random(&self.0, associated, sealed)
    }
}

impl WarmKey {
    /// `BLAKE3_keyed(warm key, node(32) ‖ link hash(32))`. Without the root it reveals no session, node or
    /// turn, nor that two tags are of one session. It never leaves the client.
    #[must_use]
    pub fn tag(&self, node: &NodeId, link_hash: &[u8; 32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&node.0);
        hasher.update(link_hash);
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_tag_is_of_one_session_node_and_link() {
        let key = |root| SessionRoot::from_bytes([root; 32]).warm_key();
        let tag = key(9).tag(&NodeId([1; 32]), &[2; 32]);
        assert_eq!(tag, key(9).tag(&NodeId([1; 32]), &[2; 32]));
        assert_ne!(tag, key(8).tag(&NodeId([1; 32]), &[2; 32]));
        assert_ne!(tag, key(9).tag(&NodeId([3; 32]), &[2; 32]));
        assert_ne!(tag, key(9).tag(&NodeId([1; 32]), &[4; 32]));
    }

    #[test]
    fn a_turn_id_is_fresh_and_known_to_its_root_and_device_alone() {
        let (root, device) = (SessionRoot::from_bytes([9; 32]), [1; 16]);
        let id = root.draw_turn_id(&device);
        assert_ne!(id, root.draw_turn_id(&device));
        assert!(root.is_turn_of(&device, &id));
        assert!(!root.is_turn_of(&[2; 16], &id));
        assert!(!SessionRoot::from_bytes([8; 32]).is_turn_of(&device, &id));
        assert!(!root.is_turn_of(&device, &TurnId([4; 16])));
        let next = root.next_turn_id(&device, &id);
        assert_eq!(next, root.next_turn_id(&device, &id));
        assert!(next != id && root.is_turn_of(&device, &next));
        assert_ne!(next, root.next_turn_id(&[2; 16], &id));
    }

    fn identity() -> RecordIdentity {
        RecordIdentity {
            session_id: SessionId([1; 32]),
            segment: 2,
            seq: 33,
            turn_id: TurnId([4; 16]),
            attempt: 5,
            author: NodeId([6; 32]),
        }
    }

    #[test]
    fn each_part_of_the_identity_changes_the_record_key() {
        let root = SessionRoot::from_bytes([9; 32]);
        let base = identity();
        let variants = [
            RecordIdentity { session_id: SessionId([0; 32]), ..base },
            RecordIdentity { segment: 3, ..base },
            RecordIdentity { seq: 34, ..base },
            RecordIdentity { turn_id: TurnId([0; 16]), ..base },
            RecordIdentity { attempt: 6, ..base },
            RecordIdentity { author: NodeId([0; 32]), ..base },
        ];
        for variant in variants {
            assert_ne!(root.record_key(&base), root.record_key(&variant), "{variant:?}");
        }
    }

    #[test]
    fn a_record_opens_under_its_own_key_and_identity_only() {
        let root = SessionRoot::from_bytes([9; 32]);
        let key = root.record_key(&identity());
        let sealed = key.seal(&identity(), b"padded");
        assert_eq!(key.open(&identity(), &sealed).unwrap().as_slice(), b"padded");
        let moved = RecordIdentity { seq: 34, ..identity() };
        assert_eq!(key.open(&moved, &sealed), Err(OpenError));
        assert_eq!(root.record_key(&moved).open(&identity(), &sealed), Err(OpenError));
    }

    #[test]
    fn a_blob_key_opens_one_salt_only() {
        let root = SessionRoot::from_bytes([9; 32]);
        let (salt, other) = (BlobSalt([1; 16]), BlobSalt([2; 16]));
        let id = root.session_id();
        let sealed = root.blob_key(0, &salt).seal(&salt, &id, 0, b"segment");
        assert!(root.blob_key(0, &salt).open(&salt, &id, 0, &sealed).is_ok());
        assert_eq!(root.blob_key(0, &other).open(&salt, &id, 0, &sealed), Err(OpenError));
        assert_eq!(root.blob_key(1, &salt).open(&salt, &id, 1, &sealed), Err(OpenError));
        assert_eq!(root.blob_key(0, &salt).open(&other, &id, 0, &sealed), Err(OpenError));
    }

    #[test]
    fn secrets_do_not_show_in_debug() {
        let root = SessionRoot::from_bytes([0xab; 32]);
        assert_eq!(format!("{root:?}"), "SessionRoot(redacted)");
    }
}
