//! The calls that read blobs: whole, in part, into files, by object, or several together.

use std::path::Path;

use baton_proto::{ids::BlobId, store::StoreError};
use reqwest::{StatusCode, header};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::{
    ByteRange, Consistency, HttpStore, ObjectId, RangeRoute, ReadOptions, Verification,
    fetch::{AggregatorAnswer, Content, Target, announced_length},
    metrics::Operation,
    read::{ReadPlan, Verb},
    verify::{Check, Input, compute_id},
};
use crate::wire::ConcatBody;

/// Most IDs in a concatenation's query. More go as JSON, since proxies cut long URLs.
const MAX_QUERY_IDS: usize = 20;
/// Most blobs in one concatenation.
const MAX_CONCAT_IDS: usize = 1000;

/// The facts from a HEAD of a blob, unverified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobStat {
    /// Its length in bytes, if the aggregator said.
    pub length: Option<u64>,
}

/// A blob read by its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectBlob {
    /// The blob's ID: computed from the bytes with [`Verification::BlobId`], else from the aggregator, if it
    /// said.
    pub blob_id: Option<BlobId>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One blob of a concatenation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConcatId {
    /// By its blob ID.
    Blob(BlobId),
    /// By its object on Sui.
    Object(ObjectId),
}

impl std::fmt::Display for ConcatId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blob(id) => id.fmt(f),
            Self::Object(id) => id.fmt(f),
        }
    }
}

impl HttpStore {
    /// Reads a blob, or a part of it, into memory, verified according to the options.
    ///
    /// Cancel safe: dropping it ends all its requests. A started ID computation runs to its end, and its
    /// result is unused.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`] when every reachable aggregator says so.
    /// - [`StoreError::WrongContent`] when none has the right bytes.
    /// - [`StoreError::TooLarge`] over the limit.
    /// - [`StoreError::Refused`] with the reason.
    /// - [`StoreError::Unavailable`] when a later try may help.
    pub async fn read(&self, id: BlobId, options: &ReadOptions) -> Result<Vec<u8>, StoreError> {
        check_range(options.range)?;
        let plan = match (options.range, options.verification) {
            (Some(range), Verification::Off) => range_plan(id, range, options),
            _ => blob_plan(id, options),
        };
        let bytes = self.inner.read(&plan).await?.content.into_bytes();
        match options.range {
            Some(range) if plan.range.is_none() => cut(bytes, range),
            _ => Ok(bytes),
        }
    }

    /// Reads a whole blob into a new file. The file replaces any file at `path` only once it is complete and
    /// verified. Memory stays flat. Returns the length in bytes. A range is not supported.
    ///
    /// Cancel safe: dropping it leaves no file behind.
    ///
    /// # Errors
    /// As [`Self::read`]; [`StoreError::Refused`] also when the file cannot be written.
    pub async fn read_to_path(
        &self,
        id: BlobId,
        path: &Path,
        options: &ReadOptions,
    ) -> Result<u64, StoreError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Content::File(part) = self.read_file(id, folder, options).await? else {
            return Err(no_file());
        };
        let length = part.length;
        part.keep_as(path).await.map_err(|error| refused(format!("cannot write the file: {error}")))?;
        Ok(length)
    }

    /// Reads a whole blob into a writer. A file in the system's temporary folder holds the blob first, so the
    /// writer gets only verified bytes. Memory stays flat. Returns the length in bytes. A range is not
    /// supported.
    ///
    /// Not cancel safe: the writer may have received a part.
    ///
    /// # Errors
    /// As [`Self::read`]; [`StoreError::Refused`] also when the file or the writer fails.
    pub async fn read_to(
        &self,
        id: BlobId,
        writer: &mut (impl AsyncWrite + Unpin + Send),
        options: &ReadOptions,
    ) -> Result<u64, StoreError> {
        let Content::File(part) = self.read_file(id, &std::env::temp_dir(), options).await? else {
            return Err(no_file());
        };
        let copying = async {
            let mut file = tokio::fs::File::open(part.path()).await?;
            let copied = tokio::io::copy(&mut file, writer).await?;
            writer.flush().await?;
            Ok::<_, std::io::Error>(copied)
        };
        copying.await.map_err(|error| refused(format!("cannot write the blob: {error}")))
    }

    async fn read_file(
        &self,
        id: BlobId,
        folder: &Path,
        options: &ReadOptions,
    ) -> Result<Content, StoreError> {
        if options.range.is_some() {
            return Err(refused("a range is read into memory only".to_owned()));
        }
        let plan = ReadPlan { target: Target::Folder(folder.to_owned()), ..blob_plan(id, options) };
        Ok(self.inner.read(&plan).await?.content)
    }

    /// An aggregator's facts about a blob, without its bytes. They cannot be verified.
    ///
    /// # Errors
    /// As [`Self::read`]; [`StoreError::NotFound`] only when every reachable aggregator says so.
    pub async fn stat(&self, id: BlobId, options: &ReadOptions) -> Result<BlobStat, StoreError> {
        let plan = ReadPlan {
            operation: Operation::Stat,
            verb: Verb::Head,
            query: Vec::new(),
            check: Check::Off,
            ..blob_plan(id, options)
        };
        let fetched = self.inner.read(&plan).await?;
        Ok(BlobStat { length: announced_length(&fetched.headers) })
    }

    /// Reads the blob of an object on Sui. The aggregator alone says which blob that is, whatever the
    /// verification. [`Verification::BlobId`] checks that the bytes match the blob ID that it names.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_object(
        &self,
        object: ObjectId,
        options: &ReadOptions,
    ) -> Result<ObjectBlob, StoreError> {
        if options.range.is_some() {
            return Err(refused("a range is read by blob ID only".to_owned()));
        }
        let check = match options.verification {
            Verification::Digest(digest) => Check::Digest(digest),
            Verification::BlobId | Verification::Off => Check::Off,
        };
        let mut plan =
            ReadPlan::get(Operation::Object, format!("v1/blobs/by-object-id/{object}"), check, options);
        plan.query = consistency(options.consistency);
        let AggregatorAnswer { content, headers } = self.inner.read(&plan).await?;
        let named = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
        let named = named.and_then(|text| text.trim_matches('"').parse().ok());
        let bytes = content.into_bytes();
        if options.verification != Verification::BlobId {
            return Ok(ObjectBlob { blob_id: named, bytes });
        }
        let bytes = bytes::Bytes::from(bytes);
        let found = compute_id(Input::Memory(bytes.clone()), self.shards()).await?;
        if named.is_some_and(|named| named != found) {
            return Err(StoreError::WrongContent);
        }
        Ok(ObjectBlob { blob_id: Some(found), bytes: bytes.into() })
    }

    /// Several blobs in sequence, of at most `limit` bytes together.
    ///
    /// With [`Verification::BlobId`], the client reads, verifies and joins the blobs, because joined bytes do
    /// not show where one blob ends. It then refuses objects. With a digest, which covers the joined bytes,
    /// or without verification, the aggregator joins them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn concat(&self, ids: &[ConcatId], options: &ReadOptions) -> Result<Vec<u8>, StoreError> {
        if ids.is_empty() || ids.len() > MAX_CONCAT_IDS {
            return Err(refused(format!("a concatenation takes 1 to {MAX_CONCAT_IDS} blobs")));
        }
        if options.range.is_some() {
            return Err(refused("a range is read by blob ID only".to_owned()));
        }
        let check = match options.verification {
            Verification::BlobId => return self.concat_verified(ids, options).await,
            Verification::Digest(digest) => Check::Digest(digest),
            Verification::Off => Check::Off,
        };
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut plan = ReadPlan::get(Operation::Concat, "v1alpha/blobs/concat".to_owned(), check, options);
        if ids.len() <= MAX_QUERY_IDS {
            plan.query = consistency(options.consistency);
            plan.query.push(("ids", ids.join(",")));
        } else {
            let body = serde_json::to_vec(&ConcatBody { ids }).map_err(|error| refused(error.to_string()))?;
            plan.verb = Verb::Post(body.into());
        }
        Ok(self.inner.read(&plan).await?.content.into_bytes())
    }

    async fn concat_verified(&self, ids: &[ConcatId], options: &ReadOptions) -> Result<Vec<u8>, StoreError> {
        let started = tokio::time::Instant::now();
        let mut joined = Vec::new();
        for id in ids {
            let ConcatId::Blob(id) = *id else {
                return Err(refused("an object's blob cannot be verified by its ID".to_owned()));
            };
            let mut options = options.clone();
            options.limit = options.limit.saturating_sub(joined.len() as u64);
            options.deadline = options.deadline.map(|deadline| deadline.saturating_sub(started.elapsed()));
            joined.extend(self.read(id, &options).await?);
        }
        Ok(joined)
    }
}

/// A GET of a whole blob.
pub(super) fn blob_plan(id: BlobId, options: &ReadOptions) -> ReadPlan {
    let check = Check::of(options.verification, id);
    let plan = ReadPlan::get(Operation::Read, format!("v1/blobs/{id}"), check, options);
    ReadPlan { query: consistency(options.consistency), id: Some(id), ..plan }
}

/// A GET of only these bytes, unverified.
fn range_plan(id: BlobId, range: ByteRange, options: &ReadOptions) -> ReadPlan {
    let plan = ReadPlan { range: Some(range), ..blob_plan(id, options) };
    match options.range_route {
        RangeRoute::Header => ReadPlan { status: StatusCode::PARTIAL_CONTENT, ..plan },
        // This route supports no consistency checks, and refuses unknown parameters.
        RangeRoute::Query => ReadPlan {
            path: format!("v1/blobs/{id}/byte-range"),
            query: vec![("start", range.start.to_string()), ("length", range.length.to_string())],
            ..plan
        },
    }
}

pub(super) fn consistency(consistency: Consistency) -> Vec<(&'static str, String)> {
    match consistency {
        Consistency::Default => Vec::new(),
        Consistency::Strict => vec![("strict_consistency_check", "true".to_owned())],
        Consistency::Skip => vec![("skip_consistency_check", "true".to_owned())],
    }
}

fn check_range(range: Option<ByteRange>) -> Result<(), StoreError> {
    match range {
        Some(range) if range.length == 0 || range.start.checked_add(range.length).is_none() => {
            Err(invalid_range())
        }
        _ => Ok(()),
    }
}

/// The requested range of a whole blob. A range past its end is refused, as Walrus does.
fn cut(mut bytes: Vec<u8>, range: ByteRange) -> Result<Vec<u8>, StoreError> {
    let start = usize::try_from(range.start).map_err(|_| invalid_range())?;
    let length = usize::try_from(range.length).map_err(|_| invalid_range())?;
    if start.checked_add(length).is_none_or(|end| end > bytes.len()) {
        return Err(invalid_range());
    }
    bytes.drain(..start);
    bytes.truncate(length);
    Ok(bytes)
}

fn invalid_range() -> StoreError {
    refused(crate::wire::reason::INVALID_BYTE_RANGE.to_owned())
}

fn no_file() -> StoreError {
    refused("the blob was not read into a file".to_owned())
}

pub(super) fn refused(reason: String) -> StoreError {
    StoreError::Refused { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_cut_out_as_an_aggregator_does() {
        let part = |start, length| cut(b"0123456789".to_vec(), ByteRange { start, length });
        assert_eq!(part(2, 3).unwrap(), b"234");
        assert_eq!(part(8, 2).unwrap(), b"89");
        assert_eq!(part(8, 3), Err(invalid_range()));
        assert_eq!(part(10, 1), Err(invalid_range()));
        assert_eq!(part(u64::MAX, 1), Err(invalid_range()));
        for (start, length) in [(0, 0), (u64::MAX, 1)] {
            assert_eq!(check_range(Some(ByteRange { start, length })), Err(invalid_range()));
        }
    }
}
