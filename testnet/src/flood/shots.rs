//! The attacker's requests, made in advance so that sending them is cheap.

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    codec,
    ids::TurnId,
    link::Genesis,
    node_record::NodeRecord,
    signed::SignatureBytes,
    turn::{Grant, GrantedKey},
    wire::ClientFrame,
};

use crate::{draws::Draws, network::SHARDS, raw::RawOrder};

/// The longest lifetime of an authorisation.
const LIFETIME_MS: u64 = 120_000;

/// The first turn of a new session, for a node. A forged one is valid but for its signature.
pub(super) fn shot(
    node: &NodeRecord,
    now_ms: u64,
    draws: &mut Draws,
    is_forged: bool,
) -> anyhow::Result<Vec<u8>> {
    let root = SessionRoot::from_bytes(draws.bytes());
    let (signing, session_id, turn_id) = (root.signing_key(), root.session_id(), TurnId(draws.bytes()));
    let identity = RecordIdentity { session_id, segment: 0, seq: 0, turn_id, attempt: 0, author: node.node };
    let record_key = root.record_key(&identity);
    let grant = Grant {
        segment: 0,
        index: 0,
        record_key: GrantedKey::of_record(&record_key),
        blob_key: GrantedKey::of_blob(&root.blob_key(0, &record_key.blob_salt())),
        blobs: Vec::new(),
        records: Vec::new(),
        head: None,
    };
    let genesis = Genesis { session_key: signing.public_key(), n_shards: SHARDS, branch: None };
    let order = RawOrder {
        node,
        signing,
        n_shards: SHARDS,
        seq: 0,
        prev_link: genesis.link_hash(),
        prev_blob: None,
        turn_id,
        grant,
        text: "a flood of words that nobody needs",
        valid_ms: (now_ms, now_ms + LIFETIME_MS),
    };
    let mut request = order.seal()?.request;
    if is_forged {
        request.auth.signature = SignatureBytes(draws.bytes());
    }
    Ok(codec::encode(&ClientFrame::Turn(request)))
}
