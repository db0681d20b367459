//! A hybrid exchange (X25519 and ML-KEM-768) between a client, or a relayer, and a node, bound to exactly one turn.
//!
//! The sender encapsulates a share to the node's published key ([`hybrid`]). The turn secret is
//! `KDF(context, share ‖ encapsulation ‖ exchange key id ‖ binding)`. So the keys are valid for this turn, this
//! client and this node only.

use zeroize::Zeroizing;

use crate::{
    contexts::{
        Context, EMBED_EXCHANGE, EMBED_REPLY_KEY, EMBED_TEXTS, MEMORY_EXCHANGE, TURN_EXCHANGE, TURN_PAYLOAD,
        TURN_REPLY,
    },
    ids::{EmbedId, Encapsulation, ExchangeKey, ExchangeKeyId, NodeId, PublicKey, SessionId, TurnId},
    seal::{OpenError, StreamOpener, StreamSealer, chacha_open, chacha_seal},
    secret::{kdf, secret_key},
};

pub mod hybrid;

pub use hybrid::{EphemeralSecret, ExchangeKeyError, ExchangeSecret};

/// The cipher suite: X-Wing (X25519 and ML-KEM-768), BLAKE3 and (X)ChaCha20-Poly1305. Suite 1 had X25519 alone
/// and is refused.
pub const SUITE: u8 = 2;

/// The fields to which one turn's keys are bound, besides the exchange keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnBinding {
    /// Cipher suite, [`SUITE`].
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
    /// Cipher suite, [`SUITE`].
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

fn derive(
    context: Context,
    share: &[u8; 32],
    encapsulation: &Encapsulation,
    node_key: ExchangeKeyId,
    binding: &[u8],
) -> [u8; 32] {
    kdf(context, &[share, encapsulation.as_bytes(), &node_key.0, binding])
}

fn initiate(
    context: Context,
    ephemeral: EphemeralSecret,
    node_key: &ExchangeKey,
    binding: &[u8],
) -> Result<(Encapsulation, [u8; 32]), ExchangeKeyError> {
    let (encapsulation, share) = ephemeral.encapsulate(node_key)?;
    let secret = derive(context, &share, &encapsulation, node_key.id(), binding);
    Ok((encapsulation, secret))
}

fn respond(
    context: Context,
    node_secret: &ExchangeSecret,
    encapsulation: &Encapsulation,
    binding: &[u8],
) -> Result<[u8; 32], ExchangeKeyError> {
    let share = node_secret.decapsulate(encapsulation)?;
    Ok(derive(context, &share, encapsulation, node_secret.public_key().id(), binding))
}

impl TurnSecret {
    /// The client's side: returns the message for the node and the secret.
    ///
    /// # Errors
    /// [`ExchangeKeyError`] when the node's key is unusable.
    pub fn initiate(
        ephemeral: EphemeralSecret,
        node_key: &ExchangeKey,
        binding: &TurnBinding,
    ) -> Result<(Encapsulation, Self), ExchangeKeyError> {
        initiate(TURN_EXCHANGE, ephemeral, node_key, &binding.to_bytes())
            .map(|(encapsulation, secret)| (encapsulation, Self(secret)))
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`ExchangeKeyError::SmallOrder`] when the client's X25519 key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        encapsulation: &Encapsulation,
        binding: &TurnBinding,
    ) -> Result<Self, ExchangeKeyError> {
        respond(TURN_EXCHANGE, node_secret, encapsulation, &binding.to_bytes()).map(Self)
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
    /// The client's side: returns the message for the node and the secret.
    ///
    /// # Errors
    /// [`ExchangeKeyError`] when the node's key is unusable.
    pub fn initiate(
        ephemeral: EphemeralSecret,
        node_key: &ExchangeKey,
        binding: &EmbedBinding,
    ) -> Result<(Encapsulation, Self), ExchangeKeyError> {
        initiate(EMBED_EXCHANGE, ephemeral, node_key, &binding.to_bytes())
            .map(|(encapsulation, secret)| (encapsulation, Self(secret)))
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`ExchangeKeyError::SmallOrder`] when the client's X25519 key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        encapsulation: &Encapsulation,
        binding: &EmbedBinding,
    ) -> Result<Self, ExchangeKeyError> {
        respond(EMBED_EXCHANGE, node_secret, encapsulation, &binding.to_bytes()).map(Self)
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
    /// [`ExchangeKeyError`] when the node's key is unusable.
    pub fn initiate(
        ephemeral: EphemeralSecret,
        node_key: &ExchangeKey,
        binding: &[u8],
    ) -> Result<(Encapsulation, Self), ExchangeKeyError> {
        initiate(MEMORY_EXCHANGE, ephemeral, node_key, binding)
            .map(|(encapsulation, secret)| (encapsulation, Self(secret)))
    }

    /// The node's side.
    ///
    /// # Errors
    /// [`ExchangeKeyError::SmallOrder`] when the relayer's X25519 key is of small order.
    pub fn respond(
        node_secret: &ExchangeSecret,
        encapsulation: &Encapsulation,
        binding: &[u8],
    ) -> Result<Self, ExchangeKeyError> {
        respond(MEMORY_EXCHANGE, node_secret, encapsulation, binding).map(Self)
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
            suite: SUITE,
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
        let (message, ours) =
            TurnSecret::initiate(EphemeralSecret::from_bytes(&[9; 64]), &node.public_key(), &binding())
                .unwrap();
        let theirs = TurnSecret::respond(&node, &message, &binding()).unwrap();
        assert_eq!(ours, theirs);
        let sealed = ours.seal_payload(b"payload");
        assert_eq!(theirs.open_payload(&sealed).unwrap().as_slice(), b"payload");

        let base = binding();
        for other in [
            TurnBinding { suite: 1, ..base },
            TurnBinding { session_id: SessionId([0; 32]), ..base },
            TurnBinding { seq: 3, ..base },
            TurnBinding { turn_id: TurnId([0; 16]), ..base },
            TurnBinding { attempt: 5, ..base },
            TurnBinding { session_key: PublicKey([0; 32]), ..base },
            TurnBinding { node: NodeId([0; 32]), ..base },
        ] {
            let wrong = TurnSecret::respond(&node, &message, &other).unwrap();
            assert_eq!(wrong.open_payload(&sealed), Err(OpenError), "{other:?}");
        }
    }

    #[test]
    fn embeddings_are_bound_to_request_client_model_and_node() {
        let binding = EmbedBinding {
            suite: SUITE,
            client_key: PublicKey([1; 32]),
            request: EmbedId([2; 16]),
            model: [3; 32],
            node: NodeId([4; 32]),
        };
        let node = ExchangeSecret::from_bytes(&[8; 32]);
        let (message, ours) =
            EmbedSecret::initiate(EphemeralSecret::from_bytes(&[9; 64]), &node.public_key(), &binding)
                .unwrap();
        let theirs = EmbedSecret::respond(&node, &message, &binding).unwrap();
        let texts = ours.seal_texts(b"texts");
        assert_eq!(theirs.open_texts(&texts).unwrap().as_slice(), b"texts");
        let reply = theirs.seal_reply(&[5; 32], &[6; 32], b"vectors");
        assert_eq!(ours.open_reply(&[5; 32], &[6; 32], &reply).unwrap().as_slice(), b"vectors");
        assert_eq!(ours.open_reply(&[0; 32], &[6; 32], &reply), Err(OpenError), "another run");
        assert_eq!(ours.open_reply(&[5; 32], &[0; 32], &reply), Err(OpenError), "another request");
        assert_eq!(ours.open_texts(&reply), Err(OpenError), "each key is for one thing");
        for other in [
            EmbedBinding { suite: 1, ..binding },
            EmbedBinding { client_key: PublicKey([0; 32]), ..binding },
            EmbedBinding { request: EmbedId([0; 16]), ..binding },
            EmbedBinding { model: [0; 32], ..binding },
            EmbedBinding { node: NodeId([0; 32]), ..binding },
        ] {
            let wrong = EmbedSecret::respond(&node, &message, &other).unwrap();
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
    fn each_kind_of_exchange_refuses_unusable_keys() {
        let secret = ExchangeSecret::from_bytes(&[8; 32]);
        let embed = EmbedBinding {
            suite: SUITE,
            client_key: PublicKey([0; 32]),
            request: EmbedId([0; 16]),
            model: [0; 32],
            node: NodeId([0; 32]),
        };
        let mut weak_key = *secret.public_key().as_bytes();
        weak_key[1184..].fill(0);
        let unreduced = ExchangeKey::from([0xff; ExchangeKey::LEN]);
        for (key, error) in [
            (ExchangeKey::from(weak_key), ExchangeKeyError::SmallOrder),
            (unreduced, ExchangeKeyError::Modulus),
        ] {
            let ephemeral = EphemeralSecret::generate;
            assert_eq!(TurnSecret::initiate(ephemeral(), &key, &binding()).err(), Some(error));
            assert_eq!(EmbedSecret::initiate(ephemeral(), &key, &embed).err(), Some(error));
            assert_eq!(MemorySecret::initiate(ephemeral(), &key, b"").err(), Some(error));
        }
        let weak = Encapsulation::from([0; Encapsulation::LEN]);
        assert_eq!(TurnSecret::respond(&secret, &weak, &binding()), Err(ExchangeKeyError::SmallOrder));
        assert_eq!(EmbedSecret::respond(&secret, &weak, &embed), Err(ExchangeKeyError::SmallOrder));
        assert_eq!(MemorySecret::respond(&secret, &weak, b""), Err(ExchangeKeyError::SmallOrder));
    }

    #[test]
    fn a_changed_message_or_key_gives_another_secret() {
        let node = ExchangeSecret::from_bytes(&[8; 32]);
        let (message, ours) =
            MemorySecret::initiate(EphemeralSecret::from_bytes(&[9; 64]), &node.public_key(), b"turn")
                .unwrap();
        assert_eq!(MemorySecret::respond(&node, &message, b"turn").as_ref(), Ok(&ours));
        assert_ne!(MemorySecret::respond(&node, &message, b"turm").unwrap(), ours);
        let other = ExchangeSecret::from_bytes(&[7; 32]);
        assert_ne!(MemorySecret::respond(&other, &message, b"turn").unwrap(), ours);
        let mut changed = *message.as_bytes();
        changed[0] ^= 1;
        let changed = Encapsulation::from(changed);
        assert_ne!(MemorySecret::respond(&node, &changed, b"turn").unwrap(), ours);
    }
}
