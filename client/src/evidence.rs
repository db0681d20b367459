//! Evidence of misbehaviour that anyone can check: two different links that a node signed for one attempt at
//! one turn.
//!
//! An honest node never does that. It does not run a sealed turn again, and answers with the same link for as
//! long as its journal keeps it. The links name the session by its id and hold no text.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec, export::EVIDENCE_FORMAT, ids::NodeId,
    limits::MAX_SIGNED_BYTES, link::Link,
};
use serde_json::{Value, json};

/// Most pairs of links read from an export.
const MAX_PAIRS: usize = 4096;

/// Two links that one node signed for one attempt at one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equivocation {
    /// The link that was accepted.
    pub accepted: SignedObject<Link>,
    /// The second link.
    pub other: SignedObject<Link>,
}

impl Equivocation {
    /// Checks both signatures, and that two different links have the same author, turn, attempt, position and
    /// authorisation.
    ///
    /// # Errors
    /// [`ErrorCode::BadNodeSignature`] and the codes of decoding; [`ErrorCode::ReceiptMismatch`] for two
    /// links that an honest node may have signed.
    pub fn check(accepted: SignedBytes, other: SignedBytes) -> Result<Self, ErrorCode> {
        let (accepted, other) =
            (SignedObject::<Link>::verify(accepted)?, SignedObject::<Link>::verify(other)?);
        let same = accepted.author == other.author
            && accepted.session_id == other.session_id
            && accepted.seq == other.seq
            && accepted.turn_id == other.turn_id
            && accepted.attempt == other.attempt
            && accepted.auth_hash == other.auth_hash;
        if same && accepted.link_hash() != other.link_hash() {
            Ok(Self { accepted, other })
        } else {
            Err(ErrorCode::ReceiptMismatch)
        }
    }

    /// The node that signed both.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.accepted.author
    }

    /// Its form in an export; the fields beside the links are for people.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let text = |link: &SignedObject<Link>| STANDARD.encode(codec::encode(link.bytes()));
        json!({
            "node": self.node().to_string(),
            "session_id": self.accepted.session_id.to_string(),
            "seq": self.accepted.seq,
            "link_hashes": [self.accepted.link_hash().to_string(), self.other.link_hash().to_string()],
            "links": [text(&self.accepted), text(&self.other)],
        })
    }
}

/// An export of evidence.
#[must_use]
pub fn export(found: &[Equivocation]) -> Value {
    let pairs: Vec<_> = found.iter().map(Equivocation::to_json).collect();
    json!({ "format": EVIDENCE_FORMAT, "signed_twice": pairs })
}

/// Parses and checks an export of evidence from any source.
///
/// # Errors
/// [`ErrorCode::NonCanonical`] for another form; as [`Equivocation::check`].
pub fn import(text: &str) -> Result<Vec<Equivocation>, ErrorCode> {
    let value: Value = serde_json::from_str(text).map_err(|_| ErrorCode::NonCanonical)?;
    let pairs = value.get("signed_twice").and_then(Value::as_array);
    let pairs = pairs.filter(|pairs| {
        value.get("format").and_then(Value::as_str) == Some(EVIDENCE_FORMAT) && pairs.len() <= MAX_PAIRS
    });
    pairs.ok_or(ErrorCode::NonCanonical)?.iter().map(pair).collect()
}

fn pair(value: &Value) -> Result<Equivocation, ErrorCode> {
    let links = value.get("links").and_then(Value::as_array).ok_or(ErrorCode::NonCanonical)?;
    let link = |value: &Value| {
        let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok());
        codec::decode::<SignedBytes>(&bytes.ok_or(ErrorCode::NonCanonical)?, MAX_SIGNED_BYTES)
    };
    match links.as_slice() {
        [accepted, other] => Equivocation::check(link(accepted)?, link(other)?),
        _ => Err(ErrorCode::NonCanonical),
    }
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;
    use baton_proto::{
        ids::{AuthHash, LinkHash, ReceiptHash, RecordHash, SessionId, TurnId},
        limits::VERSION,
    };

    use super::*;

    fn link(key: &SecretSigningKey, change: impl FnOnce(&mut Link)) -> SignedBytes {
        let mut link = Link {
            version: VERSION,
            session_id: SessionId([1; 32]),
            seq: 0,
            segment: 0,
            index: 0,
            turn_id: TurnId([2; 16]),
            attempt: 0,
            prev_link: LinkHash([3; 32]),
            prev_blob: None,
            record_hash: RecordHash([4; 32]),
            record_length: 256,
            auth_hash: AuthHash([5; 32]),
            receipt_hash: ReceiptHash([6; 32]),
            author: key.node_id(),
            time_ms: 1,
        };
        change(&mut link);
        SignedObject::sign(link, key).bytes().clone()
    }

    #[test]
    fn two_links_for_one_attempt_are_evidence_and_others_are_none() {
        let (key, other_key) = (SecretSigningKey::generate(), SecretSigningKey::generate());
        let first = link(&key, |_| {});
        let found = Equivocation::check(first.clone(), link(&key, |link| link.time_ms = 2)).unwrap();
        assert_eq!(found.node(), key.node_id());
        let honest = [
            link(&key, |_| {}),
            link(&key, |link| link.attempt = 1),
            link(&key, |link| link.turn_id = TurnId([9; 16])),
            link(&key, |link| link.session_id = SessionId([9; 32])),
            link(&key, |link| link.auth_hash = AuthHash([9; 32])),
            link(&other_key, |link| link.time_ms = 2),
        ];
        for other in honest {
            assert_eq!(Equivocation::check(first.clone(), other), Err(ErrorCode::ReceiptMismatch));
        }
        let mut forged = link(&key, |link| link.time_ms = 2);
        forged.signature.0[0] ^= 1;
        assert_eq!(Equivocation::check(first, forged), Err(ErrorCode::BadNodeSignature));
    }

    #[test]
    fn an_export_is_read_back_and_every_changed_link_is_refused() {
        let key = SecretSigningKey::generate();
        let found = Equivocation::check(link(&key, |_| {}), link(&key, |link| link.time_ms = 2)).unwrap();
        let text = export(std::slice::from_ref(&found)).to_string();
        assert_eq!(import(&text), Ok(vec![found.clone()]));
        let bytes = STANDARD.encode(codec::encode(found.other.bytes()));
        for index in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let changed = text.replace(&bytes, &String::from_utf8(changed).unwrap());
            assert!(import(&changed).is_err(), "character {index}");
        }
        for other in ["", "{}", "[]", r#"{"format":"baton-evidence-v3"}"#, &text.replace("-v3", "-v1")] {
            assert_eq!(import(other), Err(ErrorCode::NonCanonical));
        }
    }
}
