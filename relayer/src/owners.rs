//! Admission of owners: the keys that may have memory on this relayer.
//!
//! Account keys are free, so an open relayer serves everybody. The operator may list owners, or invite them: an
//! invitation is a [`Right`] of the relayer's own key for the owner's key. The owner
//! presents it once, and the relayer keeps it among the owner's records. The number of owners is bounded in any
//! case. The HTTP gate and the sealed endpoint ask this module.

use std::collections::HashSet;

use baton_keys::{SecretSigningKey, ids::PublicKey};
use baton_limits::{Buckets, Rate, Subnet};
use baton_memory::{api::MemoryError, ids::OwnerId};
use baton_proto::{
    ErrorCode,
    ids::RightId,
    right::{Right, RightChain, RightScope},
};
use clap::ValueEnum;
use parking_lot::Mutex;

use crate::delegation::{refusal_reason, registry::Registry};

/// New owners from one subnet: households and small offices.
const NEW_OWNERS: Rate = Rate::per_hour(30);
const DAY_MS: u64 = 24 * 3_600_000;

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
    pub revoked: Vec<RightId>,
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
    state: Mutex<OwnersState>,
}

#[derive(Debug)]
struct OwnersState {
    /// Owners with memory, and those that were admitted since the last count.
    known: HashSet<OwnerId>,
    /// Whether the last count found owners that are refused.
    refuses_some: bool,
    new: Buckets<Subnet>,
}

impl Owners {
    /// The owners of a relayer.
    #[must_use]
    pub fn new(policy: OwnerPolicy) -> Self {
        let new = Buckets::new(NEW_OWNERS);
        let state = OwnersState { known: HashSet::new(), refuses_some: false, new };
        Self { policy, state: Mutex::new(state) }
    }

    /// Replaces the known owners by those with records. Owners that were admitted and wrote nothing are forgotten.
    /// `refuses_some` tells whether others are refused, since their keys do not open their memory.
    pub(crate) fn recount(&self, owners: HashSet<OwnerId>, refuses_some: bool) {
        let mut state = self.state.lock();
        (state.known, state.refuses_some) = (owners, refuses_some);
    }

    /// What `/readyz` says of refused owners: it names none of them.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.state.lock().refuses_some.then_some(
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
        registry: &Registry,
        now_ms: u64,
    ) -> Result<(), OwnerRefusal> {
        if self.policy.owners == OwnerAdmission::Open || self.policy.listed.contains(&owner) {
            return Ok(());
        }
        if self.policy.owners == OwnerAdmission::Listed {
            return Err(OwnerRefusal::NotListed);
        }
        let invited = registry.is_invited(owner, &self.policy.revoked, now_ms).await;
        if invited.map_err(OwnerRefusal::Memory)? { Ok(()) } else { Err(OwnerRefusal::NotInvited) }
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
        let mut state = self.state.lock();
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

    /// Keeps an owner's invitation; returns its end.
    ///
    /// # Errors
    /// [`OwnerRefusal::Full`]; [`MemoryError::Invalid`] for text that is no valid invitation of this owner; memory's.
    pub(crate) async fn redeem(
        &self,
        owner: OwnerId,
        text: &str,
        registry: &Registry,
        now_ms: u64,
    ) -> Result<u64, OwnerRefusal> {
        let invalid = |code| {
            let text = format!("the invitation {}: ask the operator for another", refusal_reason(code));
            OwnerRefusal::Memory(MemoryError::Invalid(text))
        };
        let chain = text.parse::<RightChain>().map_err(invalid)?;
        registry.check(&chain, owner, &self.policy.revoked, now_ms).map_err(invalid)?;
        if chain.last().scope != RightScope::Ownership {
            return Err(invalid(ErrorCode::WrongAudience));
        }
        // An invited owner needs no rate of its subnet: the operator knows its key.
        self.count(owner, None, now_ms)?;
        match registry.register(owner, &chain, now_ms).await.map_err(OwnerRefusal::Memory)? {
            true => Ok(chain.last().until_ms),
            false => Err(invalid(ErrorCode::QuotaExceeded)),
        }
    }
}

/// An invitation of an owner's key.
///
/// # Errors
/// [`ErrorCode::QuotaExceeded`] for no days.
pub fn invite(
    relayer: &SecretSigningKey,
    holder: PublicKey,
    days: u64,
    now_ms: u64,
) -> Result<RightChain, ErrorCode> {
    let until_ms = now_ms.saturating_add(days.saturating_mul(DAY_MS));
    let right = Right::new(relayer.public_key(), holder, RightScope::Ownership, now_ms..until_ms);
    RightChain::issue(Right { places: vec![relayer.public_key()], ..right }, relayer)
}

#[cfg(test)]
mod tests {
    use baton_proto::right::TurnQuota;

    use super::*;
    use crate::setup::tests::SharedStorage;

    const NOW_MS: u64 = 1_795_302_840_000;

    fn relayer() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[1; 32])
    }

    async fn registry() -> (SharedStorage, Registry) {
        let storage = SharedStorage::default();
        let memory = storage.memory().await;
        (storage, Registry::new(memory, relayer().public_key()))
    }

    fn key(number: u32) -> PublicKey {
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&number.to_le_bytes());
        SecretSigningKey::from_seed(&seed).public_key()
    }

    #[tokio::test]
    async fn an_invitation_admits_its_holder_until_it_ends() {
        let (_storage, registry) = registry().await;
        let policy = OwnerPolicy { owners: OwnerAdmission::Invited, ..OwnerPolicy::default() };
        let invited = Owners::new(policy.clone());
        let (holder, other) = (OwnerId::of(&key(1)), OwnerId::of(&key(2)));
        let invitation = invite(&relayer(), key(1), 2, NOW_MS).unwrap();
        let text = invitation.to_string();
        let refused = invited.check_policy(holder, &registry, NOW_MS).await;
        assert!(matches!(refused, Err(OwnerRefusal::NotInvited)), "{refused:?}");
        let invalid = |answer: Result<u64, OwnerRefusal>| {
            matches!(answer, Err(OwnerRefusal::Memory(MemoryError::Invalid(_))))
        };
        assert!(invalid(invited.redeem(other, &text, &registry, NOW_MS).await), "another's");
        assert!(invalid(invited.redeem(holder, "nonsense", &registry, NOW_MS).await));
        let foreign = invite(&SecretSigningKey::from_seed(&[2; 32]), key(1), 2, NOW_MS).unwrap().to_string();
        assert!(invalid(invited.redeem(holder, &foreign, &registry, NOW_MS).await), "another operator's");
        let quota = TurnQuota { models: Vec::new(), turns_per_hour: 1, tokens_per_hour: 1, concurrent: 1 };
        let valid_ms = NOW_MS..NOW_MS + DAY_MS;
        let grant = Right::new(relayer().public_key(), key(1), RightScope::Turns(quota), valid_ms);
        let grant = RightChain::issue(grant, &relayer()).unwrap().to_string();
        assert!(invalid(invited.redeem(holder, &grant, &registry, NOW_MS).await), "a grant of turns");
        invited.redeem(holder, &text, &registry, NOW_MS).await.unwrap();
        for owners in [&invited, &Owners::new(policy.clone())] {
            assert!(owners.check_policy(holder, &registry, NOW_MS).await.is_ok());
            let ended = owners.check_policy(holder, &registry, NOW_MS + 2 * DAY_MS).await;
            assert!(matches!(ended, Err(OwnerRefusal::NotInvited)), "{ended:?}");
        }
        let revoking = Owners::new(OwnerPolicy { revoked: vec![invitation.last().id], ..policy });
        let refused = revoking.check_policy(holder, &registry, NOW_MS).await;
        assert!(matches!(refused, Err(OwnerRefusal::NotInvited)), "{refused:?}");
        assert!(invite(&relayer(), key(1), 0, NOW_MS).is_err());
    }

    #[test]
    fn fresh_keys_end_at_the_budget_and_at_the_rate_of_their_subnet() {
        let owners = Owners::new(OwnerPolicy { max_owners: 100, ..OwnerPolicy::default() });
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
