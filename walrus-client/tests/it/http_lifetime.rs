//! Renews blobs before they end, with every possible failure.

use std::time::Duration;

use baton_proto::ids::BlobId;
use baton_walrus_client::{
    HttpStore, ShardCount, blob_id,
    http_store::{PutBody, StoredHow, WriteOptions},
    lifetime::{Checkpoint, EpochClock, Ledger, RenewOptions, RenewalEnded, Trouble},
};
use tempfile::TempDir;
use wiremock::ResponseTemplate;

use crate::{
    common::{NOW_MS, Running, open},
    http_common::{BLOB, answering_status, builder, count, created_answer, deciding, id, with_blob},
};

fn renew_options(epochs: u32) -> RenewOptions {
    RenewOptions { now_ms: || NOW_MS, ..RenewOptions::new(epochs, 1 << 20) }
}

fn nothing(_: BlobId) -> Option<PutBody> {
    None
}

/// A ledger with the one blob, as a publisher stored it.
async fn ledger(store: &HttpStore) -> Ledger {
    let mut ledger = Ledger::new(EpochClock::TESTNET_EPOCH);
    let options = WriteOptions::new(1);
    let stored = store.store(BLOB.to_vec(), &options).await.unwrap();
    ledger.record(&stored, &options, NOW_MS).unwrap();
    ledger
}

#[tokio::test]
async fn a_blob_is_read_verified_and_stored_for_longer() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let mut ledger = ledger(&store).await;
    assert_eq!(ledger.get(id()).unwrap().end_epoch, Some(2));
    assert_eq!(ledger.due(NOW_MS, Duration::ZERO).len(), 1, "the epoch may end any moment");
    let renewals = store.renew(&mut ledger, &[id()], &renew_options(9), nothing).await;
    assert_eq!(renewals.len(), 1);
    assert_eq!(renewals[0].ended, RenewalEnded::Renewed { end_epoch: Some(10) });
    let blob = ledger.get(id()).unwrap();
    assert_eq!((blob.end_epoch, &blob.trouble), (Some(10), &None));
    assert!(ledger.due(NOW_MS, Duration::ZERO).is_empty());
    assert_eq!(running.store.admin().put_counts(id()).bought, 2, "one for the blob, one for more time");
    running.stop().await;
}

#[tokio::test]
async fn forged_bytes_are_never_stored_for_longer() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let mut ledger = ledger(&store).await;
    running.store.admin().replace_blob(id(), b"forged".to_vec()).await.unwrap();
    let renewals = store.renew(&mut ledger, &[id()], &renew_options(9), nothing).await;
    assert!(matches!(&renewals[0].ended, RenewalEnded::Failed { retryable: false, .. }), "{renewals:?}");
    assert!(matches!(ledger.get(id()).unwrap().trouble, Some(Trouble::Failed { .. })));
    let forged = |_| Some(PutBody::from(b"forged".to_vec()));
    let renewals = store.renew(&mut ledger, &[id()], &renew_options(9), forged).await;
    assert!(matches!(&renewals[0].ended, RenewalEnded::Failed { .. }));
    let own = |_| Some(PutBody::from(BLOB.to_vec()));
    let renewals = store.renew(&mut ledger, &[id()], &renew_options(9), own).await;
    assert_eq!(renewals[0].ended, RenewalEnded::Renewed { end_epoch: Some(10) });
    let other = blob_id(b"forged", ShardCount::TESTBED).unwrap();
    assert_eq!(running.store.admin().put_counts(other).puts, 0);
    running.stop().await;
}

#[tokio::test]
async fn a_blob_is_lost_only_when_every_aggregator_says_so() {
    let (publisher, none, broken) = (
        crate::http_common::answering(created_answer()).await,
        answering_status(404).await,
        answering_status(503).await,
    );
    for (aggregators, lost) in [(vec![&none, &none], true), (vec![&none, &broken], false)] {
        let writer = builder(&[&publisher], &[&none]).build().unwrap();
        let mut ledger = ledger(&writer).await;
        let store = builder(&[&publisher], &aggregators).build().unwrap();
        let renewals = store.renew(&mut ledger, &[id()], &renew_options(2), nothing).await;
        let trouble = ledger.get(id()).unwrap().trouble.clone();
        if lost {
            assert_eq!(renewals[0].ended, RenewalEnded::Lost);
            assert!(matches!(trouble, Some(Trouble::Lost { .. })));
            assert!(ledger.report(NOW_MS).to_string().contains("lost"));
        } else {
            assert!(matches!(&renewals[0].ended, RenewalEnded::Failed { retryable: true, .. }));
            assert!(matches!(trouble, Some(Trouble::Failed { .. })));
        }
        assert_eq!(ledger.len(), 1, "it stays in the book");
    }
}

#[tokio::test]
async fn a_renewal_in_doubt_is_paid_again_only_when_told_to() {
    let lossy = deciding(|number, _| match number {
        0 => created_answer(),
        1 => ResponseTemplate::new(504),
        _ => created_answer(),
    });
    let (lossy, aggregator) = (lossy.await, with_blob().await);
    let store = builder(&[&lossy], &[&aggregator]).build().unwrap();
    let mut ledger = ledger(&store).await;
    for _ in 0..2 {
        let renewals = store.renew(&mut ledger, &[id()], &renew_options(1), nothing).await;
        assert!(matches!(&renewals[0].ended, RenewalEnded::Uncertain { .. }));
        assert!(matches!(ledger.get(id()).unwrap().trouble, Some(Trouble::Uncertain { .. })));
    }
    assert_eq!(count(&lossy, "PUT").await, 2, "one for the blob, one for the renewal");
    let again = RenewOptions { retry_uncertain: true, ..renew_options(1) };
    let renewals = store.renew(&mut ledger, &[id()], &again, nothing).await;
    assert_eq!(renewals[0].ended, RenewalEnded::Renewed { end_epoch: Some(35) });
    assert_eq!(ledger.get(id()).unwrap().trouble, None);
}

#[tokio::test]
async fn a_renewal_that_is_dropped_is_in_the_ledger_as_uncertain() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let mut ledger = ledger(&running.client()).await;
    let hanging = crate::http_common::silent().await;
    let store = HttpStore::builder(&hanging, &running.url, ShardCount::TESTBED).build().unwrap();
    let options = renew_options(9);
    let ids = [id()];
    let renewing = store.renew(&mut ledger, &ids, &options, nothing);
    assert!(tokio::time::timeout(Duration::from_millis(500), renewing).await.is_err(), "it hangs");
    let trouble = ledger.get(id()).unwrap().trouble.clone();
    assert!(matches!(trouble, Some(Trouble::Uncertain { reason, .. }) if reason == "interrupted"));
    running.stop().await;
}

#[tokio::test]
async fn a_lost_blob_comes_back_with_the_callers_bytes() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let mut ledger = ledger(&store).await;
    running.store.admin().remove_blob(id()).await.unwrap();
    // For a while, a 404 of a recently stored blob is blamed on a cache: another client has no such memory.
    let later = running.client();
    let renewals = later.renew(&mut ledger, &[id()], &renew_options(3), nothing).await;
    assert_eq!(renewals[0].ended, RenewalEnded::Lost);
    let own = |_| Some(PutBody::from(BLOB.to_vec()));
    let renewals = later.renew(&mut ledger, &[id()], &renew_options(3), own).await;
    assert_eq!(renewals[0].ended, RenewalEnded::Renewed { end_epoch: Some(4) });
    assert_eq!(later.store(BLOB.to_vec(), &WriteOptions::new(1)).await.unwrap().how, StoredHow::Created);
    running.stop().await;
}

#[tokio::test]
async fn the_ledger_is_written_before_each_put_or_nothing_is_sent() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let mut ledger = ledger(&store).await;
    let full = |_: &Ledger| Err(std::io::ErrorKind::StorageFull.into());
    let options = RenewOptions { checkpoint: Some(Checkpoint::new(full)), ..renew_options(9) };
    let renewals = store.renew(&mut ledger, &[id()], &options, nothing).await;
    assert!(matches!(&renewals[0].ended, RenewalEnded::Failed { retryable: true, .. }), "{renewals:?}");
    assert!(matches!(ledger.get(id()).unwrap().trouble, Some(Trouble::Failed { .. })));
    assert_eq!(running.store.admin().put_counts(id()).bought, 1, "nothing was sent");

    let written = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = written.clone();
    let note = move |ledger: &Ledger| {
        seen.lock().unwrap().push(ledger.get(id()).unwrap().trouble.clone());
        Ok(())
    };
    let options = RenewOptions { checkpoint: Some(Checkpoint::new(note)), ..renew_options(9) };
    let renewals = store.renew(&mut ledger, &[id()], &options, nothing).await;
    assert_eq!(renewals[0].ended, RenewalEnded::Renewed { end_epoch: Some(10) });
    let written = written.lock().unwrap().clone();
    assert!(matches!(written[..], [Some(Trouble::Uncertain { .. })]), "{written:?}");
    running.stop().await;
}
