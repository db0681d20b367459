//! Keys of the sled database of earlier versions: one byte for the table, then big-endian fields, so that
//! keys sort like their fields. Pure.

use crate::storage::{DueJob, Pseudonym};

/// The layout of the database.
pub(super) const LAYOUT: &[u8] = b"L";
pub(super) const LAYOUT_VERSION: &[u8] = b"1";

/// Table of owners: `pseudonym` to the version.
pub(super) const OWNERS: u8 = b'o';
/// Table of records: `pseudonym ‖ space ‖ number ‖ chunk` to a part of its bytes.
pub(super) const RECORDS: u8 = b'r';
/// Table of jobs: `pseudonym ‖ job` to its due time.
pub(super) const JOBS: u8 = b'j';
/// The same by time: `due ‖ pseudonym ‖ job` to nothing, or to the due time before a process took the job.
const DUE: u8 = b'd';
/// Table of nonces: `nonce` to its expiry.
pub(super) const NONCES: u8 = b'n';

/// The owner that a key of [`OWNERS`] names.
pub(super) fn owner_of(key: &[u8]) -> Option<Pseudonym> {
    Some(Pseudonym(key.get(1..)?.try_into().ok()?))
}

/// Owner, space, number and chunk of a key of [`RECORDS`].
pub(super) fn record_of(key: &[u8]) -> Option<(Pseudonym, u8, u64, u32)> {
    let (owner, rest) = key.get(1..)?.split_first_chunk::<16>()?;
    let (space, rest) = rest.split_first()?;
    let (number, chunk) = rest.split_first_chunk::<8>()?;
    Some((Pseudonym(*owner), *space, u64::from_be_bytes(*number), u32::from_be_bytes(chunk.try_into().ok()?)))
}

/// The owner and the job that a key of [`JOBS`] names.
pub(super) fn job_of(key: &[u8]) -> Option<(Pseudonym, u64)> {
    let (owner, job) = key.get(1..)?.split_first_chunk::<16>()?;
    Some((Pseudonym(*owner), u64::from_be_bytes(job.try_into().ok()?)))
}

/// The key of a job by time.
pub(super) fn due(due: DueJob) -> Vec<u8> {
    [&[DUE][..], &due.due_ms.to_be_bytes(), &due.owner.0, &due.job.to_be_bytes()].concat()
}

/// The nonce in a key of [`NONCES`].
pub(super) fn nonce_of(key: &[u8]) -> Option<[u8; 32]> {
    key.get(1..)?.try_into().ok()
}
