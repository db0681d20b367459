//! Conversion between Baton's node IDs and libp2p's peer IDs.
//!
//! Both name the same Ed25519 public key. A [`NodeId`] is its 32 bytes; a [`PeerId`] wraps its protobuf form
//! in an identity multihash (libp2p specs, `peer-ids.md`). Each libp2p event passes through here on its way
//! into Baton. The conversion must never accept two peer IDs for one node.

use baton_proto::ids::NodeId;
use libp2p::{
    PeerId,
    identity::{PublicKey, ed25519},
};

/// Multihash code of the identity "hash": the digest is the key itself.
const IDENTITY_MULTIHASH: u64 = 0;

/// The node that a peer ID names, or `None` unless it is an inlined Ed25519 key in canonical form.
#[must_use]
pub fn node_id_of(peer: &PeerId) -> Option<NodeId> {
    let multihash = peer.as_ref();
    if multihash.code() != IDENTITY_MULTIHASH {
        return None;
    }
    let key = PublicKey::try_decode_protobuf(multihash.digest()).ok()?;
    let node = NodeId(key.try_into_ed25519().ok()?.to_bytes());
    (peer_id_of(node)? == *peer).then_some(node)
}

/// The peer ID of a node, or `None` when its bytes are not an Ed25519 public key.
#[must_use]
pub fn peer_id_of(node: NodeId) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(node.as_bytes()).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::identity::Keypair;

    #[test]
    fn converts_back_and_forth() {
        for _ in 0..16 {
            let pair = Keypair::generate_ed25519();
            let peer = pair.public().to_peer_id();
            let node = node_id_of(&peer).expect("an Ed25519 peer");
            assert_eq!(node.as_bytes(), &pair.public().try_into_ed25519().unwrap().to_bytes());
            assert_eq!(peer_id_of(node), Some(peer));
        }
    }

    #[test]
    fn matches_the_known_text_form() {
        // The base point's encoding is a valid key whose PeerId is easy to compute by hand:
        // 00 24 08 01 12 20 followed by the key.
        let mut key = [0x66u8; 32];
        key[0] = 0x58;
        let bytes = peer_id_of(NodeId(key)).expect("the base point").to_bytes();
        assert_eq!(bytes[..6], [0x00, 0x24, 0x08, 0x01, 0x12, 0x20]);
        assert_eq!(bytes[6..], key);
    }

    #[test]
    fn refuses_hashed_random_and_malleable_peer_ids() {
        assert_eq!(node_id_of(&PeerId::random()), None, "an identity multihash that holds no key");
        let mut hashed = vec![0x12, 0x20];
        hashed.extend([7u8; 32]);
        assert_eq!(node_id_of(&PeerId::from_bytes(&hashed).unwrap()), None, "a SHA-256 peer id");

        // The same key with its protobuf fields in reverse order decodes, but is not canonical.
        let key = Keypair::generate_ed25519().public().try_into_ed25519().unwrap().to_bytes();
        let mut swapped = vec![0x00, 0x24, 0x12, 0x20];
        swapped.extend(key);
        swapped.extend([0x08, 0x01]);
        assert_eq!(node_id_of(&PeerId::from_bytes(&swapped).unwrap()), None);
    }

    #[test]
    fn refuses_bytes_that_are_no_curve_point() {
        let invalid = (0..=255u8).map(|low| {
            let mut bytes = [0u8; 32];
            bytes[0] = low;
            NodeId(bytes)
        });
        assert!(invalid.into_iter().any(|node| peer_id_of(node).is_none()));
    }
}
