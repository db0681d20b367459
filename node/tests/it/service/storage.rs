//! Storage for others: its epochs, its accounts, and its price.

use std::{path::Path, sync::Arc};

use baton_node::service::{QuotaPolicy, ServiceLimits};
use baton_proto::{ErrorCode, limits::SEGMENT_TURNS, node_record::StorageOffer, turn::StoragePolicy};
use tempfile::tempdir;

use super::{
    fairness::{counting, granted, run_under, trusting},
    network::{
        World,
        client::{Changes, Client, PreparedTurn, Session},
        node::{Setup, TestNode},
        store::MemoryStore,
        world,
    },
};

/// Storage units of a turn's blob for the five epochs of a turn without a grant.
const FIVE_EPOCHS: u64 = 13 * 5;

/// An order that costs its client nothing: no tokens, no price, and storage.
fn storage_only(session: &Session, node: &TestNode, epochs: u32) -> PreparedTurn {
    let storage = StoragePolicy { open_epochs: epochs, closed_epochs: epochs, send_object_to: None };
    let changes = Changes::payload(move |payload| payload.storage = storage)
        .and_auth(|auth| (auth.max_output_tokens, auth.max_price) = (0, 0));
    session.prepare(node, "store this", changes)
}

/// Whether an order for storage alone is served, and its retry time if it is not.
async fn stores(client: &Client, node: &TestNode, epochs: u32) -> Result<(), u32> {
    let session = Session::new();
    let reply = client.run(node, &storage_only(&session, node, epochs)).await;
    if reply.committed().is_some() {
        return Ok(());
    }
    let (code, retry_after_ms) = reply.refused.unwrap();
    assert_eq!(code, ErrorCode::QuotaExceeded);
    Err(retry_after_ms)
}

async fn start(folder: &Path, store: &Arc<MemoryStore>, quotas: QuotaPolicy) -> TestNode {
    let limits = ServiceLimits { quotas, storage_per_hour: 2 * FIVE_EPOCHS, ..Setup::default().limits };
    TestNode::start(folder, store, counting(limits)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn free_identities_buy_no_more_storage_than_an_hour_allows_and_a_restart_forgives_nothing() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempdir().unwrap());
    let node = start(folder.path(), &store, QuotaPolicy::default()).await;
    let attacker = Client::start().await;
    // No wait makes these lawful, so no retry time is named.
    for epochs in [6, 53] {
        assert_eq!(stores(&attacker, &node, epochs).await, Err(0));
    }
    assert_eq!(stores(&attacker, &node, 5).await, Ok(()));
    assert_eq!(stores(&attacker, &node, 5).await, Ok(()));
    let wait = stores(&attacker, &node, 5).await.unwrap_err();
    assert!((1_700_000..=1_800_000).contains(&wait), "half of its hour: {wait}");
    assert!(stores(&Client::start().await, &node, 5).await.is_err(), "a fresh identity of the subnet");
    assert_eq!(node.jobs(), 0, "the model computed nothing");
    node.stop().await;
    let node = start(folder.path(), &store, QuotaPolicy::default()).await;
    assert!(stores(&attacker, &node, 5).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_without_tokens_costs_one_and_a_tombstone_needs_a_grant() {
    let quotas = trusting();
    let limits = ServiceLimits { quotas, tokens_per_hour: 2, ..Setup::default().limits };
    let World { node, client, mut session, .. } = world(counting(limits)).await;
    let first = storage_only(&session, &node, 1);
    let reply = client.run(&node, &first).await;
    session.accept(&first, reply.committed().unwrap(), "", &[]).unwrap();
    let changes = || Changes::tombstone(0).and_auth(|auth| auth.max_output_tokens = 0);
    let bare = session.prepare(&node, "", changes());
    let (code, retry_after_ms) = client.run(&node, &bare).await.refused.unwrap();
    assert_eq!((code, retry_after_ms), (ErrorCode::QuotaExceeded, 0));
    let paid = session.prepare(&node, "", changes());
    let reply = run_under(&client, &node, &paid, granted(10, Vec::new()).used(&paid.auth)).await;
    assert!(reply.committed().is_some(), "{reply:?}");
    assert_eq!(stores(&client, &node, 1).await, Ok(()));
    assert!(stores(&client, &node, 1).await.unwrap_err() > 0, "two tokens an hour");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_charges_for_the_epochs_of_the_blob_and_a_grant_allows_more() {
    let storage = StorageOffer { price: 2, max_epochs: 20, unknown_max_epochs: 5 };
    let limits = ServiceLimits { quotas: trusting(), storage, ..Setup::default().limits };
    let World { node, client, mut session, .. } = world(Setup { limits, ..Setup::default() }).await;
    let mut prices = Vec::new();
    for turn in 0..SEGMENT_TURNS {
        let (_, accepted) = client.turn(&node, &mut session, &format!("turn {turn}")).await;
        prices.push(accepted.receipt.price);
    }
    // The default order: one epoch for an open segment, five for a closed one.
    let mut expected = vec![2 * 13; SEGMENT_TURNS - 1];
    expected.push(2 * 13 * 5);
    assert_eq!(prices, expected);
    let cheap = Changes::auth(|auth| auth.max_price = 2 * 13 * 5 - 1);
    let reply = client.run(&node, &session.prepare(&node, "too dear", cheap)).await;
    assert_eq!(reply.code(), Some(ErrorCode::QuotaExceeded), "the longest storage is not covered");
    let changes = || Changes::payload(|payload| payload.storage.closed_epochs = 20);
    let bare = session.prepare(&node, "longer", changes());
    assert_eq!(client.run(&node, &bare).await.code(), Some(ErrorCode::QuotaExceeded));
    let paid = session.prepare(&node, "longer", changes());
    let reply = run_under(&client, &node, &paid, granted(10, Vec::new()).used(&paid.auth)).await;
    assert!(reply.committed().is_some(), "{reply:?}");
}
