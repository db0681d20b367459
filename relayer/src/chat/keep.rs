//! What outlives a request: the session's journal, sealed under its root by the client itself, in records of the owner; how
//! far it got, in numbers; and the lease that keeps two relayers on one database from driving one session at once.
//!
//! No key is in any of it. Records are named by the session's id, which memory hashes under the owner's key.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use baton_client::JournalLog;
use baton_memory::{RecordChanges, api::MemoryError, ids::OwnerId};
use baton_proto::{codec, ids::SessionId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

use super::ChatError;
use crate::injection::Recollection;

/// Bytes of the journal in one record: each write of a turn replaces one such piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Longest journal. It is made shorter as it grows, so only a session of very long messages gets here; such a one goes on
/// in a client of the user's own.
const MAX_LOG_BYTES: u64 = 32 * 1024 * 1024;
/// A lease is taken for the present stretch of time and the next, so a relayer that dies blocks its session for two of
/// them at the most.
const LEASE_MS: u64 = 10_000;
/// How often a lease is looked after.
const LEASE_TICK: Duration = Duration::from_secs(3);
const MAX_PROGRESS_BYTES: usize = 256;

/// What the records of one session stand on.
#[derive(Clone)]
pub(super) struct Shelf {
    pub(super) memory: Arc<dyn Recollection>,
    pub(super) owner: OwnerId,
    pub(super) session: SessionId,
}

impl Shelf {
    fn name(&self, part: &str) -> String {
        format!("chat/{}/{part}", self.session)
    }

    async fn get(&self, part: &str) -> Result<Option<Vec<u8>>, MemoryError> {
        self.memory.get(self.owner, self.name(part)).await
    }

    async fn put(&self, part: &str, bytes: Option<Vec<u8>>) -> Result<(), MemoryError> {
        self.memory.put(self.owner, self.name(part), bytes).await
    }
}

/// How far a session's requests got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Rises with every request that ended: what a lease is for.
    pub(super) generation: u64,
    /// Turns that memory has, or is not meant to have.
    pub(super) recorded: u64,
    /// Turns whose answer was handed out.
    pub(super) delivered: u64,
}

/// The right to drive a session, while it is looked after.
pub(super) struct Lease {
    shelf: Shelf,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// How far it got, to be written at the end.
    pub(super) progress: Progress,
    /// Whether anything was written before.
    pub(super) known: bool,
}

impl Lease {
    /// Takes the lease of a session.
    ///
    /// # Errors
    /// [`ChatError::Busy`] while another request drives it, and memory's.
    pub(super) async fn take(
        shelf: Shelf,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<Self, ChatError> {
        let found = shelf.get("progress").await?;
        let progress = match &found {
            Some(bytes) => codec::decode(bytes, MAX_PROGRESS_BYTES)
                .map_err(|_| ChatError::from(MemoryError::Damaged("a session's progress".to_owned())))?,
            None => Progress::default(),
        };
        let lease = Self { shelf, now_ms, progress, known: found.is_some() };
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
            .chain_update(self.shelf.owner.0)
            .chain_update(self.shelf.session.0)
            .chain_update(self.progress.generation.to_le_bytes())
            .chain_update(stretch.to_le_bytes());
        let until_ms = (stretch + 2).saturating_mul(LEASE_MS);
        self.shelf.memory.take_nonce(name.finalize().into(), (self.now_ms)(), until_ms).await
    }

    /// Keeps the lease while `work` runs.
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

    /// Writes how far the request got, and lets the next one in.
    ///
    /// # Errors
    /// Memory's; the next request then waits until the lease runs out.
    pub(super) async fn release(self) -> Result<(), MemoryError> {
        let progress = Progress { generation: self.progress.generation + 1, ..self.progress };
        self.shelf.put("progress", Some(codec::encode(&progress))).await
    }
}

/// Removes all that is kept of a session, together: its journal, piece by piece, and how far it got. Whether there was
/// anything.
///
/// # Errors
/// [`ChatError::Busy`] while it is driven, and memory's.
pub(super) async fn forget(
    shelf: Shelf,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> Result<bool, ChatError> {
    let mut parts = Vec::new();
    // Also what a crash left behind the last piece.
    while shelf.get(&parts.len().to_string()).await?.is_some() {
        parts.push(parts.len().to_string());
    }
    if shelf.get("progress").await?.is_some() {
        parts.push("progress".to_owned());
    }
    if parts.is_empty() {
        return Ok(false);
    }
    // Not given back: it says how far the session got, and ends by itself.
    let _lease = Lease::take(shelf.clone(), now_ms).await?;
    let names: Vec<String> = parts.iter().map(|part| shelf.name(part)).collect();
    let change = |_: &[Option<Vec<u8>>]| Ok(names.iter().map(|name| (name.clone(), None)).collect());
    shelf.memory.change(shelf.owner, Vec::new(), Box::new(change)).await?;
    Ok(true)
}

/// A session's journal in records of its owner, piece by piece.
pub(super) struct RecordLog {
    shelf: Shelf,
    runtime: Handle,
    end: Mutex<End>,
}

/// What is known of the end of the log.
#[derive(Clone, Default)]
struct End {
    length: u64,
    /// The last piece, as far as it goes; less than a whole one.
    tail: Vec<u8>,
    /// Pieces that are there.
    pieces: u64,
}

impl RecordLog {
    /// The log of a session, on this runtime.
    pub(super) fn new(shelf: Shelf, runtime: Handle) -> Self {
        Self { shelf, runtime, end: Mutex::new(End::default()) }
    }

    fn get(&self, piece: u64) -> io::Result<Option<Vec<u8>>> {
        self.runtime.block_on(self.shelf.get(&piece.to_string())).map_err(io::Error::other)
    }

    /// Writes pieces, all or none.
    fn put(&self, pieces: RecordChanges) -> io::Result<()> {
        let change = |_: &[Option<Vec<u8>>]| Ok(pieces.clone());
        let shelf = &self.shelf;
        let written = shelf.memory.change(shelf.owner, Vec::new(), Box::new(change));
        self.runtime.block_on(written).map_err(io::Error::other)
    }
}

impl JournalLog for RecordLog {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        while let Some(piece) = self.get(pieces)? {
            pieces += 1;
            bytes.extend_from_slice(&piece);
            // A piece that is not full is the last; what a crash left behind it is of an older log.
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
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let length = offset + bytes.len() as u64;
        if length > MAX_LOG_BYTES {
            return Err(io::Error::other(
                "the session is too long for this door; go on with it in your own client",
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
        let named = |piece: u64| self.shelf.name(&piece.to_string());
        let mut changes: RecordChanges =
            chunks.map(|(piece, bytes)| (named(piece), Some(bytes.to_vec()))).collect();
        let next = first + changes.len() as u64;
        changes.extend((next..end.pieces).map(|piece| (named(piece), None)));
        self.put(changes)?;
        let whole = buffer.len() / PIECE_BYTES * PIECE_BYTES;
        *end = End { length, tail: buffer.split_off(whole), pieces: next };
        Ok(())
    }
}
