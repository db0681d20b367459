//! The head of a session, as the user holds it: opaque text, signed by the relayer of the last turn. It is
//! bound to the session and its owner. Its only use is to detect that some source hides turns from the user.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use baton_keys::{
    SecretSigningKey,
    contexts::{CHAT_HEAD, SignatureLabel},
};
use baton_memory::ids::OwnerId;
use baton_proto::{
    ErrorCode, Signable, SignedObject,
    ids::{LinkHash, PublicKey, SessionId, SuiAddress},
    limits::VERSION,
};
use serde::{Deserialize, Serialize};

/// Longest text of a head, with room for later versions.
const MAX_TEXT_BYTES: usize = 1024;

/// The last turn of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChatHead {
    version: u8,
    /// The signer: the relayer of the turn. Another relayer trusts it like the user: a head can only cause a
    /// refusal.
    relayer: PublicKey,
    owner: SuiAddress,
    pub(super) session_id: SessionId,
    pub(super) seq: u64,
    pub(super) link_hash: LinkHash,
    time_ms: u64,
}

impl Signable for ChatHead {
    const LABEL: SignatureLabel = CHAT_HEAD;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;
    const MAX_BYTES: usize = MAX_TEXT_BYTES;

    fn signer(&self) -> PublicKey {
        self.relayer
    }
}

/// The relation of a head to the last known turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadPosition {
    /// It names the last turn.
    Last,
    /// The session continued, by this many turns.
    Stale(u64),
    /// It names a later turn than the known ones: some source hides turns.
    Ahead,
}

impl ChatHead {
    /// The head after a turn, as text.
    pub(super) fn issue(
        key: &SecretSigningKey,
        owner: OwnerId,
        session_id: SessionId,
        (seq, link_hash): (u64, LinkHash),
        time_ms: u64,
    ) -> String {
        let owner = SuiAddress(owner.0);
        let head =
            Self { version: VERSION, relayer: key.public_key(), owner, session_id, seq, link_hash, time_ms };
        BASE64_URL_SAFE_NO_PAD.encode(SignedObject::sign(head, key).encode())
    }

    /// Reads a head of this session and owner; `None` for any other text.
    pub(super) fn read(text: &str, owner: OwnerId, session_id: SessionId) -> Option<Self> {
        if text.len() > 2 * MAX_TEXT_BYTES {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let head = SignedObject::<Self>::verify_encoded(&bytes).ok()?;
        let meant = head.owner.0 == owner.0 && head.session_id == session_id;
        meant.then(|| head.into_value())
    }

    /// Compares it with the last known turn, if any.
    pub(super) fn position(&self, last: Option<u64>) -> HeadPosition {
        match last {
            Some(last) if last == self.seq => HeadPosition::Last,
            Some(last) if last > self.seq => HeadPosition::Stale(last - self.seq),
            _ => HeadPosition::Ahead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_of_one_session_and_owner_and_cannot_be_changed() {
        let key = SecretSigningKey::generate();
        let (owner, session) = (OwnerId([1; 32]), SessionId([2; 32]));
        let text = ChatHead::issue(&key, owner, session, (7, LinkHash([3; 32])), 5);
        let head = ChatHead::read(&text, owner, session).unwrap();
        assert_eq!((head.seq, head.link_hash), (7, LinkHash([3; 32])));
        assert!(ChatHead::read(&text, OwnerId([9; 32]), session).is_none());
        assert!(ChatHead::read(&text, owner, SessionId([9; 32])).is_none());
        for position in [0, text.len() / 2, text.len() - 1] {
            let mut changed = text.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            assert!(ChatHead::read(std::str::from_utf8(&changed).unwrap(), owner, session).is_none());
        }
        assert!(ChatHead::read("", owner, session).is_none());
        let positions = [Some(7), Some(9), Some(6), None].map(|last| head.position(last));
        assert_eq!(
            positions,
            [HeadPosition::Last, HeadPosition::Stale(2), HeadPosition::Ahead, HeadPosition::Ahead]
        );
    }
}
