//! The opening of owners.

use std::time::Duration;

use super::*;
use crate::testing;

#[tokio::test]
async fn a_request_that_gives_up_leaves_the_owner_open_for_the_next() {
    let (storage, folder) = testing::embedded();
    let memory = testing::memory(storage, folder.path()).await;
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
