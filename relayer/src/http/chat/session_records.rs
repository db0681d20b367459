//! The data of a session that outlives a request, in its owner's records:
//!
//! - the journal, which the client itself seals under the session's root;
//! - the progress, as numbers;
//! - the lease, which keeps two relayers on one database from driving one session at once.
//!
//! None of it contains a key. The session's id names the records; memory hashes it under the owner's key.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use baton_client::JournalLog;
use baton_memory::{Memory, RecordChanges, api::MemoryError, ids::OwnerId};
use baton_proto::{codec, ids::SessionId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

use super::ChatError;

/// Bytes of the journal in one record: each write of a turn replaces one such piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Longest journal. It is compacted as it grows, so only sessions with very long messages reach the limit.
/// Such a session needs the user's own client.
const MAX_LOG_BYTES: u64 = 32 * 1024 * 1024;
/// A lease covers the present interval and the next, so a dead relayer blocks its session for two intervals
/// at most.
const LEASE_MS: u64 = 10_000;
/// Interval between checks of a lease.
const LEASE_TICK: Duration = Duration::from_secs(3);
const MAX_PROGRESS_BYTES: usize = 256;

/// The place of a session's records.
pub(super) enum RecordStore {
    /// Its owner's memory.
    Memory(Memory),
    /// The request, while the owner's memory is unreadable; `None` for a removed record.
    Request(Mutex<HashMap<String, Option<Vec<u8>>>>),
}

/// The records of one session.
#[derive(Clone)]
pub(super) struct SessionRecords {
    pub(super) store: Arc<RecordStore>,
    pub(super) owner: OwnerId,
    pub(super) session: SessionId,
}

impl SessionRecords {
    fn name(&self, part: &str) -> String {
        format!("chat/{}/{part}", self.session)
    }

    async fn get(&self, part: &str) -> Result<Option<Vec<u8>>, MemoryError> {
        let name = self.name(part);
        match &*self.store {
            RecordStore::Memory(memory) => memory.get_record(self.owner, &name).await,
            RecordStore::Request(records) => Ok(records.lock().get(&name).cloned().flatten()),
        }
    }

    /// Writes and removes records, all or none.
    async fn change(&self, changes: RecordChanges) -> Result<(), MemoryError> {
        match &*self.store {
            RecordStore::Memory(memory) => {
                memory.change_records(self.owner, &[], |_| Ok(changes.clone())).await
            }
            RecordStore::Request(records) => {
                records.lock().extend(changes);
                Ok(())
            }
        }
    }
}

/// The progress of a session's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Increases with every finished request: a lease is for one generation.
    pub(super) generation: u64,
    /// Turns that memory has, or that must not be recorded.
    pub(super) recorded: u64,
    /// Turns whose answer was delivered.
    pub(super) delivered: u64,
}

/// The right to drive a session, while it is renewed.
pub(super) struct Lease {
    records: SessionRecords,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The progress to write at the end.
    pub(super) progress: Progress,
    /// Whether a progress record existed.
    pub(super) known: bool,
}

impl Lease {
    /// Takes the lease of a session.
    ///
    /// # Errors
    /// [`ChatError::Busy`] while another request drives it, and memory's.
    pub(super) async fn take(
        records: SessionRecords,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<Self, ChatError> {
        let found = records.get("progress").await?;
        let progress = match &found {
            Some(bytes) => codec::decode(bytes, MAX_PROGRESS_BYTES)
                .map_err(|_| ChatError::from(MemoryError::Damaged("a session's progress".to_owned())))?,
            None => Progress::default(),
        };
        let lease = Self { records, now_ms, progress, known: found.is_some() };
        let stretch = lease.stretch();
        if lease.hold(stretch).await? && lease.hold(stretch + 1).await? {
            return Ok(lease);
        }
        Err(ChatError::Busy { retry_after_ms: LEASE_MS })
    }

    fn stretch(&self) -> u64 {
        (self.now_ms)() / LEASE_MS
    }

    async fn hold(&self, stretch: u64) -> Result<bool, MemoryError> {
        let name = Sha256::new()
            .chain_update(b"baton chat lease")
            .chain_update(self.records.owner.0)
            .chain_update(self.records.session.0)
            .chain_update(self.progress.generation.to_le_bytes())
            .chain_update(stretch.to_le_bytes());
        let until_ms = (stretch + 2).saturating_mul(LEASE_MS);
        match &*self.records.store {
            RecordStore::Memory(memory) => {
                memory.take_nonce(name.finalize().into(), (self.now_ms)(), until_ms).await
            }
            // `DrivenSessions` decides on the right to drive a session.
            RecordStore::Request(_) => Ok(true),
        }
    }

    /// Renews the lease while `work` runs.
    pub(super) async fn while_held<T>(&self, work: impl Future<Output = T>) -> T {
        let keep = async {
            let mut held = self.stretch() + 1;
            loop {
                tokio::time::sleep(LEASE_TICK).await;
                let wanted = self.stretch() + 1;
                if wanted <= held {
                    continue;
                }
                match self.hold(wanted).await {
                    Ok(true) => held = wanted,
                    Ok(false) => tracing::warn!("a session's lease was lost"),
                    Err(error) => tracing::warn!(%error, "a session's lease could not be renewed"),
                }
            }
        };
        tokio::select! {
            result = work => result,
            () = keep => unreachable!("a lease is looked after for as long as the work takes"),
        }
    }

    /// Writes the progress, and admits the next request.
    ///
    /// # Errors
    /// Memory's; the next request then waits until the lease expires.
    pub(super) async fn release(self) -> Result<(), MemoryError> {
        let progress = Progress { generation: self.progress.generation + 1, ..self.progress };
        let name = self.records.name("progress");
        self.records.change(vec![(name, Some(codec::encode(&progress)))]).await
    }
}

/// Removes all records of a session together: each piece of its journal, and its progress. Returns whether
/// any existed.
///
/// # Errors
/// [`ChatError::Busy`] while it is in use, and memory's.
pub(super) async fn forget(
    records: SessionRecords,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> Result<bool, ChatError> {
    let mut parts = Vec::new();
    // Includes leftovers of a crash after the last piece.
    while records.get(&parts.len().to_string()).await?.is_some() {
        parts.push(parts.len().to_string());
    }
    if records.get("progress").await?.is_some() {
        parts.push("progress".to_owned());
    }
    if parts.is_empty() {
        return Ok(false);
    }
    // Not released: that would write the progress again. It expires by itself.
    let _lease = Lease::take(records.clone(), now_ms).await?;
    records.change(parts.iter().map(|part| (records.name(part), None)).collect()).await?;
    Ok(true)
}

/// A session's journal in its owner's records, piece by piece.
pub(super) struct RecordLog {
    records: SessionRecords,
    runtime: Handle,
    end: Mutex<End>,
}

/// The known end of the log.
#[derive(Clone, Default)]
struct End {
    length: u64,
    /// The last piece, if incomplete.
    tail: Vec<u8>,
    /// Existing pieces.
    pieces: u64,
}

impl RecordLog {
    /// The log of a session, on this runtime.
    pub(super) fn new(records: SessionRecords, runtime: Handle) -> Self {
        Self { records, runtime, end: Mutex::new(End::default()) }
    }

    fn get(&self, piece: u64) -> io::Result<Option<Vec<u8>>> {
        self.runtime.block_on(self.records.get(&piece.to_string())).map_err(io::Error::other)
    }
}

impl JournalLog for RecordLog {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut end = self.end.lock();
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        while let Some(piece) = self.get(pieces)? {
            pieces += 1;
            bytes.extend_from_slice(&piece);
            // An incomplete piece is the last; pieces after it are leftovers of an older log.
            if piece.len() < PIECE_BYTES || bytes.len() as u64 > MAX_LOG_BYTES {
                break;
            }
        }
        let whole = bytes.len() / PIECE_BYTES * PIECE_BYTES;
        let tail = bytes.get(whole..).unwrap_or_default().to_vec();
        *end = End { length: bytes.len() as u64, tail, pieces };
        Ok(bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut end = self.end.lock();
        let length = offset + bytes.len() as u64;
        if length > MAX_LOG_BYTES {
            return Err(io::Error::other(
                "the session is too long for this relayer; go on with it in your own client",
            ));
        }
        let piece_bytes = PIECE_BYTES as u64;
        let first = offset / piece_bytes;
        let kept = usize::try_from(offset % piece_bytes).map_err(io::Error::other)?;
        let mut buffer = match kept {
            0 => Vec::new(),
            _ if offset == end.length => end.tail.clone(),
            _ => self.get(first)?.unwrap_or_default(),
        };
        if buffer.len() < kept {
            return Err(io::Error::other("the log does not reach to where it is to be written"));
        }
        buffer.truncate(kept);
        buffer.extend_from_slice(bytes);
        let chunks = (first..).zip(buffer.chunks(PIECE_BYTES));
        let named = |piece: u64| self.records.name(&piece.to_string());
        let mut changes: RecordChanges =
            chunks.map(|(piece, bytes)| (named(piece), Some(bytes.to_vec()))).collect();
        let next = first + changes.len() as u64;
        changes.extend((next..end.pieces).map(|piece| (named(piece), None)));
        self.runtime.block_on(self.records.change(changes)).map_err(io::Error::other)?;
        let whole = buffer.len() / PIECE_BYTES * PIECE_BYTES;
        *end = End { length, tail: buffer.split_off(whole), pieces: next };
        Ok(())
    }
}
