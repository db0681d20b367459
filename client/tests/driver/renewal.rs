//! Stored blobs are bought again before they expire, and their lifetimes are reported.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_client::{BlobLifetime, Client, ClientError, DEFAULT_EPOCH};
use baton_proto::{ids::SessionId, node_record::StorageOffer, store::StoreError, turn::StoragePolicy};

use baton_client::testkit::{GRACE, World, close, fake::Act, say, session};

/// A client whose clock can be moved ahead.
struct Ahead {
    client: Client,
    ms: Arc<AtomicU64>,
}

const EPOCH_MS: u64 = DEFAULT_EPOCH.as_secs() * 1000;

async fn client(world: &World, renew: bool, ms: u64) -> Ahead {
    let mut config = world.config(world.home.path());
    let ahead = Arc::new(AtomicU64::new(ms));
    let (system, moved) = (config.clock.clone(), ahead.clone());
    config.clock = Arc::new(move || system() + moved.load(Ordering::SeqCst));
    config.renew = renew;
    Ahead { client: Client::open(config).await.unwrap(), ms: ahead }
}

async fn due(client: &Client, session: SessionId) -> Vec<u64> {
    let blobs = client.session(session).lifetimes().await.unwrap();
    blobs.iter().filter(|blob| blob.due).map(|blob| blob.seq).collect()
}

/// A session with a full segment and an open one, everything stored.
async fn two_segments(world: &World) -> SessionId {
    let Ahead { client, .. } = client(world, false, 0).await;
    let session = session(&client).await;
    for turn in 0..17 {
        say(&client, session, &format!("turn {turn}")).await;
    }
    close(&client, session).await;
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_needs_is_kept_for_as_long_as_was_paid() {
    let world = World::new(1).await;
    let session = two_segments(&world).await;
    let Ahead { client, .. } = client(&world, true, 0).await;
    let blobs = client.session(session).lifetimes().await.unwrap();
    let seqs: Vec<u64> = blobs.iter().map(|blob| blob.seq).collect();
    assert_eq!(seqs, [15, 16], "the last of each segment");
    let epochs = |blob: &BlobLifetime| (blob.gone_by_ms - blob.kept_until_ms) / EPOCH_MS;
    assert!(blobs.iter().all(|blob| blob.stored && !blob.due && epochs(blob) == 1));
    let now_ms = baton_client::system_clock()();
    let left = blobs.iter().map(|blob| (blob.kept_until_ms - now_ms).div_ceil(EPOCH_MS));
    assert_eq!(left.collect::<Vec<_>>(), [52, 4]);
    let least = blobs.iter().map(|blob| blob.kept_until_ms).min();
    assert_eq!(client.session(session).info().await.unwrap().kept_until_ms, least);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_renewed_once_when_little_of_its_time_is_left() {
    let world = World::new(1).await;
    let session = two_segments(&world).await;
    let before = world.store.puts();
    for (epochs, renewals) in [(2, 0), (4, 1), (4, 1), (6, 1), (8, 2)] {
        let Ahead { client, .. } = client(&world, true, epochs * EPOCH_MS + 1).await;
        // Opening the session is enough.
        client.session(session).info().await.unwrap();
        client.shutdown(GRACE).await;
        assert_eq!(world.store.puts() - before, renewals, "after {epochs} epochs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_ordered_what_it_offers_and_the_client_buys_the_longer_time_itself() {
    let world = World::new(1).await;
    // A node of default settings, and a client of default settings.
    world.nodes[0].offer_storage(StorageOffer::default());
    let session = two_segments(&world).await;
    let ordered = world.nodes[0].seen(|seen| seen.asked.clone());
    assert_eq!(ordered.len(), 17, "no order was refused");
    let epochs =
        |(_, storage): &(Option<String>, StoragePolicy)| (storage.open_epochs, storage.closed_epochs);
    assert!(ordered.iter().all(|order| epochs(order) == (5, 5)), "{ordered:?}");
    let left = async |client: &Client, ahead: u64| {
        let blobs = client.session(session).lifetimes().await.unwrap();
        let now_ms = baton_client::system_clock()() + ahead;
        let left = blobs.iter().map(|blob| (blob.kept_until_ms - now_ms).div_ceil(EPOCH_MS));
        left.collect::<Vec<_>>()
    };
    let before = world.store.puts();
    let Ahead { client, .. } = client(&world, true, 0).await;
    assert_eq!(left(&client, 0).await, [4, 4]);
    client.shutdown(GRACE).await;
    let ahead = 3 * EPOCH_MS + 60_000;
    let Ahead { client, .. } = self::client(&world, true, ahead).await;
    client.session(session).info().await.unwrap();
    client.shutdown(GRACE).await;
    assert_eq!(world.store.puts() - before, 2, "both segments, once");
    let Ahead { client, .. } = self::client(&world, false, ahead).await;
    assert_eq!(left(&client, ahead).await, [52, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_bought_unasked_where_renewal_is_off() {
    let world = World::new(1).await;
    let session = two_segments(&world).await;
    let before = world.store.puts();
    let Ahead { client, ms } = client(&world, false, 4 * EPOCH_MS).await;
    assert_eq!(due(&client, session).await, [16]);
    world.store.set_down(true);
    let away = client.session(session).renew(None).await;
    assert!(matches!(away, Err(ClientError::Store(StoreError::Unavailable { .. }))), "{away:?}");
    let back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.store.set_down(false);
    };
    let handle = client.session(session);
    let (report, ()) = tokio::join!(handle.verify(false), back);
    assert!(report.unwrap().unavailable.is_none(), "a store that refuses for a moment is asked again");
    assert_eq!(due(&client, session).await, [16], "what failed stays due");
    let report = client.session(session).renew(None).await.unwrap();
    assert_eq!((report.renewed, report.failed.len(), world.store.puts() - before), (vec![16], 0, 1));
    assert!(due(&client, session).await.is_empty());
    // Far ahead, on request.
    let report = client.session(session).renew(Some(Duration::MAX)).await.unwrap();
    assert_eq!((report.renewed, world.store.puts() - before), (vec![15, 16], 3));
    // Long after everything expired.
    ms.store(100 * EPOCH_MS, Ordering::SeqCst);
    world.store.forget_blobs();
    assert_eq!(client.session(session).renew(None).await.unwrap().renewed, [15, 16]);
    assert_eq!(world.store.blobs().len(), 2, "from this client's own text");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_counts_only_when_the_store_says_until_when() {
    let world = World::new(1).await;
    let session = two_segments(&world).await;
    let Ahead { client, .. } = client(&world, false, 4 * EPOCH_MS).await;
    world.store.set_silent_about_epochs(true);
    let report = client.session(session).renew(None).await.unwrap();
    assert!(matches!(report.failed[..], [(16, ClientError::Store(StoreError::OutcomeUnknown { .. }))]));
    let paid = world.store.puts();
    assert!(due(&client, session).await.is_empty(), "it may have been paid, so it is left alone for a while");
    client.shutdown(GRACE).await;
    let Ahead { client, ms } = self::client(&world, true, 4 * EPOCH_MS).await;
    client.session(session).info().await.unwrap();
    assert!(client.session(session).renew(None).await.unwrap().renewed.is_empty());
    assert_eq!(world.store.puts(), paid, "nor by another start");
    ms.store(4 * EPOCH_MS + EPOCH_MS / 8 + 60_000, Ordering::SeqCst);
    world.store.set_silent_about_epochs(false);
    assert_eq!(due(&client, session).await, [16]);
    assert_eq!(client.session(session).renew(None).await.unwrap().renewed, [16]);
    assert_eq!(world.store.puts(), paid + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_confirms_and_stores_the_blobs_that_wait() {
    let world = World::new(1).await;
    world.nodes[0].script([Act::NeverStore, Act::NeverStore]);
    let ahead_ms = Arc::new(AtomicU64::new(0));
    let mut config = world.config(world.home.path());
    config.timeouts.author_stores = Duration::from_secs(3600);
    // No round of the background comes between.
    config.timeouts.store_retry = Duration::from_secs(3600);
    let (system, ahead) = (config.clock.clone(), ahead_ms.clone());
    config.clock = Arc::new(move || system() + ahead.load(Ordering::SeqCst));
    let client = Client::open(config).await.unwrap();
    let id = session(&client).await;
    say(&client, id, "one").await;
    // The author still has time: its blob is looked for, and not paid for twice.
    let report = client.session(id).renew(None).await.unwrap();
    assert!(report.stored.is_empty() && report.failed.is_empty(), "{report:?}");
    assert!(matches!(report.waiting[..], [(0, wait)] if wait > Duration::from_secs(3000)), "{report:?}");
    assert_eq!((world.store.puts(), client.session(id).info().await.unwrap().unstored), (0, 1));
    // Its time is over, and the store is down.
    ahead_ms.store(2 * 3_600_000, Ordering::SeqCst);
    world.store.set_down(true);
    assert!(matches!(client.session(id).renew(None).await, Err(ClientError::Store(_))));
    world.store.set_down(false);
    let report = client.session(id).renew(None).await.unwrap();
    assert_eq!((report.stored, report.failed.len(), world.store.puts()), (vec![0], 0, 1));
    assert_eq!(client.session(id).info().await.unwrap().unstored, 0);
    let report = client.session(id).renew(None).await.unwrap();
    assert!(report.stored.is_empty() && report.waiting.is_empty(), "{report:?}");
    client.shutdown(Duration::from_millis(100)).await;
}
