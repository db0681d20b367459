//! Keys of the tree: one byte for the table, then big-endian fields, so that keys sort like their fields.
//! Pure.

use crate::storage::{DueJob, Pseudonym, Space};

/// The layout of the database; others are refused.
pub(super) const LAYOUT: &[u8] = b"L";
pub(super) const LAYOUT_VERSION: &[u8] = b"1";

/// Table of owners: `pseudonym` to the version.
pub(super) const OWNERS: u8 = b'o';
/// Table of records: `pseudonym ‖ space ‖ number ‖ chunk` to a part of its bytes.
pub(super) const RECORDS: u8 = b'r';
/// Table of jobs: `pseudonym ‖ job` to its due time.
pub(super) const JOBS: u8 = b'j';
/// The same by time: `due ‖ pseudonym ‖ job` to nothing.
pub(super) const DUE: u8 = b'd';
/// Table of nonces: `nonce` to its expiry.
pub(super) const NONCES: u8 = b'n';
/// The same by time: `until ‖ nonce` to nothing.
pub(super) const EXPIRY: u8 = b'x';

fn key(table: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![table];
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

pub(super) fn owner(owner: Pseudonym) -> Vec<u8> {
    key(OWNERS, &[&owner.0])
}

/// The owner that a key of [`OWNERS`] names.
pub(super) fn owner_of(key: &[u8]) -> Option<Pseudonym> {
    Some(Pseudonym(key.get(1..)?.try_into().ok()?))
}

/// The prefix of all keys of an owner in a table that begins with the pseudonym.
pub(super) fn prefix(table: u8, owner: Pseudonym) -> Vec<u8> {
    key(table, &[&owner.0])
}

pub(super) fn space(owner: Pseudonym, space: Space) -> Vec<u8> {
    key(RECORDS, &[&owner.0, &[space as u8]])
}

pub(super) fn record(owner: Pseudonym, space: Space, number: u64) -> Vec<u8> {
    key(RECORDS, &[&owner.0, &[space as u8], &number.to_be_bytes()])
}

pub(super) fn chunk(owner: Pseudonym, space: Space, number: u64, chunk: u32) -> Vec<u8> {
    key(RECORDS, &[&owner.0, &[space as u8], &number.to_be_bytes(), &chunk.to_be_bytes()])
}

/// Number and chunk of a key of [`RECORDS`].
pub(super) fn number_and_chunk(key: &[u8]) -> Option<(u64, u32)> {
    let (number, chunk) = key.get(18..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*number), u32::from_be_bytes(chunk.try_into().ok()?)))
}

pub(super) fn job(owner: Pseudonym, job: u64) -> Vec<u8> {
    key(JOBS, &[&owner.0, &job.to_be_bytes()])
}

/// The job that a key of [`JOBS`] names.
pub(super) fn job_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(17..)?.try_into().ok()?))
}

pub(super) fn due(due: DueJob) -> Vec<u8> {
    key(DUE, &[&due.due_ms.to_be_bytes(), &due.owner.0, &due.job.to_be_bytes()])
}

/// The job in a key of [`DUE`].
pub(super) fn due_of(key: &[u8]) -> Option<DueJob> {
    let (due_ms, rest) = key.get(1..)?.split_first_chunk::<8>()?;
    let (owner, job) = rest.split_first_chunk::<16>()?;
    Some(DueJob {
        owner: Pseudonym(*owner),
        job: u64::from_be_bytes(job.try_into().ok()?),
        due_ms: u64::from_be_bytes(*due_ms),
    })
}

pub(super) fn nonce(nonce: &[u8; 32]) -> Vec<u8> {
    key(NONCES, &[nonce])
}

pub(super) fn expiry(until_ms: u64, nonce: &[u8; 32]) -> Vec<u8> {
    key(EXPIRY, &[&until_ms.to_be_bytes(), nonce])
}

/// Time and nonce of a key of [`EXPIRY`].
pub(super) fn expiry_of(key: &[u8]) -> Option<(u64, [u8; 32])> {
    let (until, nonce) = key.get(1..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*until), nonce.try_into().ok()?))
}
