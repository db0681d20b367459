//! A store that is killed while it receives blobs, and one that is measured for its memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_proto::ids::BlobId;
use baton_walrus_client::{ShardCount, blob_id};
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use futures::{StreamExt as _, stream};
use reqwest::Client;
use tempfile::TempDir;

use crate::{common::validate, process::StoreProcess};

const MIB: usize = 1024 * 1024;

/// A store's peak memory, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(process: &StoreProcess) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

/// The bytes of the blob with this number: most are small, some take several chunks.
fn blob(number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(50) { 700_000 } else { 50 + number * 37 % 20_000 };
    let seed = blake3::hash(&number.to_le_bytes());
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// PUTs blobs from several clients until the store is gone. Returns the acknowledged numbers and IDs.
async fn put_until_gone(url: &str, next: &AtomicUsize, acknowledged: &AtomicUsize) -> Vec<(usize, BlobId)> {
    let client = Client::new();
    let writers = (0..6).map(|_| async {
        let mut mine = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let sent = client.put(format!("{url}/v1/blobs?epochs=5")).body(blob(number)).send().await;
            let Ok(answer) = sent else { return mine };
            assert_eq!(answer.status(), 200);
            // A cut answer acknowledges nothing.
            let Ok(answer) = answer.json::<serde_json::Value>().await else { return mine };
            let id = answer["newlyCreated"]["blobObject"]["blobId"].as_str().unwrap().parse().unwrap();
            mine.push((number, id));
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    });
    futures::future::join_all(writers).await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_blob_outlives_kills() {
    const PUTS: usize = 1_000;
    const KILLS: usize = 5;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let (next, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut stored = Vec::new();
    for round in 1..=KILLS {
        let process = StoreProcess::start(&path, 10, "");
        let url = process.url.clone().unwrap();
        let killing = async {
            // Somewhere among the PUTs of this round; the exact number depends on the machine.
            while acknowledged.load(Ordering::Relaxed) < PUTS * round / KILLS {
                tokio::task::yield_now().await;
            }
            drop(process);
        };
        let (mine, ()) = tokio::join!(put_until_gone(&url, &next, &acknowledged), killing);
        stored.extend(mine);
    }
    assert!(stored.len() >= PUTS, "{}", stored.len());

    // Opened here, to see its report.
    let config = EmbeddedConfig { shards: ShardCount::TESTBED, ..EmbeddedConfig::new(&path) };
    let store = EmbeddedStore::open(config, validate).unwrap();
    assert_eq!(store.damages(), []);
    let (blobs, files) = (store.usage().blobs, std::fs::read_dir(path.join("files")).unwrap().count());
    assert_eq!(u64::try_from(files).unwrap(), blobs, "no file is left of what was not finished");
    drop(store);

    let process = StoreProcess::start(&path, 10, "");
    let url = process.url.as_ref().unwrap();
    let client = Client::new();
    let mut reads = stream::iter(&stored)
        .map(|(number, id)| {
            let request = client.get(format!("{url}/v1/blobs/{id}")).send();
            async move { (*number, *id, request.await.unwrap().bytes().await.unwrap()) }
        })
        .buffer_unordered(8);
    while let Some((number, id, bytes)) = reads.next().await {
        assert_eq!(bytes, blob(number), "blob {number}");
        assert_eq!(blob_id(&bytes, ShardCount::TESTBED).unwrap(), id);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn memory_stays_flat_while_a_large_blob_passes() {
    const PIECE: usize = 64 * 1024;
    const LENGTH: usize = 200 * MIB;
    /// The ID's share for any length (some 80 MiB), plus room for allocator, connection and chunks.
    const MOST: usize = 112 * MIB;
    let folder = TempDir::new().unwrap();
    // Ten shards cannot encode more than 1.8 MB.
    let process = StoreProcess::start(&folder.path().join("store"), 128, "");
    let client = Client::new();
    let url = format!("{}/v1/blobs", process.url.as_ref().unwrap());
    client.put(&url).body("warm").send().await.unwrap();
    let before = peak_memory(&process);

    let piece = |number: usize| {
        let mut bytes = vec![0; PIECE];
        bytes.iter_mut().zip(number.to_le_bytes().into_iter().cycle()).for_each(|(byte, of)| *byte = of);
        bytes
    };
    let pieces = stream::iter(0..LENGTH / PIECE).map(move |number| Ok::<_, std::io::Error>(piece(number)));
    let answer = client.put(&url).body(reqwest::Body::wrap_stream(pieces)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer: serde_json::Value = answer.json().await.unwrap();
    let id = answer["newlyCreated"]["blobObject"]["blobId"].as_str().unwrap().to_owned();
    let after_put = peak_memory(&process);

    let mut body = client.get(format!("{url}/{id}")).send().await.unwrap().bytes_stream();
    let mut length = 0;
    let mut received = blake3::Hasher::new();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.unwrap();
        length += bytes.len();
        received.update(&bytes);
    }
    assert_eq!(length, LENGTH);
    let mut sent = blake3::Hasher::new();
    (0..LENGTH / PIECE).for_each(|number| {
        sent.update(&piece(number));
    });
    assert_eq!(received.finalize(), sent.finalize());
    let after_get = peak_memory(&process);
    println!("peak memory: {before} before, {after_put} after PUT, {after_get} after GET");
    assert!(after_get - before < MOST, "{before} before, {after_put} after PUT, {after_get} after GET");
}
