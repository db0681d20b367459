//! Known rights of owners: registered delegations, the invitation, and revoked ones.
//!
//! One sealed record of an owner has them. A revoked id is kept until its right has ended, so that its bearer
//! cannot present it again. A revocation of a right that was never seen is kept for ever.

use baton_keys::ids::PublicKey;
use baton_memory::{
    Memory,
    api::{MemoryError, Result},
    ids::OwnerId,
    limits::MAX_TEXT_BYTES,
};
use baton_proto::{
    ErrorCode, SignedBytes, codec,
    ids::RightId,
    right::{MemoryAccess, RightChain, RightScope},
};
use serde::{Deserialize, Serialize};

use super::refusal_reason;

/// Most registered delegations of one owner: devices and agents of a person.
pub(crate) const MAX_REGISTERED: usize = 256;
/// Most bytes of these. With the most revocations beside them, the record stays below the limit of its reader.
const MAX_REGISTERED_BYTES: usize = 384 * 1024;
/// Most revocations of one owner. A leaked delegation can be revoked by an owner with many of them, too.
pub(crate) const MAX_REVOKED: usize = 4096;
/// The owner's record.
const RECORD: &str = "rights";

/// The rights that an owner gave, as far as a relayer knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnerRights {
    /// Registered chains, oldest first.
    pub(crate) registered: Vec<Vec<SignedBytes>>,
    /// Rights that no longer count.
    pub(crate) revoked: Vec<Revocation>,
}

/// A right that its owner took back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Revocation {
    /// Its id.
    pub(crate) id: RightId,
    /// Its end; the greatest time if the relayer never saw it, since it may begin at any time.
    pub(crate) until_ms: u64,
}

impl OwnerRights {
    /// Reads a record, without rights that ended.
    fn read(bytes: Option<&Vec<u8>>, now_ms: u64) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let mut rights: Self = codec::decode(bytes, MAX_TEXT_BYTES)
            .map_err(|_| MemoryError::Damaged("a record of delegations does not decode".to_owned()))?;
        let holds = |chain: RightChain| now_ms < chain.last().until_ms;
        rights.registered.retain(|chain| RightChain::of_verified(chain).is_ok_and(holds));
        rights.revoked.retain(|revocation| now_ms < revocation.until_ms);
        Ok(rights)
    }

    /// The registered chains.
    pub(crate) fn chains(&self) -> impl Iterator<Item = RightChain> {
        self.registered.iter().filter_map(|chain| RightChain::of_verified(chain).ok())
    }

    fn revoked_ids(&self) -> Vec<RightId> {
        self.revoked.iter().map(|revocation| revocation.id).collect()
    }

    /// Adds a chain; returns whether it counts.
    fn register(&mut self, chain: &RightChain) -> Result<bool> {
        if chain.is_revoked(&self.revoked_ids()) {
            return Ok(false);
        }
        let bytes = chain.bytes();
        if !self.registered.contains(&bytes) {
            self.registered.push(bytes);
            let size = codec::encode(&self.registered).len();
            if self.registered.len() > MAX_REGISTERED || size > MAX_REGISTERED_BYTES {
                return Err(MemoryError::Full(format!(
                    "an owner registers at most {MAX_REGISTERED} delegations, of {MAX_REGISTERED_BYTES} bytes in all"
                )));
            }
        }
        Ok(true)
    }

    /// Takes a right back, with all that were narrowed from it. Returns whether anything changed.
    fn revoke(&mut self, id: RightId) -> Result<bool> {
        if self.revoked.iter().any(|revocation| revocation.id == id) {
            return Ok(false);
        }
        if self.revoked.len() >= MAX_REVOKED {
            return Err(MemoryError::Full(format!("an owner takes back at most {MAX_REVOKED} delegations")));
        }
        let mut until_ms = u64::MAX;
        self.registered.retain(|chain| {
            // An invitation is the operator's to revoke.
            let chain = RightChain::of_verified(chain).ok().filter(|chain| chain.last().memory().is_some());
            let named = chain.as_ref().and_then(|chain| chain.links().iter().find(|link| link.id == id));
            until_ms = named.map_or(until_ms, |link| link.until_ms);
            named.is_none()
        });
        self.revoked.push(Revocation { id, until_ms });
        Ok(true)
    }
}

/// The delegations of all owners.
#[derive(Clone)]
pub struct Registry {
    memory: Memory,
    /// The relayer's key; delegations for another relayer do not count.
    relayer: PublicKey,
}

impl Registry {
    /// The registry of the relayer with this key, over a memory's records.
    #[must_use]
    pub fn new(memory: Memory, relayer: PublicKey) -> Self {
        Self { memory, relayer }
    }

    /// The present right of a key to an owner's memory, by a presented chain or else by registered ones.
    /// Prefers a right without a project, then the one that expires last.
    ///
    /// # Errors
    /// Memory's, when records cannot be read.
    pub(crate) async fn find(
        &self,
        owner: OwnerId,
        key: &PublicKey,
        presented: Option<&RightChain>,
        now_ms: u64,
    ) -> Result<Option<MemoryAccess>> {
        let rights = self.list(owner, now_ms).await?;
        let chains: Vec<_> = presented.map_or_else(|| rights.chains().collect(), |chain| vec![chain.clone()]);
        let revoked = rights.revoked_ids();
        // Several relayers may share one database.
        let counting = chains.iter().filter(|chain| {
            chain.last().holder == *key && self.check(chain, owner, &revoked, now_ms).is_ok()
        });
        let accesses = counting.filter_map(|chain| Some((chain.last().memory()?, chain.last().until_ms)));
        let best = accesses.max_by_key(|(access, until_ms)| (access.project.is_none(), *until_ms));
        Ok(best.map(|(access, _)| access.clone()))
    }

    /// Whether the relayer invited an owner, and the operator did not revoke the invitation.
    ///
    /// # Errors
    /// Memory's.
    pub(crate) async fn is_invited(&self, owner: OwnerId, revoked: &[RightId], now_ms: u64) -> Result<bool> {
        let rights = self.list(owner, now_ms).await?;
        let counts = |chain: &RightChain| {
            chain.last().scope == RightScope::Ownership && self.check(chain, owner, revoked, now_ms).is_ok()
        };
        Ok(rights.chains().any(|chain| counts(&chain)))
    }

    /// Checks that a chain is an owner's delegation or an invitation of the owner, and counts at this relayer.
    pub(crate) fn check(
        &self,
        chain: &RightChain,
        owner: OwnerId,
        revoked: &[RightId],
        now_ms: u64,
    ) -> std::result::Result<(), ErrorCode> {
        let right = chain.last();
        let is_given = match right.scope {
            RightScope::Memory(_) => OwnerId::of(&chain.grantor()) == owner,
            RightScope::Ownership => chain.grantor() == self.relayer && OwnerId::of(&right.holder) == owner,
            RightScope::Turns(_) => false,
        };
        if is_given { chain.check_use(self.relayer, revoked, now_ms) } else { Err(ErrorCode::WrongAudience) }
    }

    /// Registers a right. A known one stays unchanged; returns whether it is valid, or was revoked.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for another owner's or relayer's, or one that has ended; [`MemoryError::Full`] and
    /// memory's.
    pub async fn register(&self, owner: OwnerId, chain: &RightChain, now_ms: u64) -> Result<bool> {
        // One that begins later may be registered now.
        let checked = self.check(chain, owner, &[], now_ms.max(chain.last().from_ms));
        let invalid = |code| MemoryError::Invalid(format!("the delegation {}", refusal_reason(code)));
        checked.map_err(invalid)?;
        self.change(owner, now_ms, |rights| rights.register(chain)).await
    }

    /// Revokes a right by its id, even one that the relayer never saw. Returns whether anything changed.
    ///
    /// # Errors
    /// [`MemoryError::Full`] and memory's.
    pub(crate) async fn revoke(&self, owner: OwnerId, id: RightId, now_ms: u64) -> Result<bool> {
        self.change(owner, now_ms, |rights| rights.revoke(id)).await
    }

    async fn change(
        &self,
        owner: OwnerId,
        now_ms: u64,
        change: impl Fn(&mut OwnerRights) -> Result<bool> + Send + Sync,
    ) -> Result<bool> {
        let mut changed = false;
        let decide = |read: &[Option<Vec<u8>>]| {
            let mut rights = OwnerRights::read(read.first().and_then(Option::as_ref), now_ms)?;
            changed = change(&mut rights)?;
            Ok(vec![(RECORD.to_owned(), Some(codec::encode(&rights)))])
        };
        self.memory.change_records(owner, &[RECORD.to_owned()], decide).await?;
        Ok(changed)
    }

    /// All known rights of an owner.
    ///
    /// # Errors
    /// Memory's.
    pub(crate) async fn list(&self, owner: OwnerId, now_ms: u64) -> Result<OwnerRights> {
        OwnerRights::read(self.memory.get_record(owner, RECORD).await?.as_ref(), now_ms)
    }
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;
    use baton_proto::right::{Permissions, Right};

    use super::*;
    use crate::setup::tests::SharedStorage;

    #[tokio::test]
    async fn registrations_of_two_relayers_at_once_are_all_stored() {
        let storage = SharedStorage::default();
        let registry = async || Registry::new(storage.memory().await, RELAYER);
        let (first, second) = (registry().await, registry().await);
        let keys = [0, 1, 2, 3, 4, 5, 6, 7].map(|number| PublicKey([number; 32]));
        let register = async |registry: &Registry, keys: &[PublicKey]| {
            for key in keys {
                assert!(registry.register(owner(), &signed(key, 100, 200), 0).await.unwrap());
            }
        };
        let taken = signed(&keys[0], 100, 200);
        let (mine, theirs) = keys.split_at(4);
        let revoke = async || {
            register(&second, theirs).await;
            assert!(second.revoke(owner(), taken.last().id, 0).await.unwrap());
        };
        tokio::join!(register(&first, mine), revoke());
        assert!(!first.register(owner(), &taken, 0).await.unwrap(), "it was taken back meanwhile");
        for registry in [&first, &second] {
            assert_eq!(registry.list(owner(), 0).await.unwrap().registered.len(), keys.len());
            assert!(registry.find(owner(), &keys[0], Some(&taken), 150).await.unwrap().is_none());
        }
    }

    const RELAYER: PublicKey = PublicKey([8; 32]);

    fn account() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[7; 32])
    }

    fn owner() -> OwnerId {
        OwnerId::of(&account().public_key())
    }

    async fn registry() -> (SharedStorage, Registry) {
        let storage = SharedStorage::default();
        let memory = storage.memory().await;
        (storage, Registry::new(memory, RELAYER))
    }

    fn right(delegate: &PublicKey, from_ms: u64, until_ms: u64) -> Right {
        let access = MemoryAccess { permissions: Permissions(1), project: None };
        Right::new(account().public_key(), *delegate, RightScope::Memory(access), from_ms..until_ms)
    }

    fn signed(delegate: &PublicKey, from_ms: u64, until_ms: u64) -> RightChain {
        RightChain::issue(right(delegate, from_ms, until_ms), &account()).unwrap()
    }

    #[tokio::test]
    async fn a_registered_delegation_counts_until_it_expires_or_is_taken_back() {
        let (_storage, registry) = registry().await;
        let key = PublicKey([2; 32]);
        let delegation = signed(&key, 100, 200);
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
        assert!(registry.register(owner(), &delegation, 50).await.unwrap());
        for (now, counts) in [(99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(registry.find(owner(), &key, None, now).await.unwrap().is_some(), counts, "{now}");
        }
        assert!(registry.find(OwnerId([1; 32]), &key, None, 150).await.unwrap().is_none());
        assert!(registry.find(owner(), &PublicKey([3; 32]), None, 150).await.unwrap().is_none());
        let id = delegation.last().id;
        assert!(registry.revoke(owner(), id, 150).await.unwrap());
        assert!(!registry.revoke(owner(), id, 150).await.unwrap(), "only once");
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
        assert!(registry.find(owner(), &key, Some(&delegation), 150).await.unwrap().is_none());
        assert!(!registry.register(owner(), &delegation, 150).await.unwrap(), "not even registered again");
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
        let known = registry.list(owner(), 200).await.unwrap();
        assert_eq!(known, OwnerRights::default(), "an ended right is forgotten");
    }

    #[tokio::test]
    async fn only_delegations_of_this_owner_at_this_relayer_count() {
        let (_storage, registry) = registry().await;
        let (key, thief) = (PublicKey([2; 32]), SecretSigningKey::from_seed(&[9; 32]));
        let changed = |change: fn(&mut Right)| {
            let mut right = right(&key, 100, 200);
            change(&mut right);
            RightChain::issue(right, &account()).unwrap()
        };
        let own = Right { grantor: thief.public_key(), ..right(&key, 100, 200) };
        for (chain, counts) in [
            (signed(&key, 100, 200), true),
            (changed(|right| right.places = vec![RELAYER]), true),
            (changed(|right| right.places = vec![PublicKey([5; 32])]), false),
            (changed(|right| right.scope = RightScope::Ownership), false),
            (signed(&key, 100, 150), false),
            (RightChain::issue(own, &thief).unwrap(), false),
        ] {
            let presented = registry.find(owner(), &key, Some(&chain), 150).await.unwrap();
            assert_eq!(presented.is_some(), counts, "{chain:?}");
            let registered = registry.register(owner(), &chain, 150).await;
            assert_eq!(registered.is_ok(), counts, "{registered:?}");
            for (owner, key) in [(OwnerId([1; 32]), key), (owner(), PublicKey([3; 32]))] {
                assert!(registry.find(owner, &key, Some(&chain), 150).await.unwrap().is_none());
            }
        }
    }

    #[tokio::test]
    async fn a_delegate_narrows_its_right_for_another_key_until_either_is_taken_back() {
        let (friend, key) = (SecretSigningKey::from_seed(&[2; 32]), PublicKey([3; 32]));
        for first in [false, true] {
            let (_storage, registry) = registry().await;
            let chain =
                RightChain::issue(Right { depth: 1, ..right(&friend.public_key(), 100, 200) }, &account());
            let chain = chain.unwrap().narrow(&friend, |right| right.holder = key).unwrap();
            registry.register(owner(), &chain, 100).await.unwrap();
            assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_some());
            let link = if first { &chain.links()[0] } else { chain.last() };
            registry.revoke(owner(), link.id, 150).await.unwrap();
            for presented in [None, Some(&chain)] {
                assert!(registry.find(owner(), &key, presented, 150).await.unwrap().is_none());
            }
        }
    }

    #[tokio::test]
    async fn an_unseen_delegation_can_be_taken_back_also_years_before_it_begins() {
        let (_storage, registry) = registry().await;
        let key = PublicKey([2; 32]);
        let later = signed(&key, 500_000_000, 500_000_900);
        assert!(registry.revoke(owner(), later.last().id, 1).await.unwrap());
        registry.register(owner(), &signed(&key, 500_000_000, 500_000_900), 500_000_000).await.unwrap();
        assert!(registry.find(owner(), &key, Some(&later), 500_000_001).await.unwrap().is_none());
        assert!(registry.find(owner(), &key, None, 500_000_001).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn registrations_and_revocations_are_bounded_and_ended_ones_make_room() {
        let (_storage, registry) = registry().await;
        let key = PublicKey([2; 32]);
        for _ in 0..MAX_REGISTERED {
            registry.register(owner(), &signed(&key, 100, 200), 0).await.unwrap();
        }
        let refused = registry.register(owner(), &signed(&key, 100, 200), 0).await;
        assert!(matches!(refused, Err(MemoryError::Full(_))), "{refused:?}");
        // A leaked delegation of a key that the relayer never saw.
        let leaked = signed(&PublicKey([3; 32]), 100, 900);
        assert!(registry.revoke(owner(), leaked.last().id, 1).await.unwrap());
        assert!(registry.find(owner(), &PublicKey([3; 32]), Some(&leaked), 150).await.unwrap().is_none());
        registry.register(owner(), &signed(&key, 200, 300), 200).await.unwrap();
        let known = registry.list(owner(), 200).await.unwrap();
        assert_eq!((known.registered.len(), known.revoked.len()), (1, 1));
        let mut rights = OwnerRights::default();
        for number in 0..MAX_REVOKED as u128 {
            rights.revoke(RightId(number.to_le_bytes())).unwrap();
        }
        assert!(matches!(rights.revoke(RightId([255; 16])), Err(MemoryError::Full(_))));
    }

    #[tokio::test]
    async fn long_chains_fill_the_record_before_it_can_no_longer_be_read() {
        let (_storage, registry) = registry().await;
        let keys = [2, 3, 4].map(|number| SecretSigningKey::from_seed(&[number; 32]));
        let access = MemoryAccess { permissions: Permissions(1), project: Some("g".repeat(256)) };
        let places = [vec![RELAYER], vec![PublicKey([5; 32]); 15]].concat();
        let first = right(&keys[0].public_key(), 100, 200);
        let first = Right { depth: 3, places, scope: RightScope::Memory(access), ..first };
        let mut chain = RightChain::issue(first, &account()).unwrap();
        for pair in keys.windows(2) {
            chain = chain.narrow(&pair[0], |right| right.holder = pair[1].public_key()).unwrap();
        }
        let mut registered = 0;
        let full = loop {
            let last = chain.narrow(&keys[2], |right| right.holder = PublicKey([3; 32])).unwrap();
            match registry.register(owner(), &last, 0).await {
                Ok(_) => registered += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, MemoryError::Full(_)) && registered < MAX_REGISTERED, "{full:?}");
        let mut rights = registry.list(owner(), 0).await.unwrap();
        let other = |number: u128| Revocation { id: RightId(number.to_le_bytes()), until_ms: u64::MAX };
        rights.revoked = (1..MAX_REVOKED as u128).map(other).collect();
        registry.memory.put_record(owner(), RECORD, Some(codec::encode(&rights))).await.unwrap();
        assert_eq!(registry.list(owner(), 0).await.unwrap().registered.len(), registered);
        assert!(registry.revoke(owner(), chain.links()[0].id, 0).await.unwrap());
        assert!(registry.list(owner(), 0).await.unwrap().registered.is_empty());
    }

    #[tokio::test]
    async fn the_unbound_delegation_goes_before_one_for_a_project() {
        let (_storage, registry) = registry().await;
        let key = PublicKey([2; 32]);
        let garden = Some("garden".to_owned());
        let access = MemoryAccess { permissions: Permissions(1), project: garden.clone() };
        let bound = Right { scope: RightScope::Memory(access), ..right(&key, 100, 900) };
        let bound = RightChain::issue(bound, &account()).unwrap();
        for (chain, project) in [(bound, garden), (signed(&key, 100, 200), None)] {
            registry.register(owner(), &chain, 0).await.unwrap();
            let found = registry.find(owner(), &key, None, 150).await.unwrap().unwrap();
            assert_eq!(found.project, project);
        }
    }
}
