//! The opening of owners.

use std::time::Duration;

use baton_keys::master::MasterKey;
use baton_models::embed::Hashing;

use super::*;
use crate::storage::embedded::{EmbeddedConfig, EmbeddedStorage};

#[tokio::test]
async fn a_request_that_gives_up_leaves_the_owner_open_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let storage = EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join("memory"))).unwrap();
    let master = MasterKey::from_bytes([5; 32]);
    let vault = Vault::new(Arc::new(storage), &folder.path().join("keys"), master).await.unwrap();
    let parts = Parts::new(vault, Arc::new(Hashing), Arc::new(|| 1_772_323_200_000));
    let memory = Memory::open(parts).await.unwrap();
    let owner = OwnerId([7; 32]);
    {
        let mut opening = Box::pin(memory.open_to_read(owner));
        assert!(futures::poll!(&mut opening).is_pending());
    }
    let slot = memory.slot(owner);
    let opened = async {
        while slot.owner.read().await.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), opened).await.expect("it is opened without a request");
}
