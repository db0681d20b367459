//! The attacker's requests, made in advance so that sending them is cheap.

use baton_keys::{
    exchange::{EphemeralSecret, SUITE},
    ids::{NodeId, SessionId, TurnId},
    session::{RecordIdentity, SessionRoot, session_id},
};
use baton_proto::{
    SignedBytes, SignedObject, codec,
    ids::{DeviceId, ModelId, PayloadHash, PublicKey},
    limits::{PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::Genesis,
    node_record::NodeRecord,
    record::{Message, RecordKind, Role},
    signed::SignatureBytes,
    turn::{Grant, GrantedKey, Payload, Sampling, SealedPayload, StoragePolicy, TurnAuth},
    wire::{ClientFrame, TurnRequest},
};

/// Shards of the sessions' blob IDs.
const SHARDS: u16 = 10;
/// The longest lifetime of an authorisation.
const LIFETIME_MS: u64 = 120_000;

/// Pseudo-random numbers from a seed (splitmix64).
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.iter_mut().zip(number).for_each(|(byte, drawn)| *byte = drawn);
        }
        bytes
    }
}

/// The target of the requests.
pub(super) struct Target<'a> {
    pub(super) record: &'a NodeRecord,
    pub(super) model: ModelId,
    pub(super) now_ms: u64,
}

fn auth(target: &Target<'_>, key: PublicKey, numbers: &mut Numbers) -> anyhow::Result<TurnAuth> {
    let genesis = Genesis { session_key: key, n_shards: SHARDS, branch: None };
    Ok(TurnAuth {
        version: TURN_AUTH_VERSION,
        suite: SUITE,
        session_id: session_id(&key),
        session_key: key,
        device_id: DeviceId(numbers.bytes()),
        seq: 0,
        turn_id: TurnId(numbers.bytes()),
        attempt: 0,
        prev_link: genesis.link_hash(),
        prev_blob: None,
        n_shards: SHARDS,
        branch: None,
        audience: target.record.node,
        audience_key: target.record.current_key(target.now_ms)?.id(),
        payload_hash: PayloadHash([0; 32]),
        model: target.model,
        sampling: Sampling::default().digest(&baton_keys::session::RecordKey::from_bytes([1; 32])),
        max_output_tokens: 16,
        max_price: 0,
        memory_from: None,
        memory_tokens: 0,
        grant_hash: baton_proto::ids::GrantHash([0; 32]),
        resume: None,
        issued_ms: target.now_ms,
        expires_ms: target.now_ms + LIFETIME_MS,
    })
}

fn frame(auth: SignedBytes, payload: SealedPayload) -> Vec<u8> {
    let request = TurnRequest { auth, payload, inline: Vec::new(), memory: None };
    codec::encode(&ClientFrame::Turn(request))
}

/// A request that is valid but for its signature.
pub(super) fn forged(target: &Target<'_>, numbers: &mut Numbers) -> anyhow::Result<Vec<u8>> {
    // A real key, so that only the signature check detects the forgery.
    let key = SessionRoot::from_bytes(numbers.bytes()).signing_key().public_key();
    let payload = SealedPayload(numbers.bytes::<1024>().to_vec());
    let mut auth = auth(target, key, numbers)?;
    auth.payload_hash = payload.hash();
    let signature = SignatureBytes(numbers.bytes());
    Ok(frame(SignedBytes { body: codec::encode(&auth), signature }, payload))
}

/// A valid request: the first turn of a new session.
pub(super) fn signed(target: &Target<'_>, numbers: &mut Numbers) -> anyhow::Result<Vec<u8>> {
    let root = SessionRoot::from_bytes(numbers.bytes());
    let signing = root.signing_key();
    let mut auth = auth(target, signing.public_key(), numbers)?;
    let session_id: SessionId = auth.session_id;
    let author: NodeId = auth.audience;
    let identity =
        RecordIdentity { session_id, segment: 0, seq: 0, turn_id: auth.turn_id, attempt: 0, author };
    let record_key = root.record_key(&identity);
    let sampling = Sampling::default();
    let grant = Grant {
        segment: 0,
        index: 0,
        record_key: GrantedKey::of_record(&record_key),
        blob_key: GrantedKey::of_blob(&root.blob_key(0, &record_key.blob_salt())),
        blobs: Vec::new(),
        records: Vec::new(),
        head: None,
    };
    auth.sampling = sampling.digest(&record_key);
    auth.grant_hash = grant.hash();
    let payload = Payload {
        version: PAYLOAD_VERSION,
        grant,
        kind: RecordKind::Turn,
        supersedes_from: None,
        system: Vec::new(),
        messages: vec![Message::new(Role::User, "a flood of words that nobody needs")],
        sampling,
        json_schema: None,
        storage: StoragePolicy::default(),
        resume_tokens: Vec::new(),
    };
    let node_key = target.record.current_key(target.now_ms)?;
    let (sealed, _) = SealedPayload::seal(&payload, EphemeralSecret::generate(), node_key, &auth.binding())?;
    auth.payload_hash = sealed.hash();
    Ok(frame(SignedObject::sign(auth, &signing).bytes().clone(), sealed))
}
