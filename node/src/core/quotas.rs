//! Quotas from grant issuers: verifies grant chains, and counts the remaining quota of each grant. Pure.

use std::collections::HashMap;

use baton_mesh::Rates;
use baton_proto::{
    ErrorCode, codec,
    ids::{AuthHash, ModelId, NodeId, PublicKey, QuotaHash, QuotaSerial},
    quota::{QuotaChain, QuotaContext, QuotaUse},
};

use super::limits::HOUR_MS;

/// Chains with verified signatures. A few kilobytes each.
const MAX_CHAINS: usize = 256;
/// Maximum number of counted grants. The least recently used ones go first. Parents of used grants stay.
const MAX_GRANTS: usize = 4096;

/// The operator's policy on grants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaPolicy {
    /// Trusted issuers.
    pub issuers: Vec<PublicKey>,
    /// Whether turns without a grant are refused.
    pub required: bool,
    /// Revoked grants; their descendants are revoked with them.
    pub revoked: Vec<QuotaSerial>,
}

#[derive(Debug)]
struct QuotaAccount {
    turns: Rates<()>,
    tokens: Rates<()>,
    running: u16,
    at_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Quotas {
    policy: QuotaPolicy,
    node: NodeId,
    chains: HashMap<[u8; 32], QuotaChain>,
    accounts: HashMap<QuotaHash, QuotaAccount>,
}

/// A turn's share of its grants.
#[derive(Debug)]
pub(crate) struct HeldQuota {
    grants: Vec<QuotaHash>,
    /// Tokens taken from each.
    pub(crate) tokens: u64,
}

/// An error code, and the retry time in milliseconds.
type QuotaRefusal = (ErrorCode, u32);

impl Quotas {
    pub(crate) fn new(policy: QuotaPolicy, node: NodeId) -> Self {
        Self { policy, node, chains: HashMap::new(), accounts: HashMap::new() }
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
    ) -> Result<QuotaChain, ErrorCode> {
        let QuotaPolicy { issuers, revoked, .. } = &self.policy;
        let context = QuotaContext { node: self.node, model, issuers, revoked, now_ms };
        let name = name(used);
        let chain = match self.chains.get(&name) {
            Some(chain) => {
                chain.check_context(&context)?;
                chain.clone()
            }
            None => QuotaChain::verify(&used.chain, &context)?,
        };
        chain.check_proof(used.proof.clone(), auth_hash)?;
        // Remembers a chain only for a proven holder.
        if self.chains.len() >= MAX_CHAINS && !self.chains.contains_key(&name) {
            self.chains.clear();
        }
        self.chains.insert(name, chain.clone());
        Ok(chain)
    }

    /// Takes a turn and at most `most` tokens from every grant of a chain, or nothing. Takes fewer tokens if a
    /// grant has fewer an hour: the answer may have no more.
    pub(crate) fn take(
        &mut self,
        chain: &QuotaChain,
        most: u64,
        now_ms: u64,
    ) -> Result<HeldQuota, QuotaRefusal> {
        let links = chain.links();
        // A grant of nothing allows nothing, however long its holder waits.
        if links.iter().any(|link| link.turns_per_hour == 0 || (link.tokens_per_hour == 0 && most > 0)) {
            return Err((ErrorCode::QuotaExceeded, u32::MAX));
        }
        let tokens = links.iter().map(|link| link.tokens_per_hour).fold(most, u64::min);
        let mut grants = Vec::with_capacity(links.len());
        for link in links {
            let hash = link.quota_hash();
            self.make_room(&hash);
            let account = self.accounts.entry(hash).or_insert_with(|| QuotaAccount {
                turns: Rates::per(link.turns_per_hour.into(), HOUR_MS),
                tokens: Rates::per(link.tokens_per_hour, HOUR_MS),
                running: 0,
                at_ms: now_ms,
            });
            account.at_ms = now_ms;
            if let Err(wait) = account.take(link.concurrent, tokens, now_ms) {
                self.give_back(&HeldQuota { grants, tokens }, tokens, true);
                return Err((ErrorCode::QuotaExceeded, wait));
            }
            grants.push(hash);
        }
        Ok(HeldQuota { grants, tokens })
    }

    /// Returns the running place and the unused tokens of an ended turn. Returns the turn as well if it was
    /// unserved.
    pub(crate) fn give_back(&mut self, held: &HeldQuota, unused: u64, unserved: bool) {
        let tokens = unused.min(held.tokens);
        for hash in &held.grants {
            if let Some(account) = self.accounts.get_mut(hash) {
                account.running = account.running.saturating_sub(1);
                account.tokens.give_back(&(), tokens);
                if unserved {
                    account.turns.give_back(&(), 1);
                }
            }
        }
    }

    fn make_room(&mut self, hash: &QuotaHash) {
        if self.accounts.len() < MAX_GRANTS || self.accounts.contains_key(hash) {
            return;
        }
        let idle = self.accounts.iter().filter(|(_, account)| account.running == 0);
        if let Some(oldest) = idle.min_by_key(|(_, account)| account.at_ms).map(|(hash, _)| *hash) {
            self.accounts.remove(&oldest);
        }
    }
}

impl QuotaAccount {
    fn take(&mut self, concurrent: u16, tokens: u64, now_ms: u64) -> Result<(), u32> {
        if self.running >= concurrent {
            return Err(super::limits::BUSY_RETRY_MS);
        }
        self.turns.take((), now_ms)?;
        if let Err(wait) = self.tokens.take_many((), tokens, now_ms) {
            self.turns.give_back(&(), 1);
            return Err(wait);
        }
        self.running += 1;
        Ok(())
    }
}

fn name(used: &QuotaUse) -> [u8; 32] {
    blake3::hash(&codec::encode(&used.chain)).into()
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;
    use baton_proto::{
        SignedBytes, SignedObject,
        quota::{QuotaGrant, QuotaProof},
    };

    use super::*;

    const NODE: NodeId = NodeId([5; 32]);
    const MODEL: ModelId = ModelId([6; 32]);

    fn key(fill: u8) -> SecretSigningKey {
        SecretSigningKey::from_seed(&[fill; 32])
    }

    fn grant(
        parent: Option<&SignedObject<QuotaGrant>>,
        by: u8,
        turns_per_hour: u32,
    ) -> SignedObject<QuotaGrant> {
        let grant = QuotaGrant {
            version: 1,
            grantor: key(by).public_key(),
            serial: QuotaSerial([by; 16]),
            parent: parent.map(SignedObject::quota_hash),
            holder: key(by + 1).public_key(),
            nodes: Vec::new(),
            models: Vec::new(),
            turns_per_hour,
            tokens_per_hour: 1000,
            concurrent: 2,
            from_ms: 0,
            until_ms: 1_000_000,
            depth: parent.map_or(3, |parent| parent.depth - 1),
        };
        SignedObject::sign(grant, &key(by))
    }

    /// A grant of the issuer with these numbers of tokens and turns an hour.
    fn sized(tokens_per_hour: u64, turns_per_hour: u32) -> SignedObject<QuotaGrant> {
        let serial = QuotaSerial([u8::try_from(turns_per_hour % 200).unwrap(); 16]);
        let grant = (*grant(None, 1, turns_per_hour)).clone();
        SignedObject::sign(QuotaGrant { serial, tokens_per_hour, ..grant }, &key(1))
    }

    fn used(chain: &[&SignedObject<QuotaGrant>], holder: u8, turn: AuthHash) -> QuotaUse {
        let last = chain.last().unwrap();
        let proof = QuotaProof { version: 1, holder: last.holder, grant: last.quota_hash(), auth_hash: turn };
        let chain: Vec<SignedBytes> = chain.iter().map(|link| link.bytes().clone()).collect();
        QuotaUse { chain, proof: SignedObject::sign(proof, &key(holder)).bytes().clone() }
    }

    fn quotas(revoked: Vec<QuotaSerial>) -> Quotas {
        Quotas::new(QuotaPolicy { issuers: vec![key(1).public_key()], required: true, revoked }, NODE)
    }

    #[test]
    fn a_turn_counts_at_every_grant_of_its_chain() {
        let first = grant(None, 1, 3);
        let second = grant(Some(&first), 2, 2);
        let mut quotas = quotas(Vec::new());
        let turn = AuthHash([1; 32]);
        let of_first = quotas.check(&used(&[&first], 2, turn), (&turn, MODEL), 10).unwrap();
        let of_second = quotas.check(&used(&[&first, &second], 3, turn), (&turn, MODEL), 10).unwrap();
        let one = quotas.take(&of_second, 100, 10).unwrap();
        quotas.give_back(&one, 90, false);
        let two = quotas.take(&of_first, 100, 10).unwrap();
        quotas.give_back(&two, 90, false);
        let three = quotas.take(&of_second, 100, 10).unwrap();
        quotas.give_back(&three, 90, false);
        assert!(quotas.take(&of_first, 100, 10).is_err(), "three turns of the first were used");
        assert!(quotas.take(&of_second, 100, 10).is_err(), "and two of the second");
    }

    #[test]
    fn turns_at_once_and_tokens_are_bounded_and_come_back() {
        let first = grant(None, 1, 100);
        let mut quotas = quotas(Vec::new());
        let turn = AuthHash([1; 32]);
        let chain = quotas.check(&used(&[&first], 2, turn), (&turn, MODEL), 10).unwrap();
        let (one, two) = (quotas.take(&chain, 400, 10).unwrap(), quotas.take(&chain, 400, 10).unwrap());
        assert_eq!(quotas.take(&chain, 1, 10).unwrap_err(), (ErrorCode::QuotaExceeded, 1000), "two at once");
        quotas.give_back(&one, 0, false);
        let (_, wait) = quotas.take(&chain, 400, 10).unwrap_err();
        assert_eq!(wait, 720_000, "200 tokens more in a fifth of the hour");
        quotas.give_back(&two, 400, false);
        assert!(quotas.take(&chain, 400, 10).is_ok());
    }

    #[test]
    fn a_small_grant_is_a_limit_and_a_grant_of_nothing_allows_nothing() {
        let small = sized(1000, 100);
        let mut quotas = quotas(Vec::new());
        let turn = AuthHash([1; 32]);
        let chain = quotas.check(&used(&[&small], 2, turn), (&turn, MODEL), 10).unwrap();
        let mut served = 0;
        for _ in 0..10 {
            // Three quarters of the longest answer, which is far more than the grant has.
            let Ok(held) = quotas.take(&chain, 4096, 10) else { break };
            assert_eq!(held.tokens, 1000);
            let used = 3000.min(held.tokens);
            served += used;
            quotas.give_back(&held, held.tokens - used, false);
        }
        assert_eq!(served, 1000);
        for nothing in [sized(0, 100), sized(1000, 0)] {
            let chain = quotas.check(&used(&[&nothing], 2, turn), (&turn, MODEL), 10).unwrap();
            assert_eq!(quotas.take(&chain, 1, 10).unwrap_err(), (ErrorCode::QuotaExceeded, u32::MAX));
        }
    }

    #[test]
    fn a_known_chain_still_needs_its_proof_its_time_and_no_revocation() {
        let first = grant(None, 1, 100);
        let mut quotas = quotas(Vec::new());
        let (turn, other) = (AuthHash([1; 32]), AuthHash([2; 32]));
        let good = used(&[&first], 2, turn);
        assert!(!quotas.knows(&good));
        assert!(quotas.check(&good, (&turn, MODEL), 10).is_ok());
        assert!(quotas.knows(&good));
        assert_eq!(quotas.check(&good, (&other, MODEL), 10).unwrap_err(), ErrorCode::BadSignature);
        let stolen = used(&[&first], 9, other);
        assert_eq!(quotas.check(&stolen, (&other, MODEL), 10).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(quotas.check(&good, (&turn, MODEL), 1_000_000).unwrap_err(), ErrorCode::Expired);
        quotas.policy.revoked.push(first.serial);
        assert_eq!(quotas.check(&good, (&turn, MODEL), 10).unwrap_err(), ErrorCode::QuotaExceeded);
    }
}
