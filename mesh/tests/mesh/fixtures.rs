//! Records for tests of the mesh, from outside and from inside.

use baton_keys::{session::SessionRoot, sign::SecretSigningKey};
use baton_proto::{
    SignedObject,
    head::{HeadInner, HeadOuter, HeadRecord, SegmentRef},
    ids::{BlobDigest, BlobId, LinkHash, NodeId, TurnId},
    limits::{NODE_RECORD_VERSION, VERSION},
    link::BlobRef,
    node_record::{NodeLimits, NodeRecord, StorageOffer},
};

/// A node's record for an hour, without keys and models.
pub(crate) fn node_record(key: &SecretSigningKey, sequence: u64, addresses: &[&str]) -> NodeRecord {
    NodeRecord {
        version: NODE_RECORD_VERSION,
        node: key.node_id(),
        sequence,
        addresses: addresses.iter().map(ToString::to_string).collect(),
        keys: vec![],
        models: vec![],
        limits: NodeLimits { slots: 1, queue: 1, turns_per_minute: 60, max_output_tokens: 100 },
        storage: StorageOffer::default(),
        versions: vec![VERSION],
        software: "test".to_owned(),
        issued_ms: sequence,
        expires_ms: sequence + 3_600_000,
    }
}

/// A session's head record, issued at the time of its sequence.
pub(crate) fn head(root: &SessionRoot, sequence: u64, lifetime_ms: u64) -> SignedObject<HeadRecord> {
    let blob = BlobRef { blob_id: BlobId([1; 32]), digest: BlobDigest([2; 32]), length: 9 };
    let outer = HeadOuter {
        n_shards: 1000,
        branch: None,
        seq: 1,
        link_hash: LinkHash([3; 32]),
        blobs: vec![SegmentRef { segment: 0, blob }],
    };
    let inner = HeadInner {
        turn_id: TurnId([4; 16]),
        attempt: 0,
        author: NodeId([5; 32]),
        devices: vec![],
        branches: vec![],
        tombstone: false,
    };
    HeadRecord::seal(root, &outer, &inner, sequence, sequence, sequence + lifetime_ms)
}
