//! The calls for quilts: store many small blobs as one, and read them one by one.
//!
//! As cancel safe as the calls for blobs.

use std::{collections::BTreeMap, fmt::Write as _};

use baton_proto::{
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use bytes::Bytes;
use reqwest::header::HeaderMap;

use super::{
    HttpStore, ReadOptions, StoredBlob, Verification,
    answer::json,
    payload::{MultipartForm, Payload},
    read::ReadPlan,
    reads::refused,
    verify::ContentCheck,
    write::{OwnId, PutJob},
};
use crate::{
    ShardCount, blob_id,
    quilt::{self, QuiltError, QuiltIndex, QuiltPatch, QuiltPatchId},
    wire::{QUILT_METADATA_FIELD, QuiltPatchItem, QuiltPatchMetadata},
};

/// The header with the identifier of a patch.
const IDENTIFIER_HEADER: &str = "x-quilt-patch-identifier";
/// Most bytes of a quilt's patches: the limit of Walrus's public publishers.
const MAX_QUILT_BYTES: u64 = 102_400 * 1024;
/// Largest quilt built in memory, in bytes. One large patch among many small ones makes a quilt many times as
/// large as its patches. The publisher would have to hold and encode that too.
const MAX_LAID_OUT_BYTES: u64 = 1 << 30;

/// A stored patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPatch {
    /// Its name.
    pub identifier: String,
    /// Its ID, computed by this client. The publisher named the same ID, unless its answer was lost.
    pub patch_id: QuiltPatchId,
}

/// A stored quilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredQuilt {
    /// The quilt's blob; its ID is the quilt's.
    pub stored: StoredBlob,
    /// Its patches, in the byte order of their identifiers.
    pub patches: Vec<StoredPatch>,
}

/// A patch of a quilt, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuiltPatchInfo {
    /// Its name.
    pub identifier: String,
    /// Its ID.
    pub patch_id: QuiltPatchId,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// A patch with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPatch {
    /// Its name: from the quilt itself with [`Verification::BlobId`], else from the aggregator, if it said.
    pub identifier: Option<String>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A patch that the call owns, so that another thread can use it.
struct OwnPatch {
    identifier: String,
    tags: BTreeMap<String, String>,
    /// Shared with the request body.
    data: Bytes,
}

impl OwnPatch {
    fn borrow(&self) -> QuiltPatch<'_> {
        QuiltPatch { identifier: &self.identifier, tags: self.tags.clone(), data: &self.data }
    }
}

/// The expected result for some patches, computed by this client.
struct ExpectedQuilt {
    quilt: BlobId,
    length: u64,
    patches: Vec<StoredPatch>,
}

impl ExpectedQuilt {
    fn of(patches: &[OwnPatch], shards: ShardCount) -> Result<Self, StoreError> {
        let patches: Vec<QuiltPatch<'_>> = patches.iter().map(OwnPatch::borrow).collect();
        let length = quilt::encoded_length(&patches, shards).map_err(|error| no_quilt(&error))?;
        if length > MAX_LAID_OUT_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_LAID_OUT_BYTES });
        }
        let laid_out = quilt::encode(&patches, shards).map_err(|error| no_quilt(&error))?;
        let quilt = blob_id(&laid_out.bytes, shards).map_err(|error| refused(error.to_string()))?;
        let entries = laid_out.index.entries.into_iter();
        let stored = |entry: quilt::PatchEntry| StoredPatch {
            patch_id: entry.id(quilt),
            identifier: entry.identifier,
        };
        Ok(Self { quilt, length, patches: entries.map(stored).collect() })
    }
}

impl HttpStore {
    /// Stores patches as one quilt. The client also builds the quilt itself, in memory. It compares the IDs
    /// of quilt and patches with the publisher's. Otherwise as [`HttpStore::store`].
    ///
    /// # Errors
    /// As [`HttpStore::store`]. [`StoreError::Refused`] also when no quilt can hold the patches, and for
    /// identifiers that HTTP cannot carry. Those are `_metadata`, and any with a backslash before a quote
    /// or at the end.
    pub async fn store_quilt(
        &self,
        patches: &[QuiltPatch<'_>],
        options: &PutOptions,
    ) -> Result<StoredQuilt, StoreError> {
        let length: u64 = patches.iter().map(|patch| patch.data.len() as u64).sum();
        if length > MAX_QUILT_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_QUILT_BYTES });
        }
        let own = |patch: &QuiltPatch<'_>| OwnPatch {
            identifier: patch.identifier.to_owned(),
            tags: patch.tags.clone(),
            data: Bytes::copy_from_slice(patch.data),
        };
        let patches: Vec<OwnPatch> = patches.iter().map(own).collect();
        let form = form(&patches)?;
        let ExpectedQuilt { quilt, length, patches } = self.lay_out(patches).await?;
        let ids = patches.iter().map(|patch| (patch.identifier.clone(), patch.patch_id.to_string()));
        let job = PutJob {
            path: "v1/quilts",
            payload: Payload::Form(form),
            id: OwnId::Known(quilt),
            length,
            patches: Some(ids.collect()),
            options,
        };
        let stored = self.inner.put(&job).await?;
        Ok(StoredQuilt { stored, patches })
    }

    /// Builds the quilt and computes its IDs, on a blocking thread.
    async fn lay_out(&self, patches: Vec<OwnPatch>) -> Result<ExpectedQuilt, StoreError> {
        let shards = self.shards();
        match tokio::task::spawn_blocking(move || ExpectedQuilt::of(&patches, shards)).await {
            Ok(expected) => expected,
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(refused("the runtime is shutting down".to_owned())),
            },
        }
    }

    /// The patches of a quilt. With [`Verification::BlobId`], the client reads the whole quilt and its index,
    /// and `limit` bounds the quilt. Otherwise the aggregator's list is returned, and `limit` bounds its
    /// JSON.
    ///
    /// # Errors
    /// As [`HttpStore::read`]; [`StoreError::Refused`] when the blob is no quilt. A digest is also refused: a
    /// list has no bytes that it could cover.
    pub async fn quilt_patches(
        &self,
        quilt: BlobId,
        options: &ReadOptions,
    ) -> Result<Vec<QuiltPatchInfo>, StoreError> {
        match options.verification {
            Verification::BlobId => {
                let (index, _) = self.read_quilt(quilt, options).await?;
                let info = |entry: quilt::PatchEntry| QuiltPatchInfo {
                    patch_id: entry.id(quilt),
                    identifier: entry.identifier,
                    tags: entry.tags,
                };
                return Ok(index.entries.into_iter().map(info).collect());
            }
            Verification::Digest(_) => {
                return Err(refused("a list of patches has no digest to be checked against".to_owned()));
            }
            Verification::Off => {}
        }
        let path = format!("v1/quilts/{quilt}/patches");
        let mut plan = ReadPlan::get(path, ContentCheck::Off, options.limit);
        plan.id = Some(quilt);
        plan.well_formed = |bytes| read_list(bytes).is_some();
        let bytes = self.inner.read(&plan).await?.bytes;
        read_list(&bytes).ok_or(StoreError::WrongContent)
    }

    /// Reads one patch by its ID.
    ///
    /// A digest covers the patch's bytes. With [`Verification::BlobId`], the client reads the whole quilt,
    /// checks its ID and extracts the patch, since nothing smaller can be verified. `limit` then bounds the
    /// quilt.
    ///
    /// # Errors
    /// As [`HttpStore::read`]; [`StoreError::NotFound`] also when the quilt lacks the patch.
    pub async fn read_patch(
        &self,
        patch: QuiltPatchId,
        options: &ReadOptions,
    ) -> Result<ReadPatch, StoreError> {
        if options.verification == Verification::BlobId {
            let (index, bytes) = self.read_quilt(patch.quilt, options).await?;
            let entry =
                index.entries.iter().find(|entry| (entry.start, entry.end) == (patch.start, patch.end));
            return self.take_out(&index, entry, &bytes);
        }
        let path = format!("v1/blobs/by-quilt-patch-id/{patch}");
        self.fetch_patch(patch.quilt, path, options).await
    }

    /// Reads one patch by its identifier; otherwise as [`Self::read_patch`].
    ///
    /// # Errors
    /// As [`Self::read_patch`]; [`StoreError::Refused`] also for the identifiers `.` and `..`, which no URL
    /// can carry. Read those by their patch ID or with [`Verification::BlobId`].
    pub async fn read_patch_named(
        &self,
        quilt: BlobId,
        identifier: &str,
        options: &ReadOptions,
    ) -> Result<ReadPatch, StoreError> {
        quilt::check_identifier(identifier).map_err(|error| refused(format!("the identifier {error}")))?;
        if options.verification == Verification::BlobId {
            let (index, bytes) = self.read_quilt(quilt, options).await?;
            return self.take_out(&index, index.find(identifier), &bytes);
        }
        if matches!(identifier, "." | "..") {
            return Err(refused("a URL cannot carry this identifier; read the patch by its ID".to_owned()));
        }
        let path = format!("v1/blobs/by-quilt-id/{quilt}/{}", path_segment(identifier));
        let patch = self.fetch_patch(quilt, path, options).await?;
        // A matching digest overrides the header.
        let misnamed = patch.identifier.as_deref().is_some_and(|named| named != identifier);
        if misnamed && options.verification == Verification::Off {
            return Err(StoreError::WrongContent);
        }
        Ok(ReadPatch { identifier: Some(identifier.to_owned()), ..patch })
    }

    async fn fetch_patch(
        &self,
        quilt: BlobId,
        path: String,
        options: &ReadOptions,
    ) -> Result<ReadPatch, StoreError> {
        let check = match options.verification {
            Verification::Digest(digest) => ContentCheck::Digest(digest),
            Verification::BlobId | Verification::Off => ContentCheck::Off,
        };
        let plan = ReadPlan { id: Some(quilt), ..ReadPlan::get(path, check, options.limit) };
        let fetched = self.inner.read(&plan).await?;
        Ok(ReadPatch { identifier: named(&fetched.headers), bytes: fetched.bytes })
    }

    /// A whole verified quilt and its index.
    async fn read_quilt(
        &self,
        quilt: BlobId,
        options: &ReadOptions,
    ) -> Result<(QuiltIndex, Vec<u8>), StoreError> {
        let bytes = self.read(quilt, options).await?;
        let index = QuiltIndex::decode(&bytes, self.shards()).map_err(|error| no_quilt(&error))?;
        Ok((index, bytes))
    }

    fn take_out(
        &self,
        index: &QuiltIndex,
        entry: Option<&quilt::PatchEntry>,
        quilt: &[u8],
    ) -> Result<ReadPatch, StoreError> {
        let entry = entry.ok_or(StoreError::NotFound)?;
        let bytes = index.patch(quilt, entry, self.shards()).map_err(|error| no_quilt(&error))?;
        Ok(ReadPatch { identifier: Some(entry.identifier.clone()), bytes })
    }
}

fn no_quilt(error: &QuiltError) -> StoreError {
    refused(format!("no quilt: {error}"))
}

/// The body of a quilt's PUT. Tags have a field of their own, present only if there are any.
fn form(patches: &[OwnPatch]) -> Result<MultipartForm, StoreError> {
    let unsendable = || refused("an identifier cannot be sent over HTTP; choose another one".to_owned());
    if patches.iter().any(|patch| patch.identifier == QUILT_METADATA_FIELD) {
        return Err(unsendable());
    }
    let field = |patch: &OwnPatch| (patch.identifier.clone(), patch.data.clone());
    let mut fields: Vec<(String, Bytes)> = patches.iter().map(field).collect();
    let tagged: Vec<QuiltPatchMetadata> = patches
        .iter()
        .filter(|patch| !patch.tags.is_empty())
        .map(|patch| QuiltPatchMetadata { identifier: patch.identifier.clone(), tags: patch.tags.clone() })
        .collect();
    if !tagged.is_empty() {
        let json = serde_json::to_vec(&tagged).map_err(|error| refused(error.to_string()))?;
        fields.push((QUILT_METADATA_FIELD.to_owned(), json.into()));
    }
    MultipartForm::new(fields).ok_or_else(unsendable)
}

pub(super) fn read_list(bytes: &[u8]) -> Option<Vec<QuiltPatchInfo>> {
    let items: Vec<QuiltPatchItem> = json(bytes)?;
    let info = |item: QuiltPatchItem| {
        let patch_id = item.patch_id.parse().ok()?;
        Some(QuiltPatchInfo { identifier: item.identifier, patch_id, tags: item.tags })
    };
    items.into_iter().map(info).collect()
}

fn named(headers: &HeaderMap) -> Option<String> {
    String::from_utf8(headers.get(IDENTIFIER_HEADER)?.as_bytes().to_vec()).ok()
}

/// A text as one segment of a path: all but letters, digits and a few signs become %XX.
fn path_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            segment.push(char::from(byte));
        } else {
            write!(segment, "%{byte:02X}").expect("a String takes everything");
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_stay_one_segment_of_the_path() {
        let base = reqwest::Url::parse("http://host/").unwrap();
        for identifier in ["a/b", "a?b#c", "100%", "ü x", "../up", "plain-1.txt"] {
            let url = base.join(&format!("q/{}", path_segment(identifier))).unwrap();
            assert_eq!(url.path_segments().unwrap().count(), 2, "{identifier}");
            assert_eq!((url.query(), url.fragment()), (None, None), "{identifier}");
        }
    }

    #[test]
    fn a_list_with_anything_else_in_it_is_none() {
        let patch = QuiltPatchId { quilt: BlobId([3; 32]), start: 1, end: 2 };
        let good = format!(r#"[{{"identifier":"a","patch_id":"{patch}","tags":{{"k":"v"}}}}]"#);
        let list = read_list(good.as_bytes()).unwrap();
        assert_eq!((list[0].patch_id, list[0].tags["k"].as_str()), (patch, "v"));
        for bad in ["", "{}", r#"[{"identifier":"a"}]"#, &good.replace(&patch.to_string(), "no")] {
            assert!(read_list(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_name_of_the_metadata_is_no_identifier() {
        let patch = |identifier: &str| OwnPatch {
            identifier: identifier.to_owned(),
            tags: BTreeMap::new(),
            data: Bytes::from_static(b"x"),
        };
        assert!(form(&[patch("a")]).is_ok());
        for identifier in [QUILT_METADATA_FIELD, "a\\"] {
            assert!(matches!(form(&[patch(identifier)]), Err(StoreError::Refused { .. })), "{identifier}");
        }
    }
}
