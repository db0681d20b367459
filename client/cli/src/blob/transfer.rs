//! `baton blob put` and `get`.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use baton_client::ClientError;
use baton_proto::ids::BlobDigest;
use baton_walrus_client::{
    encoded_length,
    http_store::{Digest, ObjectId, PutBody, ReadOptions, Sha256Digest, StoredBlob, StoredHow, Verification},
};
use serde_json::json;

use super::{
    super::{Failure, interrupt::cancellable, out::Out, settings::Settings},
    Bar,
    args::{self, StoreArguments},
    blob, deliver, is_stdin, ledger, open, size, spool_stdin, store, write_options,
};

/// Stores a file.
pub(super) async fn put(
    settings: &Settings,
    file: &Path,
    storing: &StoreArguments,
    out: &Out,
) -> Result<(), Failure> {
    let store = store(settings)?;
    let mut options = write_options(storing)?;
    // Input from a pipe is spooled to a file, since a PUT may be retried at another publisher.
    let spooled = if is_stdin(file) { Some(spool_stdin().await?) } else { None };
    let path = match &spooled {
        Some(spooled) => spooled.path().to_owned(),
        None => {
            drop(open(file)?);
            file.to_owned()
        }
    };
    let stored = {
        let bar = Bar::new(out);
        options.progress = Some(bar.follow());
        let storing = store.store(PutBody::File(path), &options);
        cancellable(async { storing.await.map_err(ClientError::from) }).await?
    };
    // Shown first: a blob that cannot be recorded is stored all the same.
    show_stored(settings, &stored, out)?;
    ledger::record(settings, &stored, &options, out).await
}

/// Shows a stored blob.
pub(super) fn show_stored(settings: &Settings, stored: &StoredBlob, out: &Out) -> Result<(), Failure> {
    let encoded = encoded_length(stored.length, settings.shards()).ok();
    if out.json() {
        return Ok(out.value(&json!({
            "blob_id": stored.blob_id.to_string(),
            "size": stored.length,
            "encoded_length": encoded,
            "how": stored.how,
            "end_epoch": stored.end_epoch,
            "object": stored.object,
            "cost": stored.cost,
        }))?);
    }
    out.line(&stored.blob_id.to_string())?;
    let how = match stored.how {
        StoredHow::Created => "stored",
        StoredHow::AlreadyCertified => "was stored already",
        StoredHow::Found => "stored; the publisher's answer was lost, an aggregator has it",
    };
    let mut parts = vec![how.to_owned(), size(stored.length)];
    parts.extend(encoded.map(|encoded| format!("{} in the store", size(encoded))));
    parts.extend(stored.end_epoch.map(|epoch| format!("kept until epoch {epoch}")));
    parts.extend(stored.object.map(|object| format!("object {object}")));
    out.note(&parts.join(", "));
    Ok(())
}

/// The check on a read blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trust(Verification);

impl Trust {
    /// From the flags.
    pub(super) fn of(blake3: Option<&str>, sha256: Option<&str>, unverified: bool) -> Result<Self, Failure> {
        let digest = |flag: &str, text: &str| {
            let mut bytes = [0; 32];
            let decoded = hex::decode_to_slice(text, &mut bytes);
            let usage = |_| Failure::Usage(format!("{flag} {text}: it is 64 hexadecimal characters"));
            decoded.map(|()| bytes).map_err(usage)
        };
        Ok(Self(match (blake3, sha256) {
            (Some(text), _) => Verification::Digest(Digest::Blake3(BlobDigest(digest("--blake3", text)?))),
            (None, Some(text)) => {
                Verification::Digest(Digest::Sha256(Sha256Digest(digest("--sha256", text)?)))
            }
            (None, None) if unverified => Verification::Off,
            (None, None) => Verification::BlobId,
        }))
    }
}

/// Options of `get`.
pub(super) struct GetRequest {
    /// The ID of a blob or an object.
    pub id: String,
    /// The output file.
    pub file: Option<PathBuf>,
    /// `first-last`.
    pub range: Option<String>,
    /// Whether the ID is an object's.
    pub object: bool,
    /// How to check it.
    pub check: Trust,
    /// Most bytes.
    pub limit: u64,
}

/// Fetches a blob.
pub(super) async fn get(settings: &Settings, request: GetRequest, out: &Out) -> Result<(), Failure> {
    let store = store(settings)?;
    let bar = Bar::new(out);
    let mut options = ReadOptions::new(request.limit).verify(request.check.0);
    options.progress = Some(bar.follow());
    let to_file = request.file.as_deref().filter(|path| !is_stdin(path));
    let length = if request.object {
        if request.range.is_some() {
            return Err(Failure::Usage("--range needs a blob ID".to_owned()));
        }
        let object: ObjectId =
            request.id.parse().map_err(|error| Failure::Usage(format!("{}: {error}", request.id)))?;
        let read = store.read_object(object, &options);
        let read = cancellable(async { read.await.map_err(ClientError::from) }).await?;
        let length = read.bytes.len() as u64;
        drop(bar);
        deliver(read.bytes, to_file).await?;
        length
    } else if let Some(range) = &request.range {
        let id = blob(&request.id)?;
        let (start, length) = parse_range(range)?;
        let options = options.range(start, length);
        let bytes = cancellable(async { store.read(id, &options).await.map_err(ClientError::from) }).await?;
        let length = bytes.len() as u64;
        drop(bar);
        deliver(bytes, to_file).await?;
        length
    } else if let Some(path) = to_file {
        let id = blob(&request.id)?;
        let reading = async { store.read_to_path(id, path, &options).await.map_err(ClientError::from) };
        cancellable(reading).await?
    } else if std::io::stdout().is_terminal() {
        let id = blob(&request.id)?;
        let bytes = cancellable(async { store.read(id, &options).await.map_err(ClientError::from) }).await?;
        let length = bytes.len() as u64;
        drop(bar);
        deliver(bytes, None).await?;
        length
    } else {
        let id = blob(&request.id)?;
        let mut stdout = tokio::io::stdout();
        let reading = async { store.read_to(id, &mut stdout, &options).await.map_err(ClientError::from) };
        cancellable(reading).await?
    };
    let checked = match request.check.0 {
        Verification::BlobId => "verified against the ID",
        Verification::Digest(_) => "verified against the hash",
        Verification::Off => "not verified",
    };
    if out.json() && to_file.is_some() {
        let verified = !matches!(request.check.0, Verification::Off);
        out.value(&json!({ "id": args::without_prefix(&request.id), "size": length, "verified": verified }))?;
    } else if to_file.is_some() {
        out.note(&format!("{}, {checked}", size(length)));
    }
    Ok(())
}

/// `first-last`, both inclusive, as first byte and length.
fn parse_range(text: &str) -> Result<(u64, u64), Failure> {
    let parsed = text.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        Some((first, last.checked_sub(first)?.checked_add(1)?))
    });
    parsed.ok_or_else(|| Failure::Usage(format!("--range {text}: give the first and the last byte, as 0-99")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_in_order() {
        assert_eq!(parse_range("0-99").unwrap(), (0, 100));
        assert_eq!(parse_range("7-7").unwrap(), (7, 1));
        for text in ["", "5", "5-", "-5", "9-5", "a-b", "0-18446744073709551615"] {
            assert!(matches!(parse_range(text), Err(Failure::Usage(_))), "{text}");
        }
    }

    #[test]
    fn digests_are_hex_of_32_bytes() {
        assert!(matches!(Trust::of(Some(&"ab".repeat(32)), None, false), Ok(Trust(Verification::Digest(_)))));
        assert!(Trust::of(None, Some("ab"), false).is_err());
        assert!(matches!(Trust::of(None, None, true), Ok(Trust(Verification::Off))));
        assert!(matches!(Trust::of(None, None, false), Ok(Trust(Verification::BlobId))));
    }
}
