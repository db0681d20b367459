//! Where an owner's sealed records lie: the trait, and its two implementations.
//!
//! A storage sees a pseudonym, sizes, versions and due times, and never a key: everything in a record was sealed before
//! it came here. It holds, for each owner, numbered records in a few spaces, a version that every commit raises by one,
//! rows of the search index (only where the database searches by itself), and jobs by the time they are due.

pub mod embedded;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::{future::Future, pin::Pin};

use baton_keys::secret::random_bytes;

/// Most bytes of a sealed record: a snapshot of the largest owner, compressed, has about half.
pub const MAX_RECORD_BYTES: usize = 128 * 1024 * 1024;
/// Most sealed bytes of one commit: a storage holds it in memory several times over.
pub const MAX_BATCH_BYTES: usize = 512 * 1024 * 1024;

/// A boxed storage operation, so that the trait can be used as `dyn`.
pub type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// An owner as the storage knows it: a keyed hash of the address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pseudonym(pub [u8; 16]);

impl std::fmt::Debug for Pseudonym {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pseudonym({}…)", hex::encode(&self.0[..4]))
    }
}

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Events, by sequence number: the truth.
    Log = 0,
    /// Search features of an item, by the sequence number of the event that added it.
    Features = 1,
    /// The folded state up to a sequence number; at most one record, number 0.
    Snapshot = 2,
    /// What a session's client left in the relayer's care, sealed under that session's root, by a keyed hash of its id.
    Sessions = 3,
    /// Search features of up to 256 items together, by the number of their segment.
    Packs = 4,
}

impl Space {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Log, Self::Features, Self::Snapshot, Self::Sessions, Self::Packs];
}

/// A record with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub space: Space,
    /// Its number in the space.
    pub number: u64,
    /// Sealed bytes.
    pub bytes: Vec<u8>,
}

/// One row of a database's own search index. Everything in it is keyed or obfuscated; see docs/MEMORY.md for what that
/// hides and what it does not.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexRow {
    /// The item, by the sequence number of the event that added it.
    pub number: u64,
    /// Keyed hash of everything that decides who may see the item.
    pub class: [u8; 16],
    /// Keyed term hashes with their counts, ascending by hash.
    pub terms: Vec<(u64, u16)>,
    /// Terms in the text, repetitions included.
    pub length: u32,
    /// The rotated embedding, if there is one yet.
    pub vector: Option<Vec<f32>>,
}

/// A job by the time it is due. What there is to do is in the owner's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DueJob {
    /// Whose.
    pub owner: Pseudonym,
    /// Its number among the owner's jobs.
    pub job: u64,
    /// When to run it, in milliseconds since the Unix epoch.
    pub due_ms: u64,
}

/// Changes to one owner that happen all or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Records to write; one that is there is replaced.
    pub put: Vec<Record>,
    /// Records to remove.
    pub remove: Vec<(Space, u64)>,
    /// Index rows to write; one that is there is replaced.
    pub index: Vec<IndexRow>,
    /// Index rows to remove.
    pub unindex: Vec<u64>,
    /// Whether all index rows are removed before others are written.
    pub clear_index: bool,
    /// Jobs to write, number and due time; one that is there gets the new time.
    pub jobs: Vec<(u64, u64)>,
    /// Jobs that are done.
    pub done: Vec<u64>,
}

/// Which rows of a search index to score.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanQuery {
    /// The question under each key that rows may be written with: one, or two while the key is replaced.
    pub keyed: Vec<KeyedQuery>,
    /// Most rows to return by each of terms and vector; none for all.
    pub limit: Option<u32>,
}

/// A question under one key of the index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyedQuery {
    /// Classes that the asker may see, each with the highest number that it may see of it.
    pub classes: Vec<([u8; 16], u64)>,
    /// Keyed hashes of the query's terms; of the same terms in the same order under each key.
    pub terms: Vec<u64>,
    /// The rotated embedding of the query.
    pub vector: Option<Vec<f32>>,
}

/// A row that a database found.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRow {
    /// The item.
    pub number: u64,
    /// How often each of the query's terms occurs, in their order.
    pub counts: Vec<u16>,
    /// Terms in the text.
    pub length: u32,
    /// Cosine similarity with the query's vector.
    pub cosine: Option<f32>,
}

/// What a database found, with what a ranking needs of all rows in the classes asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// The owner's version at that moment.
    pub version: u64,
    /// Rows in the classes.
    pub documents: u64,
    /// Sum of their lengths.
    pub total_length: u64,
    /// In how many of them each term occurs.
    pub document_counts: Vec<u32>,
    /// Mean of the cosine over all of them that have a vector.
    pub cosine_mean: f32,
    /// Standard deviation of the same.
    pub cosine_deviation: f32,
    /// The best rows by terms and by vector.
    pub rows: Vec<ScanRow>,
}

/// Why a storage operation failed, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Somebody else committed since the version that the caller built on: read what is new and try again.
    #[error("the owner's records were changed by another writer")]
    Conflict,
    /// Trying again later may work.
    #[error("the memory storage is unavailable: {0}")]
    Unavailable(String),
    /// The storage holds something that it cannot hold, or its format is another.
    #[error("the memory storage is damaged: {0}")]
    Damaged(String),
    /// A limit of the storage.
    #[error("{length} bytes exceed the storage's limit of {limit} bytes")]
    TooLarge {
        /// Bytes offered.
        length: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

/// Sealed records of all owners.
pub trait Storage: Send + Sync {
    /// The owner's version; 0 for one that has nothing.
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64>;

    /// Records of a space with numbers from `from` on, ascending, at most about `max_bytes` of them (at least one, if
    /// there is one). The caller asks again from the last number + 1 until nothing comes.
    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>>;

    /// Makes all changes, durable when it returns, if the owner's version is still `expected`; returns the new version:
    /// one more, but for an owner's first, which is random, so that whoever knew an owner that was erased and came again
    /// does not take the new one for the old.
    ///
    /// # Errors
    /// [`StorageError::Conflict`] and nothing is changed.
    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64>;

    /// Removes everything of an owner.
    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()>;

    /// Owners after one, ascending.
    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>>;

    /// Takes up to `limit` jobs that are due at `now_ms`, earliest first, and makes them due again at `again_ms`, so that
    /// no other relayer takes them meanwhile and a crash does not lose them.
    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<DueJob>>;

    /// Remembers a nonce until a time; false if it was there already. Durable when it returns. Runs out by itself.
    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool>;

    /// Scores index rows in the database; `None` where the storage does not search (then the caller searches the
    /// records it opened).
    fn scan<'a>(&'a self, owner: Pseudonym, query: ScanQuery) -> StorageFuture<'a, Option<Scan>>;

    /// Whether [`Self::scan`] searches, so that index rows have to be written.
    fn searches(&self) -> bool;
}

fn check_sizes(batch: &Batch) -> Result<(), StorageError> {
    let lengths = || batch.put.iter().map(|record| record.bytes.len());
    let refused = |length: usize, limit: usize| {
        Err(StorageError::TooLarge { length: length as u64, limit: limit as u64 })
    };
    match (lengths().max().unwrap_or(0), lengths().sum()) {
        (longest, _) if longest > MAX_RECORD_BYTES => refused(longest, MAX_RECORD_BYTES),
        (_, total) if total > MAX_BATCH_BYTES => refused(total, MAX_BATCH_BYTES),
        _ => Ok(()),
    }
}

/// An owner's first version: random and far below what a database counts to.
fn first_version() -> u64 {
    (u64::from_le_bytes(random_bytes()) >> 18) + 1
}
