//! Large blobs from and to files: the client's memory stays flat. The test is alone in its process, since it
//! measures that memory. The IDs are known, since computing one takes memory at any length.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]
#![cfg(target_os = "linux")]

#[path = "it/http_common.rs"]
mod http_common;

use std::{
    io::Write as _,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body, extract::DefaultBodyLimit, routing::put};
use baton_proto::ids::{BlobDigest, BlobId};
use baton_walrus_client::{
    HttpStore, ShardCount,
    http_store::{Digest, Phase, ProgressFn, PutBody, ReadOptions, Verification, WriteOptions},
};
use futures::{StreamExt as _, stream};
use http_common::created;
use tempfile::TempDir;

const BLOCK: usize = 64 * 1024;
const SMALL: usize = 16;
const LARGE: usize = 2048;
/// Most additional memory of this process for the large blob of 128 MiB over the small one.
const MORE_BYTES: u64 = 16 << 20;

/// Peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn block(number: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut block);
    block
}

fn id(blocks: usize) -> BlobId {
    BlobId([u8::try_from(blocks % 251).unwrap(); 32])
}

/// Receives blobs without holding them, and generates blobs as it sends them.
async fn serve(blocks: usize) -> String {
    let take = put(move |body: Body| async move {
        let mut chunks = body.into_data_stream();
        let mut length = 0;
        while let Some(chunk) = chunks.next().await {
            length += chunk.unwrap().len();
        }
        assert_eq!(length, blocks * BLOCK);
        created(&id(blocks).to_string())
    });
    let give = axum::routing::get(move || async move {
        Body::from_stream(stream::iter(0..blocks).map(|number| Ok::<_, std::io::Error>(block(number))))
    });
    let router = Router::new()
        .route("/v1/blobs", take)
        .route("/v1/blobs/{id}", give)
        .layer(DefaultBodyLimit::disable());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// Stores a file of this many blocks, and reads such a blob into another file by its digest.
async fn round_trip(folder: &TempDir, blocks: usize) {
    let url = serve(blocks).await;
    let builder = HttpStore::builder(&url, &url, ShardCount::new(100).unwrap());
    let store = builder.max_put_bytes(LARGE * BLOCK).build().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let mut file = std::fs::File::create(&from).unwrap();
    let mut hasher = blake3::Hasher::new();
    for number in 0..blocks {
        file.write_all(&block(number)).unwrap();
        hasher.update(&block(number));
    }
    let digest = hasher.finalize();
    let length = (blocks * BLOCK) as u64;
    let reported = Arc::new(Mutex::new(0));
    let to_report = reported.clone();
    let progress = ProgressFn::new(move |progress| {
        if progress.phase == Phase::Uploading {
            *to_report.lock().unwrap() = progress.done;
        }
    });
    let write = WriteOptions { progress: Some(progress), ..WriteOptions::new(1) };
    let stored = store.store_with_id(PutBody::File(from), id(blocks), &write).await.unwrap();
    assert_eq!((stored.length, *reported.lock().unwrap()), (length, length));
    let by_digest = Verification::Digest(Digest::Blake3(BlobDigest(digest.into())));
    let read = ReadOptions::new(length).verify(by_digest);
    assert_eq!(store.read_to_path(id(blocks), &to, &read).await.unwrap(), length);
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut std::fs::File::open(&to).unwrap(), &mut hasher).unwrap();
    assert_eq!(hasher.finalize(), digest);
}

#[tokio::test]
async fn large_blobs_pass_through_without_being_held() {
    let folder = TempDir::new().unwrap();
    round_trip(&folder, SMALL).await;
    let before = peak();
    round_trip(&folder, LARGE).await;
    let more = peak() - before;
    println!("{} KiB more at the peak for a blob of {} MiB", more >> 10, (LARGE * BLOCK) >> 20);
    assert!(more < MORE_BYTES, "{more} bytes more");
}
