//! Quotas from grant issuers: verifies grant chains. [`crate::core::accounts`] counts their use. Pure.

use std::collections::HashMap;

use baton_proto::{
    ErrorCode, codec,
    ids::{AuthHash, ModelId, NodeId, PublicKey, RightId},
    right::{QuotaUse, RightChain},
};

/// Chains with verified signatures. A few kilobytes each.
const MAX_CHAINS: usize = 256;

/// The operator's policy on grants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// Trusted issuers.
    pub issuers: Vec<PublicKey>,
    /// Whether turns without a grant are refused.
    pub required: bool,
    /// Revoked grants; their descendants are revoked with them.
    pub revoked: Vec<RightId>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Quotas {
    policy: QuotaPolicy,
    node: NodeId,
    chains: HashMap<[u8; 32], RightChain>,
}

impl Quotas {
    pub(crate) fn new(policy: QuotaPolicy, node: NodeId) -> Self {
        Self { policy, node, chains: HashMap::new() }
    }

    /// Whether turns without a grant are refused.
    pub(crate) fn required(&self) -> bool {
        self.policy.required
    }

    /// Whether a chain's signatures were verified before.
    pub(crate) fn knows(&self, used: &QuotaUse) -> bool {
        self.chains.contains_key(&name(used))
    }

    /// Checks a chain and the proof for a turn. Cheap checks come first; a chain's signatures are verified
    /// once.
    pub(crate) fn check(
        &mut self,
        used: &QuotaUse,
        (auth_hash, model): (&AuthHash, ModelId),
        now_ms: u64,
    ) -> Result<RightChain, ErrorCode> {
        let QuotaPolicy { issuers, revoked, .. } = &self.policy;
        let name = name(used);
        let chain = match self.chains.get(&name) {
            Some(chain) => chain.clone(),
            None => RightChain::verify(&used.chain, issuers)?,
        };
        chain.check_use(self.node.public_key(), revoked, now_ms)?;
        if !chain.last().covers(model) {
            return Err(ErrorCode::QuotaExceeded);
        }
        chain.check_proof(used.proof.clone(), auth_hash)?;
        // Remembers a chain only for a proven holder.
        if self.chains.len() >= MAX_CHAINS && !self.chains.contains_key(&name) {
            self.chains.clear();
        }
        self.chains.insert(name, chain.clone());
        Ok(chain)
    }
}

fn name(used: &QuotaUse) -> [u8; 32] {
    blake3::hash(&codec::encode(&used.chain)).into()
}

/// Grants for the tests of this module and of the turn's charge.
#[cfg(test)]
pub(crate) mod fixtures {
    use baton_keys::SecretSigningKey;
    use baton_proto::{
        SignedBytes, SignedObject,
        ids::RightId,
        right::{Right, RightChain, RightScope, TurnQuota},
    };

    pub(crate) fn key(fill: u8) -> SecretSigningKey {
        SecretSigningKey::from_seed(&[fill; 32])
    }

    /// A grant by key `by` to key `by + 1`: below `parent`, or else of an issuer.
    pub(crate) fn grant(
        parent: Option<&SignedObject<Right>>,
        by: u8,
        (turns_per_hour, tokens_per_hour): (u32, u64),
    ) -> SignedObject<Right> {
        let quota = TurnQuota { models: Vec::new(), turns_per_hour, tokens_per_hour, concurrent: 2 };
        let grant = Right {
            id: RightId([by; 16]),
            parent: parent.map(SignedObject::right_hash),
            depth: parent.map_or(3, |parent| parent.depth - 1),
            ..Right::new(
                key(by).public_key(),
                key(by + 1).public_key(),
                RightScope::Turns(quota),
                0..1_000_000,
            )
        };
        SignedObject::sign(grant, &key(by))
    }

    pub(crate) fn chain(links: &[&SignedObject<Right>]) -> RightChain {
        let bytes: Vec<SignedBytes> = links.iter().map(|link| link.bytes().clone()).collect();
        RightChain::verify_form(&bytes).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        fixtures::{chain, grant, key},
        *,
    };

    const NODE: NodeId = NodeId([5; 32]);
    const MODEL: ModelId = ModelId([6; 32]);

    #[test]
    fn a_known_chain_still_needs_its_proof_its_time_and_no_revocation() {
        let first = grant(None, 1, (100, 1000));
        let policy = QuotaPolicy { issuers: vec![key(1).public_key()], required: true, revoked: Vec::new() };
        let mut quotas = Quotas::new(policy, NODE);
        let (turn, other) = (AuthHash([1; 32]), AuthHash([2; 32]));
        let good = chain(&[&first]).prove(&key(2), turn);
        assert!(!quotas.knows(&good));
        assert!(quotas.check(&good, (&turn, MODEL), 10).is_ok());
        assert!(quotas.knows(&good));
        assert_eq!(quotas.check(&good, (&other, MODEL), 10).unwrap_err(), ErrorCode::BadSignature);
        let stolen = chain(&[&first]).prove(&key(9), other);
        assert_eq!(quotas.check(&stolen, (&other, MODEL), 10).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(quotas.check(&good, (&turn, MODEL), 1_000_000).unwrap_err(), ErrorCode::Expired);
        quotas.policy.revoked.push(first.id);
        assert_eq!(quotas.check(&good, (&turn, MODEL), 10).unwrap_err(), ErrorCode::QuotaExceeded);
    }
}
