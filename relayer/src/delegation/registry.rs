//! Known delegations: registered by the owner, presented with a request, or revoked.
//!
//! Each key has one sealed record with its delegations, and one record lists all keys for the owner. A
//! revoked delegation is kept until its expiry, so that its bearer cannot present it again. A revocation of one
//! that was never seen is kept for ever, since the delegation may begin at any time.

use std::sync::Arc;

use baton_keys::ids::PublicKey;
use baton_memory::{
    Memory, RecordChanges,
    api::{MemoryError, Result},
    ids::OwnerId,
};
use baton_proto::codec;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{Delegation, SignedDelegation};

/// Most delegations of one key: one for each of a few projects, and a few replaced ones.
pub(crate) const MAX_PER_KEY: usize = 16;
/// Most keys of one owner: devices and agents of a person.
pub(crate) const MAX_KEYS: usize = 256;
/// Keys beyond [`MAX_KEYS`] that only a revocation may use: a leaked delegation can be revoked by an owner with
/// many keys, too.
const MAX_REVOKED_KEYS: usize = 256;
/// Longest record: all keys, or [`MAX_PER_KEY`] delegations with names and signatures.
const MAX_RECORD_BYTES: usize = 64 * 1024;
const INDEX: &str = "delegates";

/// The functions of memory that authentication needs: nonces and small sealed records.
pub trait Records: Send + Sync {
    /// As [`Memory::take_nonce`].
    fn take_nonce(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>>;
    /// As [`Memory::take_nonce_to_read`].
    fn take_nonce_to_read(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>>;
    /// As [`Memory::has_nonce`].
    fn has_nonce(&self, nonce: [u8; 32], now_ms: u64) -> BoxFuture<'_, Result<bool>>;
    /// As [`Memory::get_record`].
    fn get(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>>;
    /// As [`Memory::put_record`].
    fn put(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) -> BoxFuture<'_, Result<()>>;
    /// As [`Memory::change_records`]: a decision is still valid when it is written, even with other writers.
    fn change<'a>(
        &'a self,
        owner: OwnerId,
        names: Vec<String>,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<()>>;
}

/// Decides on changes from the records' contents; may be called more than once.
pub type Change<'a> = Box<dyn FnMut(&[Option<Vec<u8>>]) -> Result<RecordChanges> + Send + 'a>;

impl Records for Memory {
    fn take_nonce(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { Memory::take_nonce(self, nonce, now_ms, until_ms).await })
    }

    fn take_nonce_to_read(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { Memory::take_nonce_to_read(self, nonce, now_ms, until_ms).await })
    }

    fn has_nonce(&self, nonce: [u8; 32], now_ms: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move { Memory::has_nonce(self, nonce, now_ms).await })
    }

    fn get(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move { self.get_record(owner, &name).await })
    }

    fn put(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.put_record(owner, &name, bytes).await })
    }

    fn change<'a>(
        &'a self,
        owner: OwnerId,
        names: Vec<String>,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.change_records(owner, &names, change).await })
    }
}

/// A delegation that the relayer knows of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DelegationEntry {
    /// The delegation; `None` for one that was revoked before the relayer saw it.
    pub(crate) signed: Option<SignedDelegation>,
    /// Its id.
    pub(crate) id: [u8; 16],
    /// Whether the owner revoked it.
    pub(crate) revoked: bool,
    /// When it became known, in milliseconds since the Unix epoch.
    pub(crate) since_ms: u64,
    /// How long it must be kept, in seconds since the Unix epoch.
    pub(crate) until_s: u64,
}

impl DelegationEntry {
    fn counts_at(&self, now_s: u64) -> Option<&Delegation> {
        let delegation = &self.signed.as_ref()?.delegation;
        (!self.revoked && delegation.holds_at(now_s)).then_some(delegation)
    }
}

/// The delegations of all owners.
#[derive(Clone)]
pub struct Registry {
    records: Arc<dyn Records>,
    /// The relayer's key; delegations for another relayer do not count.
    relayer: Option<PublicKey>,
}

impl Registry {
    /// A registry over a memory's records.
    #[must_use]
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self { records, relayer: None }
    }

    /// The same registry at the relayer with this key.
    #[must_use]
    pub fn at(self, relayer: PublicKey) -> Self {
        Self { relayer: Some(relayer), ..self }
    }

    /// Whether a delegation counts at this relayer.
    #[must_use]
    pub(crate) fn is_for_here(&self, delegation: &Delegation) -> bool {
        self.relayer.as_ref().is_none_or(|relayer| delegation.counts_at_relayer(relayer))
    }

    /// Its records.
    pub(crate) fn records(&self) -> &dyn Records {
        &*self.records
    }

    /// The present rights of a key to an owner's memory, by a presented delegation or else by known ones.
    /// Prefers a delegation without a project, then the one that expires last.
    ///
    /// # Errors
    /// Memory's, when records cannot be read.
    pub(crate) async fn find(
        &self,
        owner: OwnerId,
        key: &PublicKey,
        presented: Option<&SignedDelegation>,
        now_s: u64,
    ) -> Result<Option<Delegation>> {
        let known = self.known(owner, key).await?;
        let Some(signed) = presented else {
            let counting = known.iter().filter_map(|known| known.counts_at(now_s));
            // Several relayers may share one database.
            let counting = counting.filter(|delegation| self.is_for_here(delegation));
            let best = counting.max_by_key(|delegation| (delegation.project.is_none(), delegation.expires_s));
            return Ok(best.cloned());
        };
        let delegation = &signed.delegation;
        let names_us = delegation.owner == owner && delegation.delegate == *key;
        let fits = names_us && delegation.holds_at(now_s) && self.is_for_here(delegation);
        let revoked = known.iter().any(|known| known.revoked && known.id == delegation.id);
        Ok((fits && !revoked).then(|| delegation.clone()))
    }

    /// Registers a delegation. A known or revoked one stays unchanged; returns whether it is valid.
    ///
    /// # Errors
    /// [`MemoryError::Full`] and memory's.
    pub async fn register(&self, signed: SignedDelegation, now_ms: u64) -> Result<bool> {
        let Delegation { owner, delegate, id, expires_s, .. } = signed.delegation;
        self.make_room(owner, now_ms).await?;
        let entry = DelegationEntry {
            signed: Some(signed),
            id,
            revoked: false,
            since_ms: now_ms,
            until_s: expires_s,
        };
        let mut counts = false;
        let change = |read: &[Option<Vec<u8>>]| {
            let (keys, known) = decode_both(read, now_ms)?;
            let there = known.iter().find(|known| known.id == id);
            counts = there.is_none_or(|there| !there.revoked);
            if there.is_some() { Ok(Vec::new()) } else { with_one_more(delegate, keys, known, entry.clone()) }
        };
        self.records.change(owner, names_of(&delegate), Box::new(change)).await?;
        Ok(counts)
    }

    /// Revokes a delegation, of a given key or of any key. Returns whether anything changed. With the key,
    /// even a delegation that the relayer never saw can be revoked.
    ///
    /// # Errors
    /// [`MemoryError::Full`] and memory's.
    pub(crate) async fn revoke(
        &self,
        owner: OwnerId,
        id: [u8; 16],
        key: Option<PublicKey>,
        now_ms: u64,
    ) -> Result<bool> {
        let Some(delegate) = key else {
            for delegate in self.keys(owner).await? {
                if let Some(changed) = self.revoke_of(owner, id, delegate, None).await? {
                    return Ok(changed);
                }
            }
            return Ok(false);
        };
        self.make_room(owner, now_ms).await?;
        let changed = self.revoke_of(owner, id, delegate, Some(now_ms)).await?;
        Ok(changed.unwrap_or(false))
    }

    /// Drops the keys without a delegation that still counts, if the owner has too many.
    async fn make_room(&self, owner: OwnerId, now_ms: u64) -> Result<()> {
        let keys = self.keys(owner).await?;
        if keys.len() < MAX_KEYS {
            return Ok(());
        }
        for key in keys {
            let change = |read: &[Option<Vec<u8>>]| {
                let (mut keys, known) = decode_both(read, now_ms)?;
                if !known.is_empty() {
                    return Ok(Vec::new());
                }
                keys.retain(|kept| *kept != key);
                Ok(vec![(INDEX.to_owned(), Some(codec::encode(&keys))), (name_of(&key), None)])
            };
            self.records.change(owner, names_of(&key), Box::new(change)).await?;
        }
        Ok(())
    }

    /// Revokes a key's delegation; returns whether that changed a known one. An unknown one is recorded as
    /// revoked if a time is given.
    async fn revoke_of(
        &self,
        owner: OwnerId,
        id: [u8; 16],
        delegate: PublicKey,
        unseen_ms: Option<u64>,
    ) -> Result<Option<bool>> {
        let mut changed = None;
        let change = |read: &[Option<Vec<u8>>]| {
            let (keys, mut known) = decode_both(read, unseen_ms.unwrap_or(0))?;
            if let Some(there) = known.iter_mut().find(|known| known.id == id) {
                changed = Some(!there.revoked);
                there.revoked = true;
                return Ok(vec![(name_of(&delegate), Some(codec::encode(&known)))]);
            }
            let Some(now_ms) = unseen_ms else { return Ok(Vec::new()) };
            changed = Some(true);
            // Its beginning is unknown, and any later time may be it: the revocation never ends.
            let until_s = u64::MAX;
            let entry = DelegationEntry { signed: None, id, revoked: true, since_ms: now_ms, until_s };
            with_one_more(delegate, keys, known, entry)
        };
        self.records.change(owner, names_of(&delegate), Box::new(change)).await?;
        Ok(changed)
    }

    /// All known delegations, oldest first.
    ///
    /// # Errors
    /// Memory's.
    pub(crate) async fn list(&self, owner: OwnerId) -> Result<Vec<DelegationEntry>> {
        let mut all = Vec::new();
        for key in self.keys(owner).await? {
            all.extend(self.known(owner, &key).await?);
        }
        all.sort_by_key(|known| known.since_ms);
        Ok(all)
    }

    async fn keys(&self, owner: OwnerId) -> Result<Vec<PublicKey>> {
        self.read(owner, INDEX.to_owned()).await
    }

    async fn known(&self, owner: OwnerId, key: &PublicKey) -> Result<Vec<DelegationEntry>> {
        self.read(owner, name_of(key)).await
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, owner: OwnerId, name: String) -> Result<Vec<T>> {
        decode(self.records.get(owner, name).await?.as_ref())
    }
}

fn decode<T: serde::de::DeserializeOwned>(bytes: Option<&Vec<u8>>) -> Result<Vec<T>> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    codec::decode(bytes, MAX_RECORD_BYTES)
        .map_err(|_| MemoryError::Damaged("a record of delegations does not decode".to_owned()))
}

/// The records that a change of a key's delegations reads.
fn names_of(delegate: &PublicKey) -> Vec<String> {
    vec![INDEX.to_owned(), name_of(delegate)]
}

/// Their contents: all keys, and the key's delegations without expired ones.
fn decode_both(read: &[Option<Vec<u8>>], now_ms: u64) -> Result<(Vec<PublicKey>, Vec<DelegationEntry>)> {
    let mut known: Vec<DelegationEntry> = decode(read.get(1).and_then(Option::as_ref))?;
    known.retain(|known| known.until_s > now_ms / 1_000);
    Ok((decode(read.first().and_then(Option::as_ref))?, known))
}

/// Their contents with one more delegation. A revocation has room of its own, and takes that of a registration.
fn with_one_more(
    delegate: PublicKey,
    mut keys: Vec<PublicKey>,
    mut known: Vec<DelegationEntry>,
    entry: DelegationEntry,
) -> Result<RecordChanges> {
    if known.len() >= MAX_PER_KEY
        && entry.revoked
        && let Some(oldest) = known.iter().position(|known| !known.revoked)
    {
        known.remove(oldest);
    }
    if known.len() >= MAX_PER_KEY {
        return Err(MemoryError::Full(format!("a key has at most {MAX_PER_KEY} delegations")));
    }
    let mut changes = Vec::new();
    if !keys.contains(&delegate) {
        let most = if entry.revoked { MAX_KEYS + MAX_REVOKED_KEYS } else { MAX_KEYS };
        if keys.len() >= most {
            return Err(MemoryError::Full(format!("an owner delegates to at most {MAX_KEYS} keys")));
        }
        keys.push(delegate);
        changes.push((INDEX.to_owned(), Some(codec::encode(&keys))));
    }
    known.push(entry);
    changes.push((name_of(&delegate), Some(codec::encode(&known))));
    Ok(changes)
}

fn name_of(key: &PublicKey) -> String {
    format!("delegate/{key}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        collections::{HashMap, HashSet},
        sync::{Mutex, PoisonError},
    };

    use baton_keys::SecretSigningKey;

    use super::*;
    use crate::delegation::Scopes;

    type Table = HashMap<(OwnerId, String), Vec<u8>>;
    type Rival = Box<dyn FnOnce(&mut Table) + Send>;

    /// Records in memory.
    #[derive(Default)]
    pub(crate) struct InMemoryRecords {
        nonces: Mutex<HashSet<[u8; 32]>>,
        records: Mutex<Table>,
        /// Another relayer's write, once, between a change's read and its write.
        rival: Mutex<Option<Rival>>,
    }

    impl Records for InMemoryRecords {
        fn take_nonce(&self, nonce: [u8; 32], _now_ms: u64, _until_ms: u64) -> BoxFuture<'_, Result<bool>> {
            let fresh = self.nonces.lock().unwrap_or_else(PoisonError::into_inner).insert(nonce);
            Box::pin(async move { Ok(fresh) })
        }

        fn take_nonce_to_read(
            &self,
            nonce: [u8; 32],
            now_ms: u64,
            until_ms: u64,
        ) -> BoxFuture<'_, Result<bool>> {
            self.take_nonce(nonce, now_ms, until_ms)
        }

        fn has_nonce(&self, nonce: [u8; 32], _now_ms: u64) -> BoxFuture<'_, Result<bool>> {
            let known = self.nonces.lock().unwrap_or_else(PoisonError::into_inner).contains(&nonce);
            Box::pin(async move { Ok(known) })
        }

        fn get(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
            let found =
                self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&(owner, name)).cloned();
            Box::pin(async move { Ok(found) })
        }

        fn put(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) -> BoxFuture<'_, Result<()>> {
            let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            match bytes {
                Some(bytes) => records.insert((owner, name), bytes),
                None => records.remove(&(owner, name)),
            };
            Box::pin(async { Ok(()) })
        }

        fn change<'a>(
            &'a self,
            owner: OwnerId,
            names: Vec<String>,
            mut change: Change<'a>,
        ) -> BoxFuture<'a, Result<()>> {
            let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            let read = |records: &Table| {
                let names = names.iter().map(|name| records.get(&(owner, name.clone())).cloned());
                names.collect::<Vec<_>>()
            };
            let mut changes = change(&read(&records));
            if let Some(rival) = self.rival.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // As in memory: the write is refused, and the new contents are read and decided on.
                rival(&mut records);
                changes = change(&read(&records));
            }
            let written = changes.map(|changes| {
                for (name, bytes) in changes {
                    match bytes {
                        Some(bytes) => records.insert((owner, name), bytes),
                        None => records.remove(&(owner, name)),
                    };
                }
            });
            Box::pin(async { written })
        }
    }

    #[tokio::test]
    async fn registrations_of_two_relayers_at_once_are_all_stored() {
        let records = Arc::new(InMemoryRecords::default());
        let registry = Registry::new(records.clone());
        let (mine, theirs) = (PublicKey([2; 32]), PublicKey([3; 32]));
        // The other relayer registers another key, and revokes this delegation.
        let other = signed(&theirs, 100, 200);
        let taken = signed(&mine, 100, 200);
        let (id, known) = (
            taken.delegation.id,
            DelegationEntry {
                id: other.delegation.id,
                signed: Some(other),
                revoked: false,
                since_ms: 1,
                until_s: 200,
            },
        );
        let gone = DelegationEntry { id, signed: None, revoked: true, since_ms: 1, until_s: 200 };
        let rival = move |records: &mut Table| {
            let keys = codec::encode(&vec![theirs, mine]);
            records.insert((owner(), INDEX.to_owned()), keys);
            records.insert((owner(), name_of(&theirs)), codec::encode(&vec![known]));
            records.insert((owner(), name_of(&mine)), codec::encode(&vec![gone]));
        };
        *records.rival.lock().unwrap() = Some(Box::new(rival));
        assert!(!registry.register(taken.clone(), 0).await.unwrap(), "it was taken back meanwhile");
        assert!(registry.register(signed(&mine, 100, 200), 0).await.unwrap());
        assert_eq!(registry.list(owner()).await.unwrap().len(), 3);
        assert!(registry.find(owner(), &theirs, None, 150).await.unwrap().is_some());
        assert!(registry.find(owner(), &mine, Some(&taken), 150).await.unwrap().is_none());
    }

    fn account() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[7; 32])
    }

    fn owner() -> OwnerId {
        OwnerId::of(&account().public_key())
    }

    fn signed(delegate: &PublicKey, from_s: u64, until_s: u64) -> SignedDelegation {
        let scopes = Scopes::named(["read"]).unwrap();
        Delegation::new(owner(), *delegate, scopes, from_s, until_s).sign(&account())
    }

    #[tokio::test]
    async fn a_registered_delegation_counts_until_it_expires_or_is_taken_back() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = PublicKey([2; 32]);
        let delegation = signed(&key, 100, 200);
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
        assert!(registry.register(delegation.clone(), 50_000).await.unwrap());
        for (now, counts) in [(99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(registry.find(owner(), &key, None, now).await.unwrap().is_some(), counts, "{now}");
        }
        assert!(registry.find(OwnerId([1; 32]), &key, None, 150).await.unwrap().is_none());
        assert!(registry.find(owner(), &PublicKey([3; 32]), None, 150).await.unwrap().is_none());
        let id = delegation.delegation.id;
        assert!(registry.revoke(owner(), id, None, 150_000).await.unwrap());
        assert!(!registry.revoke(owner(), id, None, 150_000).await.unwrap(), "only once");
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
        assert!(registry.find(owner(), &key, Some(&delegation), 150).await.unwrap().is_none());
        assert!(!registry.register(delegation, 150_000).await.unwrap(), "not even registered again");
        assert!(registry.find(owner(), &key, None, 150).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_presented_delegation_counts_for_its_key_and_owner_only() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = PublicKey([2; 32]);
        let delegation = signed(&key, 100, 200);
        let find = |owner, key: PublicKey, now| {
            let (registry, delegation) = (registry.clone(), delegation.clone());
            async move { registry.find(owner, &key, Some(&delegation), now).await.unwrap().is_some() }
        };
        assert!(find(owner(), key, 150).await);
        assert!(!find(owner(), key, 250).await);
        assert!(!find(OwnerId([1; 32]), key, 150).await);
        assert!(!find(owner(), PublicKey([3; 32]), 150).await);
    }

    #[tokio::test]
    async fn an_unseen_delegation_can_be_taken_back_by_its_key() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = PublicKey([2; 32]);
        let delegation = signed(&key, 100, 200);
        assert!(!registry.revoke(owner(), delegation.delegation.id, None, 1).await.unwrap());
        assert!(registry.revoke(owner(), delegation.delegation.id, Some(key), 1).await.unwrap());
        assert!(registry.find(owner(), &key, Some(&delegation), 150).await.unwrap().is_none());
        // One that begins years later stays taken back, whatever is registered meanwhile.
        let (from_s, until_s) = (500_000_000, 500_000_900);
        let later = signed(&key, from_s, until_s);
        assert!(registry.revoke(owner(), later.delegation.id, Some(key), 1).await.unwrap());
        registry.register(signed(&key, from_s, until_s), from_s * 1_000).await.unwrap();
        assert!(registry.find(owner(), &key, Some(&later), from_s + 1).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_number_of_delegations_is_bounded_and_expired_ones_make_room() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = PublicKey([2; 32]);
        for _ in 0..MAX_PER_KEY {
            registry.register(signed(&key, 100, 200), 0).await.unwrap();
        }
        let refused = registry.register(signed(&key, 100, 200), 0).await;
        assert!(matches!(refused, Err(MemoryError::Full(_))), "{refused:?}");
        assert_eq!(registry.list(owner()).await.unwrap().len(), MAX_PER_KEY);
        registry.register(signed(&key, 200, 300), 200_000).await.unwrap();
        assert_eq!(registry.list(owner()).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn expired_keys_make_room_and_a_revocation_always_fits() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = |number: usize| {
            let mut bytes = [2; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            PublicKey(bytes)
        };
        for number in 0..MAX_KEYS {
            registry.register(signed(&key(number), 100, 200), 0).await.unwrap();
        }
        let refused = registry.register(signed(&key(MAX_KEYS), 100, 200), 0).await;
        assert!(matches!(refused, Err(MemoryError::Full(_))), "{refused:?}");
        // A leaked delegation of a key that the relayer never saw.
        let leaked = signed(&key(MAX_KEYS), 100, 900);
        assert!(registry.revoke(owner(), leaked.delegation.id, Some(key(MAX_KEYS)), 1).await.unwrap());
        assert!(registry.find(owner(), &key(MAX_KEYS), Some(&leaked), 150).await.unwrap().is_none());
        // And of a key with as many registrations as fit.
        for _ in 1..MAX_PER_KEY {
            registry.register(signed(&key(0), 100, 200), 0).await.unwrap();
        }
        let other = signed(&key(0), 100, 900);
        assert!(registry.revoke(owner(), other.delegation.id, Some(key(0)), 1).await.unwrap());
        assert!(registry.find(owner(), &key(0), Some(&other), 150).await.unwrap().is_none());
        // After their time, other keys have their places; the revocations stay.
        registry.register(signed(&key(MAX_KEYS + 1), 200, 300), 250_000).await.unwrap();
        assert_eq!(registry.keys(owner()).await.unwrap().len(), 3);
        assert!(registry.find(owner(), &key(MAX_KEYS), Some(&leaked), 300).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_unbound_delegation_goes_before_one_for_a_project() {
        let registry = Registry::new(Arc::new(InMemoryRecords::default()));
        let key = PublicKey([2; 32]);
        let mut bound = signed(&key, 100, 900).delegation;
        bound.project = Some("garden".to_owned());
        registry.register(bound.sign(&account()), 0).await.unwrap();
        assert_eq!(
            registry.find(owner(), &key, None, 150).await.unwrap().unwrap().project.as_deref(),
            Some("garden")
        );
        registry.register(signed(&key, 100, 200), 0).await.unwrap();
        assert_eq!(registry.find(owner(), &key, None, 150).await.unwrap().unwrap().project, None);
    }
}
