//! `baton blob id`, `verify` and `stat`.

use std::path::{Path, PathBuf};

use baton_client::ClientError;
use baton_proto::{ids::BlobId, store::StoreError};
use baton_walrus_client::{
    HttpStore, encoded_length,
    http_store::{ReadOptions, Verification},
};
use serde_json::json;

use super::{
    super::{Failure, clock, interrupt::cancellable, out::Out, settings::Settings, storage},
    Bar, blob, failed, id_of_file, ledger, size, store,
};

/// The IDs of files, a line each; for a single file, the ID alone.
pub(super) async fn ids(settings: &Settings, files: &[PathBuf], out: &Out) -> Result<(), Failure> {
    let shards = settings.shards();
    for file in files {
        let (id, length) = {
            let bar = Bar::new(out);
            id_of_file(file, shards, &bar).await?
        };
        if out.json() {
            out.value(&json!({
                "file": file.display().to_string(),
                "blob_id": id.to_string(),
                "size": length,
                "shards": shards.get(),
                "encoded_length": encoded_length(length, shards).ok(),
            }))?;
        } else if files.len() == 1 {
            out.line(&id.to_string())?;
        } else {
            out.line(&format!("{id}  {}", file.display()))?;
        }
    }
    Ok(())
}

/// Compares a file with an ID.
pub(super) async fn verify_file(
    settings: &Settings,
    id: BlobId,
    file: &Path,
    out: &Out,
) -> Result<(), Failure> {
    let (found, length) = {
        let bar = Bar::new(out);
        id_of_file(file, settings.shards(), &bar).await?
    };
    let good = found == id;
    if out.json() {
        out.value(&json!({
            "blob_id": id.to_string(),
            "verified": good,
            "found": found.to_string(),
            "size": length,
        }))?;
    } else if good {
        out.good(&format!("✓ {} has this ID", file.display()));
    } else {
        out.warn(&format!("{} has another ID: {found}", file.display()));
        out.note("  try: the shard count of the blob's network with --shards");
    }
    if good { Ok(()) } else { Err(Failure::Unverified) }
}

/// Reads a blob from each aggregator by itself, and checks the answer.
pub(super) async fn verify(settings: &Settings, id: BlobId, limit: u64, out: &Out) -> Result<(), Failure> {
    let mut sources = Vec::new();
    let (mut wrong, mut good) = (0, 0);
    for url in settings.aggregators() {
        let store = HttpStore::endpoints(&[], &[url], settings.shards())
            .build()
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let result = {
            let bar = Bar::new(out);
            let mut options = ReadOptions::new(limit).verify(Verification::BlobId);
            options.progress = Some(bar.follow());
            let reading = async {
                let length = store.read_to(id, &mut tokio::io::sink(), &options).await;
                length.map_err(ClientError::from)
            };
            cancellable(reading).await
        };
        let (text, length) = match result {
            Ok(length) => {
                good += 1;
                ("verified".to_owned(), Some(length))
            }
            Err(Failure::Client(ClientError::Store(error))) => {
                wrong += u32::from(error == StoreError::WrongContent);
                (error.to_string(), None)
            }
            Err(failure) => return Err(failure),
        };
        if out.json() {
            let verified = length.is_some();
            sources.push(json!({ "aggregator": url, "verified": verified, "size": length, "result": text }));
        } else if let Some(length) = length {
            out.good(&format!("✓ {url}  verified, {}", size(length)));
        } else {
            out.warn(&format!("{url}  {text}"));
        }
    }
    if out.json() {
        let verified = good > 0 && wrong == 0;
        out.value(&json!({ "blob_id": id.to_string(), "verified": verified, "sources": sources }))?;
    }
    match (good, wrong) {
        (_, 1..) => Err(Failure::Unverified),
        (0, 0) => Err(Failure::NotStored),
        _ => Ok(()),
    }
}

/// The state of blobs; without names, of all blobs stored here.
pub(super) async fn show(settings: &Settings, ids: &[String], out: &Out) -> Result<(), Failure> {
    let ledger = ledger::load(settings)?;
    if ids.is_empty() {
        return ledger::show(&ledger, out);
    }
    let store = store(settings)?;
    let mut missing = false;
    for text in ids {
        let id = blob(text)?;
        let (length, there) = match cancellable(async {
            store.stat(id, &ReadOptions::new(0)).await.map_err(ClientError::from)
        })
        .await
        {
            Ok(stat) => (stat.length, true),
            Err(Failure::Client(ClientError::Store(StoreError::NotFound))) => (None, false),
            Err(failure) => return Err(failure),
        };
        missing |= !there;
        let encoded = length.and_then(|length| encoded_length(length, settings.shards()).ok());
        let lifetime = ledger::lifetime(&ledger, id);
        if out.json() {
            out.value(&json!({
                "blob_id": id.to_string(),
                "stored": there,
                "size": length,
                "encoded_length": encoded,
                "kept": lifetime,
            }))?;
            continue;
        }
        let mut parts = vec![if there { "stored".to_owned() } else { "not found".to_owned() }];
        parts.extend(length.map(size));
        parts.extend(encoded.map(|encoded| format!("{} in the store", size(encoded))));
        parts.extend(
            lifetime.map(|lifetime| storage::remaining_time(lifetime.ends.earliest_ms, clock::now_ms())),
        );
        out.line(&format!("{id}  {}", parts.join(", ")))?;
    }
    if missing { Err(failed(StoreError::NotFound)) } else { Ok(()) }
}
