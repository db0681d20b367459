//! Admission of owners: the keys that may have memory on this relayer.
//!
//! Account keys are free, so an open relayer serves everybody. The operator may list owners, or invite them: an
//! invitation is a [`QuotaGrant`] of the relayer's own key for the owner's key and this relayer alone. The owner
//! presents it once, and the relayer keeps it among the owner's records. The number of owners is bounded in any
//! case. The HTTP gate and the sealed endpoint ask this module.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use baton_keys::{SecretSigningKey, ids::PublicKey, secret::random_bytes};
use baton_limits::{Buckets, Rate, Subnet};
use baton_memory::{api::MemoryError, ids::OwnerId};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    ids::{ModelId, NodeId, QuotaSerial},
    limits::{MAX_QUOTA_CHAIN, MAX_SIGNED_BYTES, VERSION},
    quota::{QuotaChain, QuotaContext, QuotaGrant, chain_from_text, chain_to_text},
};

use clap::ValueEnum;

use crate::delegation::registry::Records;

/// New owners from one subnet: households and small offices.
const NEW_OWNERS: Rate = Rate::per_hour(30);
const DAY_MS: u64 = 24 * 3_600_000;
/// Invitations that are remembered as valid; when full, all are looked up again.
const MAX_CHECKED: usize = 4096;
/// The owner's record with its invitation.
const RECORD: &str = "invitation";
/// Longest record: all links of a chain.
const MAX_RECORD_BYTES: usize = MAX_QUOTA_CHAIN * (MAX_SIGNED_BYTES + 80) + 8;

/// Who may be an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OwnerAdmission {
    /// Any account key.
    Open,
    /// The owners that the operator lists.
    #[default]
    Listed,
    /// The listed owners, and the holders of invitations.
    Invited,
}

/// The operator's decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerPolicy {
    /// Who may be an owner.
    pub owners: OwnerAdmission,
    /// Owners that are admitted without an invitation.
    pub listed: Vec<OwnerId>,
    /// Invitations that no longer count.
    pub revoked: Vec<QuotaSerial>,
    /// Most owners with memory.
    pub max_owners: usize,
}

impl Default for OwnerPolicy {
    /// The default on loopback.
    fn default() -> Self {
        Self { owners: OwnerAdmission::Open, listed: Vec::new(), revoked: Vec::new(), max_owners: 10_000 }
    }
}

/// Why an owner is not admitted.
#[derive(Debug)]
pub(crate) enum OwnerRefusal {
    /// The operator lists owners, and this one is not listed.
    NotListed,
    /// The operator invites owners, and this one has no valid invitation.
    NotInvited,
    /// The relayer has as many owners as it takes.
    Full(usize),
    /// Too many new owners from one subnet; the wait in milliseconds.
    TooManyNew(u32),
    /// Memory failed to answer.
    Memory(MemoryError),
}

/// The owners of a relayer.
#[derive(Debug)]
pub struct Owners {
    policy: OwnerPolicy,
    /// The key that signs invitations; also the relayer's name in them.
    relayer: PublicKey,
    state: Mutex<OwnersState>,
}

#[derive(Debug)]
struct OwnersState {
    /// Owners with memory, and those that were admitted since the last count.
    known: HashSet<OwnerId>,
    /// Whether the last count found owners that are refused.
    refuses_some: bool,
    new: Buckets<Subnet>,
    /// Ends of verified invitations, in milliseconds since the Unix epoch.
    invited: HashMap<OwnerId, u64>,
}

impl Owners {
    /// The owners of the relayer with this key.
    #[must_use]
    pub fn new(policy: OwnerPolicy, relayer: PublicKey) -> Self {
        let new = Buckets::new(NEW_OWNERS);
        let state = OwnersState { known: HashSet::new(), refuses_some: false, new, invited: HashMap::new() };
        Self { policy, relayer, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, OwnersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the known owners by those with records. Owners that were admitted and wrote nothing are forgotten.
    /// `refuses_some` tells whether others are refused, since their keys do not open their memory.
    pub(crate) fn recount(&self, owners: HashSet<OwnerId>, refuses_some: bool) {
        let mut state = self.state();
        (state.known, state.refuses_some) = (owners, refuses_some);
    }

    /// What `/readyz` says of refused owners: it names none of them.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.state().refuses_some.then_some(
            "some owners are refused: their key files are damaged, or their database is behind; the log names the files, and \
             `baton-relayer doctor` the fix",
        )
    }

    /// Most owners that a recount needs to read: one more is too many already.
    #[must_use]
    pub fn max_owners(&self) -> usize {
        self.policy.max_owners
    }

    /// Whether the operator's policy admits an owner. It counts nothing, so it may be asked before the caller's
    /// right is known.
    ///
    /// # Errors
    /// [`OwnerRefusal`].
    pub(crate) async fn check_policy(
        &self,
        owner: OwnerId,
        records: &dyn Records,
        now_ms: u64,
    ) -> Result<(), OwnerRefusal> {
        if self.policy.owners == OwnerAdmission::Open || self.policy.listed.contains(&owner) {
            return Ok(());
        }
        if self.policy.owners == OwnerAdmission::Listed {
            return Err(OwnerRefusal::NotListed);
        }
        if self.state().invited.get(&owner).is_some_and(|until_ms| now_ms < *until_ms) {
            return Ok(());
        }
        let record = records.get(owner, RECORD.to_owned()).await.map_err(OwnerRefusal::Memory)?;
        let chain = record.and_then(|bytes| codec::decode::<Vec<SignedBytes>>(&bytes, MAX_RECORD_BYTES).ok());
        let until_ms = chain.and_then(|chain| self.verify(&chain, owner, now_ms).ok());
        self.note_invited(owner, until_ms.ok_or(OwnerRefusal::NotInvited)?);
        Ok(())
    }

    fn note_invited(&self, owner: OwnerId, until_ms: u64) {
        let mut state = self.state();
        if state.invited.len() >= MAX_CHECKED {
            state.invited.clear();
        }
        state.invited.insert(owner, until_ms);
    }

    /// Counts an owner whose caller's right was verified. An owner with memory is always admitted; another one only
    /// within the budget of owners and the rate of its subnet.
    ///
    /// # Errors
    /// [`OwnerRefusal::Full`], [`OwnerRefusal::TooManyNew`].
    pub(crate) fn count(
        &self,
        owner: OwnerId,
        subnet: Option<Subnet>,
        now_ms: u64,
    ) -> Result<(), OwnerRefusal> {
        let mut state = self.state();
        if state.known.contains(&owner) {
            return Ok(());
        }
        if state.known.len() >= self.policy.max_owners {
            return Err(OwnerRefusal::Full(self.policy.max_owners));
        }
        if let Some(subnet) = subnet {
            state.new.take(subnet, now_ms).map_err(OwnerRefusal::TooManyNew)?;
        }
        state.known.insert(owner);
        Ok(())
    }

    /// Verifies an invitation for an owner; returns its end.
    fn verify(&self, chain: &[SignedBytes], owner: OwnerId, now_ms: u64) -> Result<u64, ErrorCode> {
        let context = QuotaContext {
            node: NodeId(self.relayer.0),
            model: ModelId([0; 32]),
            issuers: &[self.relayer],
            revoked: &self.policy.revoked,
            now_ms,
        };
        let chain = QuotaChain::verify(chain, &context)?;
        let last = chain.links().last().ok_or(ErrorCode::FrameTooLarge)?;
        // A grant for any node is none for a relayer.
        if OwnerId::of(&last.holder) != owner || last.nodes != [context.node] {
            return Err(ErrorCode::WrongAudience);
        }
        Ok(last.until_ms)
    }

    /// Keeps an owner's invitation; returns its end.
    ///
    /// # Errors
    /// [`OwnerRefusal::Full`]; [`MemoryError::Invalid`] for text that is no valid invitation of this owner; memory's.
    pub(crate) async fn redeem(
        &self,
        owner: OwnerId,
        text: &str,
        records: &dyn Records,
        now_ms: u64,
    ) -> Result<u64, OwnerRefusal> {
        let invalid = |code: ErrorCode| {
            let reason = match code {
                ErrorCode::NonCanonical => "this text is no invitation",
                ErrorCode::WrongAudience => "the invitation is for another owner or another relayer",
                ErrorCode::Expired => "the invitation has expired",
                ErrorCode::NotYetValid => "the invitation is not valid yet",
                ErrorCode::QuotaExceeded => "the invitation was revoked, or is by another operator",
                _ => "the invitation does not verify",
            };
            OwnerRefusal::Memory(MemoryError::Invalid(format!("{reason}: ask the operator for another")))
        };
        let chain = chain_from_text(text).map_err(invalid)?;
        let until_ms = self.verify(&chain, owner, now_ms).map_err(invalid)?;
        // An invited owner needs no rate of its subnet: the operator knows its key.
        self.count(owner, None, now_ms)?;
        let kept = records.put(owner, RECORD.to_owned(), Some(codec::encode(&chain))).await;
        kept.map_err(OwnerRefusal::Memory)?;
        self.note_invited(owner, until_ms);
        Ok(until_ms)
    }
}

/// An invitation of an owner's key, as one line of text, with its serial. It is worth nothing at a node.
///
/// # Errors
/// A text for the operator: the time is out of range.
pub fn invite(
    relayer: &SecretSigningKey,
    holder: PublicKey,
    days: u64,
    now_ms: u64,
) -> Result<(String, QuotaSerial), String> {
    let grant = QuotaGrant {
        version: VERSION,
        grantor: relayer.public_key(),
        serial: QuotaSerial(random_bytes()),
        parent: None,
        holder,
        nodes: vec![NodeId(relayer.public_key().0)],
        models: Vec::new(),
        turns_per_hour: 0,
        tokens_per_hour: 0,
        concurrent: 0,
        from_ms: now_ms,
        until_ms: now_ms.saturating_add(days.saturating_mul(DAY_MS)),
        depth: 0,
    };
    let grant = SignedObject::sign(grant, relayer);
    SignedObject::<QuotaGrant>::verify(grant.bytes().clone())
        .map_err(|code| format!("{code}: --days is at least 1"))?;
    Ok((chain_to_text(std::slice::from_ref(grant.bytes())).trim_end().to_owned(), grant.serial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegation::registry::tests::InMemoryRecords;

    const NOW_MS: u64 = 1_795_302_840_000;

    fn relayer() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[1; 32])
    }

    fn owners(policy: OwnerPolicy) -> Owners {
        Owners::new(policy, relayer().public_key())
    }

    fn key(number: u32) -> PublicKey {
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&number.to_le_bytes());
        SecretSigningKey::from_seed(&seed).public_key()
    }

    #[tokio::test]
    async fn a_list_admits_its_owners_alone() {
        let records = InMemoryRecords::default();
        let (friend, other) = (OwnerId::of(&key(1)), OwnerId::of(&key(2)));
        let policy =
            OwnerPolicy { owners: OwnerAdmission::Listed, listed: vec![friend], ..OwnerPolicy::default() };
        let listed = owners(policy.clone());
        assert!(listed.check_policy(friend, &records, NOW_MS).await.is_ok());
        let refused = listed.check_policy(other, &records, NOW_MS).await;
        assert!(matches!(refused, Err(OwnerRefusal::NotListed)), "{refused:?}");
        let open = owners(OwnerPolicy { owners: OwnerAdmission::Open, ..policy });
        assert!(open.check_policy(other, &records, NOW_MS).await.is_ok());
    }

    #[tokio::test]
    async fn an_invitation_admits_its_holder_until_it_ends() {
        let records = InMemoryRecords::default();
        let policy = OwnerPolicy { owners: OwnerAdmission::Invited, ..OwnerPolicy::default() };
        let invited = owners(policy.clone());
        let (holder, other) = (OwnerId::of(&key(1)), OwnerId::of(&key(2)));
        let (text, serial) = invite(&relayer(), key(1), 2, NOW_MS).unwrap();
        let refused = invited.check_policy(holder, &records, NOW_MS).await;
        assert!(matches!(refused, Err(OwnerRefusal::NotInvited)), "{refused:?}");
        let invalid = |answer: Result<u64, OwnerRefusal>| {
            matches!(answer, Err(OwnerRefusal::Memory(MemoryError::Invalid(_))))
        };
        assert!(invalid(invited.redeem(other, &text, &records, NOW_MS).await), "another's");
        assert!(invalid(invited.redeem(holder, "nonsense", &records, NOW_MS).await));
        let (foreign, _) = invite(&SecretSigningKey::from_seed(&[2; 32]), key(1), 2, NOW_MS).unwrap();
        assert!(invalid(invited.redeem(holder, &foreign, &records, NOW_MS).await), "another operator's");
        invited.redeem(holder, &text, &records, NOW_MS).await.unwrap();
        for owners in [&invited, &owners(policy.clone())] {
            assert!(owners.check_policy(holder, &records, NOW_MS).await.is_ok());
            let ended = owners.check_policy(holder, &records, NOW_MS + 2 * DAY_MS).await;
            assert!(matches!(ended, Err(OwnerRefusal::NotInvited)), "{ended:?}");
        }
        let revoking = owners(OwnerPolicy { revoked: vec![serial], ..policy });
        let refused = revoking.check_policy(holder, &records, NOW_MS).await;
        assert!(matches!(refused, Err(OwnerRefusal::NotInvited)), "{refused:?}");
        assert!(invite(&relayer(), key(1), 0, NOW_MS).is_err());
    }

    #[test]
    fn fresh_keys_end_at_the_budget_and_at_the_rate_of_their_subnet() {
        let owners = owners(OwnerPolicy { max_owners: 100, ..OwnerPolicy::default() });
        let subnet = |third: u8| Some(Subnet::V4([203, 0, third]));
        let admitted = |from: std::ops::Range<u32>, third| {
            from.filter(|number| owners.count(OwnerId::of(&key(*number)), subnet(third), NOW_MS).is_ok())
                .count()
        };
        assert_eq!(admitted(0..200, 1), 30, "an hour's new owners of one subnet");
        assert_eq!([admitted(200..400, 2), admitted(400..600, 3), admitted(600..800, 4)], [30, 30, 10]);
        let full = owners.count(OwnerId::of(&key(900)), subnet(5), NOW_MS);
        assert!(matches!(full, Err(OwnerRefusal::Full(100))), "{full:?}");
        assert!(owners.count(OwnerId::of(&key(0)), subnet(1), NOW_MS).is_ok(), "known ones stay");
        owners.recount(HashSet::from([OwnerId::of(&key(0))]), false);
        assert!(owners.count(OwnerId::of(&key(900)), subnet(5), NOW_MS).is_ok(), "there is room again");
    }
}
