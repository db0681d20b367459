//! Quota grants: an operator's signed promise to the holder of a key, narrowable by the holder, checked
//! offline.
//!
//! A node that serves only its own users trusts the keys of some issuers. In a chain of [`QuotaGrant`]s:
//!
//! 1. An issuer signs the first grant.
//! 2. The holder of each grant signs the next one, which names it by its hash and only narrows it.
//! 3. The last holder signs the authorisation hash of each turn ([`QuotaProof`]), so a stolen grant is
//!    worthless.
//!
//! Not to be confused with [`Grant`](crate::turn::Grant), the keys of a turn.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use baton_keys::contexts::{QUOTA_GRANT, QUOTA_GRANT_HASH, QUOTA_PROOF, SignatureLabel};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{AuthHash, ModelId, NodeId, PublicKey, QuotaHash, QuotaSerial},
    limits::{MAX_QUOTA_CHAIN, MAX_QUOTA_LIST, MAX_SIGNED_BYTES},
    signed::{Signable, SignedBytes, SignedObject},
};

/// Prefix of each line in the text form.
const TEXT_PREFIX: &str = "baton-quota-1:";

/// A quota, for the holder of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaGrant {
    /// Format version, 1.
    pub version: u8,
    /// The grantor, who signs: the issuer in the first grant of a chain, the previous grant's holder in the
    /// others.
    pub grantor: PublicKey,
    /// Random serial number, by which a node revokes the grant.
    pub serial: QuotaSerial,
    /// Hash of the grant that this one narrows; none in the first of a chain.
    pub parent: Option<QuotaHash>,
    /// The key of the holder.
    pub holder: PublicKey,
    /// Nodes that accept it; empty for all that trust the issuer.
    pub nodes: Vec<NodeId>,
    /// Models that it covers; empty for all.
    pub models: Vec<ModelId>,
    /// Turns an hour at each node.
    pub turns_per_hour: u32,
    /// Tokens of answers, and a sixteenth of the tokens that a node reads, an hour at each node.
    pub tokens_per_hour: u64,
    /// Concurrent turns at each node.
    pub concurrent: u16,
    /// Start, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End.
    pub until_ms: u64,
    /// Number of further grants that may follow in the chain.
    pub depth: u8,
}

impl Signable for QuotaGrant {
    const LABEL: SignatureLabel = QUOTA_GRANT;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

    fn signer(&self) -> PublicKey {
        self.grantor
    }

    fn check(&self) -> Result<(), ErrorCode> {
        if self.nodes.len() > MAX_QUOTA_LIST || self.models.len() > MAX_QUOTA_LIST {
            return Err(ErrorCode::FrameTooLarge);
        }
        let deep = usize::from(self.depth) >= MAX_QUOTA_CHAIN;
        if deep || self.from_ms >= self.until_ms { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }
}

/// Whether `inner` allows no more than `outer`; an empty list allows all.
fn within<T: PartialEq>(inner: &[T], outer: &[T]) -> bool {
    outer.is_empty() || (!inner.is_empty() && inner.iter().all(|item| outer.contains(item)))
}

impl QuotaGrant {
    /// Whether this grant exceeds its parent in no field.
    #[must_use]
    pub fn narrows(&self, parent: &Self) -> bool {
        within(&self.nodes, &parent.nodes)
            && within(&self.models, &parent.models)
            && self.turns_per_hour <= parent.turns_per_hour
            && self.tokens_per_hour <= parent.tokens_per_hour
            && self.concurrent <= parent.concurrent
            && self.from_ms >= parent.from_ms
            && self.until_ms <= parent.until_ms
            && self.depth < parent.depth
    }
}

impl SignedObject<QuotaGrant> {
    /// `KDF("quota-grant-hash", body ‖ signature)`.
    #[must_use]
    pub fn quota_hash(&self) -> QuotaHash {
        QuotaHash(self.bytes().hash(QUOTA_GRANT_HASH))
    }
}

/// The holder's use of a grant for one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaProof {
    /// Format version, 1.
    pub version: u8,
    /// The holder of the chain's last grant, who signs.
    pub holder: PublicKey,
    /// Hash of that grant.
    pub grant: QuotaHash,
    /// The turn's authorisation, which names node, session and time.
    pub auth_hash: AuthHash,
}

impl Signable for QuotaProof {
    const LABEL: SignatureLabel = QUOTA_PROOF;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

    fn signer(&self) -> PublicKey {
        self.holder
    }
}

/// A chain of grants and the proof for the turn that follows on the same substream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// Signed [`QuotaGrant`]s, the issuer's first.
    pub chain: Vec<SignedBytes>,
    /// The signed [`QuotaProof`].
    pub proof: SignedBytes,
}

/// The node, model and time for which a chain must be valid.
#[derive(Clone, Copy, Debug)]
pub struct QuotaContext<'a> {
    /// The node.
    pub node: NodeId,
    /// The requested model.
    pub model: ModelId,
    /// Issuers that the node trusts.
    pub issuers: &'a [PublicKey],
    /// Grants that it no longer accepts.
    pub revoked: &'a [QuotaSerial],
    /// The time.
    pub now_ms: u64,
}

/// A chain that was valid when it was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaChain {
    links: Vec<SignedObject<QuotaGrant>>,
}

impl QuotaChain {
    /// Checks a whole chain. Structure and issuer come before the costly signatures, node, model and
    /// time after.
    ///
    /// # Errors
    /// - [`ErrorCode::FrameTooLarge`] for an empty or too long chain.
    /// - [`ErrorCode::QuotaExceeded`] for an untrusted issuer, another model, or a link that widens, is too
    ///   deep or is revoked.
    /// - [`ErrorCode::NotYetValid`], [`ErrorCode::Expired`], [`ErrorCode::WrongAudience`].
    /// - [`ErrorCode::BadSignature`] for a link by another signer; as [`SignedObject::verify`].
    pub fn verify(chain: &[SignedBytes], context: &QuotaContext<'_>) -> Result<Self, ErrorCode> {
        let peeked = Self::peek(chain)?;
        check_chain(chain, &peeked)?;
        let first = peeked.first().ok_or(ErrorCode::FrameTooLarge)?;
        if !context.issuers.contains(&first.grantor) {
            return Err(ErrorCode::QuotaExceeded);
        }
        let links: Result<Vec<_>, _> =
            chain.iter().cloned().map(SignedObject::<QuotaGrant>::verify).collect();
        let verified = Self { links: links? };
        verified.check_context(context)?;
        Ok(verified)
    }

    /// As [`QuotaChain::verify`], for the holder: any issuer, node, model and time will do.
    ///
    /// # Errors
    /// As [`QuotaChain::verify`].
    pub fn verify_form(chain: &[SignedBytes]) -> Result<Self, ErrorCode> {
        check_chain(chain, &Self::peek(chain)?)?;
        let links: Result<Vec<_>, _> =
            chain.iter().cloned().map(SignedObject::<QuotaGrant>::verify).collect();
        Ok(Self { links: links? })
    }

    fn peek(chain: &[SignedBytes]) -> Result<Vec<QuotaGrant>, ErrorCode> {
        if chain.is_empty() || chain.len() > MAX_QUOTA_CHAIN {
            return Err(ErrorCode::FrameTooLarge);
        }
        chain.iter().map(SignedObject::<QuotaGrant>::peek).collect()
    }

    /// Checks everything that can change after the signatures were checked: time, revocations.
    ///
    /// # Errors
    /// As [`QuotaChain::verify`].
    pub fn check_context(&self, context: &QuotaContext<'_>) -> Result<(), ErrorCode> {
        let last = self.last();
        // Each link narrows its parent, so the last link stands for all.
        if context.now_ms < last.from_ms {
            return Err(ErrorCode::NotYetValid);
        }
        if context.now_ms >= last.until_ms {
            return Err(ErrorCode::Expired);
        }
        if !last.nodes.is_empty() && !last.nodes.contains(&context.node) {
            return Err(ErrorCode::WrongAudience);
        }
        let trusted = self.links.first().is_some_and(|first| context.issuers.contains(&first.grantor));
        let revoked = self.links.iter().any(|link| context.revoked.contains(&link.serial));
        let for_model = last.models.is_empty() || last.models.contains(&context.model);
        if trusted && !revoked && for_model { Ok(()) } else { Err(ErrorCode::QuotaExceeded) }
    }

    /// Checks that the holder of the last grant uses it for this turn.
    ///
    /// # Errors
    /// [`ErrorCode::BadSignature`] for a proof by another key, of another grant or for another turn.
    pub fn check_proof(&self, proof: SignedBytes, auth_hash: &AuthHash) -> Result<(), ErrorCode> {
        let last = self.last();
        let claimed = SignedObject::<QuotaProof>::peek(&proof)?;
        let fits = claimed.holder == last.holder
            && claimed.grant == last.quota_hash()
            && claimed.auth_hash == *auth_hash;
        if !fits {
            return Err(ErrorCode::BadSignature);
        }
        SignedObject::<QuotaProof>::verify(proof).map(drop)
    }

    /// The grants, the issuer's first.
    #[must_use]
    pub fn links(&self) -> &[SignedObject<QuotaGrant>] {
        &self.links
    }

    /// The last grant, which is in use.
    ///
    /// # Panics
    /// Never: a verified chain has a link.
    #[must_use]
    pub fn last(&self) -> &SignedObject<QuotaGrant> {
        self.links.last().expect("a verified chain has a link")
    }
}

/// A chain as text, for a file or a message: one line per link.
#[must_use]
pub fn chain_to_text(chain: &[SignedBytes]) -> String {
    let line = |link: &SignedBytes| format!("{TEXT_PREFIX}{}\n", URL_SAFE_NO_PAD.encode(codec::encode(link)));
    chain.iter().map(line).collect()
}

/// Undoes [`chain_to_text`]; checks the form alone.
///
/// # Errors
/// [`ErrorCode::NonCanonical`], [`ErrorCode::FrameTooLarge`].
pub fn chain_from_text(text: &str) -> Result<Vec<SignedBytes>, ErrorCode> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let link = |line: &str| {
        let encoded = line.strip_prefix(TEXT_PREFIX).ok_or(ErrorCode::NonCanonical)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| ErrorCode::NonCanonical)?;
        codec::decode(&bytes, MAX_SIGNED_BYTES + 72)
    };
    let chain = lines.take(MAX_QUOTA_CHAIN + 1).map(link).collect::<Result<Vec<_>, _>>()?;
    if chain.len() > MAX_QUOTA_CHAIN { Err(ErrorCode::FrameTooLarge) } else { Ok(chain) }
}

/// Checks that each link is signed by its parent's holder, names its parent and is narrower.
fn check_chain(chain: &[SignedBytes], peeked: &[QuotaGrant]) -> Result<(), ErrorCode> {
    peeked.iter().try_for_each(Signable::check)?;
    if peeked.first().is_none_or(|first| first.parent.is_some()) {
        return Err(ErrorCode::QuotaExceeded);
    }
    for (bytes, pair) in chain.iter().zip(peeked.windows(2)) {
        let [parent, child] = pair else { continue };
        if child.grantor != parent.holder || child.parent != Some(QuotaHash(bytes.hash(QUOTA_GRANT_HASH))) {
            return Err(ErrorCode::BadSignature);
        }
        if !child.narrows(parent) {
            return Err(ErrorCode::QuotaExceeded);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;

    use super::*;
    use crate::limits::VERSION;

    const NOW: u64 = 1_000_000;
    const NODE: NodeId = NodeId([5; 32]);
    const MODEL: ModelId = ModelId([6; 32]);

    fn key(fill: u8) -> SecretSigningKey {
        SecretSigningKey::from_seed(&[fill; 32])
    }

    fn first() -> QuotaGrant {
        QuotaGrant {
            version: VERSION,
            grantor: key(1).public_key(),
            serial: QuotaSerial([1; 16]),
            parent: None,
            holder: key(2).public_key(),
            nodes: Vec::new(),
            models: Vec::new(),
            turns_per_hour: 100,
            tokens_per_hour: 10_000,
            concurrent: 4,
            from_ms: NOW - 10,
            until_ms: NOW + 10,
            depth: 3,
        }
    }

    fn child(parent: &SignedObject<QuotaGrant>, by: u8) -> QuotaGrant {
        QuotaGrant {
            grantor: key(by).public_key(),
            serial: QuotaSerial([by; 16]),
            parent: Some(parent.quota_hash()),
            holder: key(by + 1).public_key(),
            depth: parent.depth - 1,
            ..QuotaGrant::clone(parent)
        }
    }

    fn verify(chain: &[SignedObject<QuotaGrant>], revoked: &[QuotaSerial]) -> Result<QuotaChain, ErrorCode> {
        let bytes: Vec<_> = chain.iter().map(|link| link.bytes().clone()).collect();
        let issuers = [key(1).public_key()];
        let context = QuotaContext { node: NODE, model: MODEL, issuers: &issuers, revoked, now_ms: NOW };
        QuotaChain::verify(&bytes, &context)
    }

    /// Four links, each signed by the holder of its parent.
    fn four() -> Vec<SignedObject<QuotaGrant>> {
        let mut chain = vec![SignedObject::sign(first(), &key(1))];
        for by in 2..5 {
            let next = child(chain.last().unwrap(), by);
            chain.push(SignedObject::sign(next, &key(by)));
        }
        chain
    }

    #[test]
    fn a_chain_of_four_holds_and_the_fifth_link_is_too_deep() {
        let mut chain = four();
        assert_eq!(verify(&chain, &[]).unwrap().last().depth, 0);
        let fifth = QuotaGrant { depth: 0, ..child(chain.first().unwrap(), 5) };
        let fifth = QuotaGrant { parent: Some(chain[3].quota_hash()), ..fifth };
        chain.push(SignedObject::sign(fifth, &key(5)));
        assert_eq!(verify(&chain, &[]).unwrap_err(), ErrorCode::FrameTooLarge);
        assert_eq!(verify(&[], &[]).unwrap_err(), ErrorCode::FrameTooLarge);
        // Nor may a short chain exceed its grant's depth.
        let shallow = SignedObject::sign(QuotaGrant { depth: 0, ..first() }, &key(1));
        let below = QuotaGrant { depth: 0, ..child(&SignedObject::sign(first(), &key(1)), 2) };
        let below = QuotaGrant { parent: Some(shallow.quota_hash()), ..below };
        assert_eq!(
            verify(&[shallow, SignedObject::sign(below, &key(2))], &[]).unwrap_err(),
            ErrorCode::QuotaExceeded
        );
    }

    #[test]
    fn a_chain_is_a_few_lines_of_text_and_back() {
        let chain: Vec<_> = four().iter().map(|link| link.bytes().clone()).collect();
        let text = chain_to_text(&chain);
        assert_eq!(text.lines().count(), 4);
        assert_eq!(chain_from_text(&text), Ok(chain));
        assert_eq!(chain_from_text(&format!("\n  {text}\n")).unwrap().len(), 4);
        assert_eq!(chain_from_text(&format!("{text}{text}")), Err(ErrorCode::FrameTooLarge));
        for wrong in ["x", "baton-quota-1:", "baton-quota-1:!!", "baton-quota-2:AAAA"] {
            assert_eq!(chain_from_text(wrong), Err(ErrorCode::NonCanonical), "{wrong}");
        }
    }

    #[test]
    fn no_link_widens_anything() {
        let outer = QuotaGrant { nodes: vec![NODE], models: vec![MODEL], ..first() };
        let parent = SignedObject::sign(outer, &key(1));
        type Change = fn(&mut QuotaGrant);
        let changes: &[Change] = &[
            |grant| grant.nodes.clear(),
            |grant| grant.nodes.push(NodeId([9; 32])),
            |grant| grant.models.clear(),
            |grant| grant.models = vec![ModelId([9; 32])],
            |grant| grant.turns_per_hour += 1,
            |grant| grant.tokens_per_hour += 1,
            |grant| grant.concurrent += 1,
            |grant| grant.from_ms -= 1,
            |grant| grant.until_ms += 1,
            |grant| grant.depth += 1,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut wider = child(&parent, 2);
            change(&mut wider);
            let chain = [parent.clone(), SignedObject::sign(wider, &key(2))];
            assert_eq!(verify(&chain, &[]).unwrap_err(), ErrorCode::QuotaExceeded, "change {number}");
        }
        assert!(verify(&[parent.clone(), SignedObject::sign(child(&parent, 2), &key(2))], &[]).is_ok());
    }

    #[test]
    fn refuses_other_signers_issuers_times_places_and_revoked_links() {
        let chain = four();
        let mut forged = chain.clone();
        forged[1] = SignedObject::sign(QuotaGrant::clone(&chain[1]), &key(9));
        // Its hash changes with its signature, so the next link does not name it.
        assert_eq!(verify(&forged, &[]).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(verify(&forged[..2], &[]).unwrap_err(), ErrorCode::BadSignature);
        let stolen = QuotaGrant { grantor: key(9).public_key(), ..child(&chain[0], 2) };
        let stolen = [chain[0].clone(), SignedObject::sign(stolen, &key(9))];
        assert_eq!(verify(&stolen, &[]).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(
            verify(&chain[1..], &[]).unwrap_err(),
            ErrorCode::QuotaExceeded,
            "the issuer's is left out"
        );
        let other = QuotaGrant { grantor: key(8).public_key(), ..first() };
        assert_eq!(verify(&[SignedObject::sign(other, &key(8))], &[]).unwrap_err(), ErrorCode::QuotaExceeded);
        for link in &chain {
            assert_eq!(verify(&chain, &[link.serial]).unwrap_err(), ErrorCode::QuotaExceeded);
        }
        for (changed, expected) in [
            (QuotaGrant { until_ms: NOW, ..first() }, ErrorCode::Expired),
            (QuotaGrant { from_ms: NOW + 1, ..first() }, ErrorCode::NotYetValid),
            (QuotaGrant { nodes: vec![NodeId([9; 32])], ..first() }, ErrorCode::WrongAudience),
            (QuotaGrant { models: vec![ModelId([9; 32])], ..first() }, ErrorCode::QuotaExceeded),
            (QuotaGrant { nodes: vec![NODE; 17], ..first() }, ErrorCode::FrameTooLarge),
            (QuotaGrant { depth: 4, ..first() }, ErrorCode::QuotaExceeded),
            (QuotaGrant { until_ms: NOW - 10, ..first() }, ErrorCode::QuotaExceeded),
        ] {
            assert_eq!(verify(&[SignedObject::sign(changed, &key(1))], &[]).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_proof_is_the_holders_and_for_one_turn_only() {
        let chain = verify(&four(), &[]).unwrap();
        let turn = AuthHash([7; 32]);
        let proof = QuotaProof {
            version: VERSION,
            holder: key(5).public_key(),
            grant: chain.last().quota_hash(),
            auth_hash: turn,
        };
        let signed = |proof: &QuotaProof, by: u8| SignedObject::sign(proof.clone(), &key(by)).bytes().clone();
        assert_eq!(chain.check_proof(signed(&proof, 5), &turn), Ok(()));
        let refused = Err(ErrorCode::BadSignature);
        assert_eq!(chain.check_proof(signed(&proof, 5), &AuthHash([8; 32])), refused, "another turn");
        assert_eq!(chain.check_proof(signed(&proof, 4), &turn), refused, "another key's signature");
        let thief = QuotaProof { holder: key(9).public_key(), ..proof.clone() };
        assert_eq!(chain.check_proof(signed(&thief, 9), &turn), refused, "another holder");
        let wider = QuotaProof { grant: chain.links()[0].quota_hash(), ..proof };
        assert_eq!(chain.check_proof(signed(&wider, 5), &turn), refused, "another grant of the chain");
    }
}
