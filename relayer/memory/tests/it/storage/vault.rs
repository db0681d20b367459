//! The vault's guarantees over every storage.

use std::sync::Arc;

use baton_keys::{master::MasterKey, secret::random_bytes};
use baton_memory::{
    ids::OwnerId,
    storage::{Space, Storage},
    vault::{Changes, OwnerVault, Vault},
};
use zeroize::Zeroizing;

use crate::storage::support::{TestStorage, storages};

const MASTER: [u8; 32] = [5; 32];

async fn vault_of(test: &TestStorage) -> Vault {
    vault_with(test.storage.clone(), test).await
}

async fn vault_with(storage: Arc<dyn Storage>, test: &TestStorage) -> Vault {
    Vault::new(storage, &test.folder.path().join("keys"), MasterKey::from_bytes(MASTER)).await.unwrap()
}

fn puts(records: impl IntoIterator<Item = (Space, u64, Vec<u8>)>) -> Changes {
    let put =
        records.into_iter().map(|(space, number, text)| (space, number, Zeroizing::new(text))).collect();
    Changes { put, ..Changes::default() }
}

async fn texts(owner: &OwnerVault, space: Space) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let page = owner.read(space, from).await.unwrap();
        let Some((last, _)) = page.last() else { return all };
        from = last + 1;
        all.extend(page.into_iter().map(|(number, text)| (number, text.to_vec())));
    }
}

#[tokio::test]
async fn what_was_committed_is_read_by_another_vault_with_the_same_keys() {
    for test in storages().await {
        let who = OwnerId(random_bytes());
        let owner = vault_of(&test).await.open(who).await.unwrap();
        assert_eq!(owner.version(), 0);
        assert!(texts(&owner, Space::Log).await.is_empty());
        let records: Vec<_> =
            (0..600u64).map(|number| (Space::Log, number, number.to_le_bytes().to_vec())).collect();
        owner.commit(puts(records.clone())).await.unwrap();
        let hash = owner.keys().content_hash(b"x");
        drop(owner);
        let vault = vault_of(&test).await;
        let owner = vault.open(who).await.unwrap();
        let wanted: Vec<_> = records.into_iter().map(|(_, number, text)| (number, text)).collect();
        assert_eq!(texts(&owner, Space::Log).await, wanted, "{}", test.name);
        assert_eq!(owner.get(Space::Log, 599).await.unwrap().unwrap().as_slice(), 599u64.to_le_bytes());
        assert!(owner.get(Space::Log, 600).await.unwrap().is_none());
        assert_eq!(owner.keys().content_hash(b"x"), hash);
        assert_eq!(vault.resolve(owner.pseudonym()).await.unwrap(), Some(who));
        let version = owner
            .redact(Changes { remove: vec![(Space::Log, 3)], ..puts([(Space::Log, 4, b"new".to_vec())]) })
            .await
            .unwrap();
        assert_eq!(owner.version(), version);
        let now = texts(&owner, Space::Log).await;
        assert_eq!(now.len(), 599);
        assert_eq!(now[3], (4, b"new".to_vec()));
        owner.erase().await.unwrap();
        assert!(texts(&owner, Space::Log).await.is_empty());
        assert_ne!(owner.keys().content_hash(b"x"), hash);
        owner.commit(puts([(Space::Log, 0, b"again".to_vec())])).await.unwrap();
        assert_eq!(texts(&owner, Space::Log).await, [(0, b"again".to_vec())]);
    }
}
