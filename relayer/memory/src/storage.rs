//! The storage of sealed records: the trait, and its two implementations.
//!
//! A storage sees a pseudonym, sizes, versions and due times, and never a key: all records are sealed before
//! they arrive. For each owner it holds:
//!
//! - numbered records in a few spaces;
//! - a version that every commit raises by one;
//! - search columns of its items, only if the database does the search;
//! - the time when its job is due.

pub mod embedded;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::{future::Future, pin::Pin};

use baton_keys::secret::random_bytes;

/// Most bytes of a sealed record: the compressed snapshot of the largest owner has about half of this.
pub const MAX_RECORD_BYTES: usize = 128 * 1024 * 1024;
/// Most sealed bytes of one commit: a storage holds several copies in memory.
pub const MAX_BATCH_BYTES: usize = 512 * 1024 * 1024;

/// A boxed storage operation, so that the trait can be used as `dyn`.
pub type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// The storage's name of an owner: a keyed hash of the address.
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
    /// A session client's data in the relayer's care, sealed under the session's root; numbered by a keyed
    /// hash of the session id.
    Sessions = 3,
    /// Search features of up to 256 items together, by the number of their segment.
    Packs = 4,
}

impl Space {
    /// All values.
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

/// The search columns of an item, which a database with a search reads. They are keyed, and their key goes with the key
/// of the record of the same number; docs/MEMORY.md describes the protection and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchRow {
    /// The item, by the number of its record of [`Space::Features`].
    pub number: u64,
    /// Names the key of the other columns.
    pub key: u64,
    /// Keyed terms, 1 to [`TERMS`], ascending, each once.
    pub terms: Vec<u32>,
    /// Terms in the text, repetitions included.
    pub length: u32,
    /// The embedding, once computed.
    pub signs: Option<Signs>,
}

/// The signs of a rotated embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Signs {
    /// The embedder, as a hash.
    pub embedder: u64,
    /// One bit for each dimension, highest bit first; none for a text without words.
    pub bits: Vec<u8>,
}

/// Number of different terms of rows: the width of pgvector's sparse vectors.
pub const TERMS: u32 = 1_000_000_000;

/// A change of an owner's job. The owner's log says which work there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// There is work from a time on, in milliseconds since the Unix epoch.
    Due(u64),
    /// There is none.
    Done,
}

/// The number of an owner's only job in a table of jobs.
const JOB_NUMBER: i64 = i64::MIN;

/// Changes to one owner, all or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Records to write; existing ones are replaced.
    pub put: Vec<Record>,
    /// Records to remove.
    pub remove: Vec<(Space, u64)>,
    /// Search columns of written records, for a storage with a [`RowSearch`]. They go with their records.
    pub rows: Vec<SearchRow>,
    /// The change of the owner's job.
    pub job: Option<JobChange>,
}

/// A question to the rows of an owner under each key of the rows; all have the same terms in the same order.
pub type RowQuery = Vec<KeyedQuery>;

/// A question under one key of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyedQuery {
    /// Names the key.
    pub key: u64,
    /// Keyed terms.
    pub terms: Vec<u32>,
    /// The embedding.
    pub signs: Option<Signs>,
}

/// All rows of an owner, compared with a question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowScan {
    /// The owner's version at the time of the scan.
    pub version: u64,
    /// The rows, in no order.
    pub rows: Vec<ScannedRow>,
    /// For each row the same number of sets of [`TERMS_OF_A_SET`] terms: bits of the question's terms that it has.
    pub sets: Vec<u32>,
}

/// Terms of a set: their powers of two are exact in single precision, in which the database adds them up.
pub const TERMS_OF_A_SET: usize = 24;

/// A row of a [`RowScan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScannedRow {
    /// The item.
    pub number: u64,
    /// Terms in the text.
    pub length: u32,
    /// Signs that differ from the question's, if both are of one embedder.
    pub distance: Option<u32>,
}

impl RowScan {
    /// The terms of the question that a row has, by their places.
    pub fn terms_of(&self, row: usize) -> impl Iterator<Item = usize> {
        let sets = self.sets.len() / self.rows.len().max(1);
        let of_row = self.sets.iter().skip(row * sets).take(sets).enumerate();
        of_row.flat_map(|(set, bits)| {
            let mut rest = *bits;
            std::iter::from_fn(move || {
                let term = (rest != 0).then(|| set * TERMS_OF_A_SET + rest.trailing_zeros() as usize);
                rest &= rest.wrapping_sub(1);
                term
            })
        })
    }
}

/// Why a storage operation failed; one variant for each reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Another writer committed since the caller's version: read the new records and try again.
    #[error("the owner's records were changed by another writer")]
    Conflict,
    /// A later try may succeed.
    #[error("the memory storage is unavailable: {0}")]
    Unavailable(String),
    /// The storage holds invalid data, or has another format.
    #[error("the memory storage is damaged: {0}")]
    Damaged(String),
    /// Another version of the program wrote the database.
    #[error(
        "the memory database has layout {found}, and this program knows {supported}: start the version of the program \
         that wrote it, or a later one"
    )]
    OtherVersion {
        /// The layout of the database.
        found: i32,
        /// The layout of this program.
        supported: i32,
    },
    /// The data exceeds a limit of the storage.
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
    /// The owner's version; 0 for an owner without records.
    fn version<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, u64>;

    /// Records of a space with numbers from `from` on, ascending, with about `max_bytes` at most, but at
    /// least one record if any exists. The caller continues from the last number + 1 until the result is
    /// empty.
    fn read<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>>;

    /// Makes all changes if the owner's version is still `expected`; they are durable on return. Returns the
    /// new version, which is one more. An owner's first version is random, so that a recreated owner is not
    /// mistaken for an erased one.
    ///
    /// # Errors
    /// [`StorageError::Conflict`] and nothing is changed.
    fn commit<'a>(&'a self, owner: Pseudonym, expected: u64, batch: Batch) -> StorageFuture<'a, u64>;

    /// Removes all data of an owner.
    fn erase<'a>(&'a self, owner: Pseudonym) -> StorageFuture<'a, ()>;

    /// Owners after a pseudonym, ascending.
    fn owners<'a>(&'a self, after: Option<Pseudonym>, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>>;

    /// Takes the jobs of up to `limit` owners that are due at `now_ms`, earliest first. They become due again at
    /// `again_ms`. So no other relayer takes them meanwhile, and a crash does not lose them.
    fn take_due<'a>(&'a self, now_ms: u64, again_ms: u64, limit: usize) -> StorageFuture<'a, Vec<Pseudonym>>;

    /// Stores a nonce until a time; false for a known nonce. Durable on return. Expires by itself.
    fn take_nonce<'a>(&'a self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> StorageFuture<'a, bool>;

    /// Whether a nonce is stored or held. It writes nothing. [`Self::take_nonce`] decides; this is a cheaper look before.
    fn has_nonce<'a>(&'a self, _: [u8; 32], _now_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(async { Ok(false) })
    }

    /// Holds a nonce in memory until a time, while the disk takes no writes; false for a known nonce. A restart
    /// forgets it, so it serves only a request that changes nothing: at worst, its sender may read again.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] while the disk takes writes, and for a storage that needs no such help.
    fn hold_nonce<'a>(&'a self, _: [u8; 32], _now_ms: u64, _until_ms: u64) -> StorageFuture<'a, bool> {
        Box::pin(async { Err(StorageError::Unavailable("nonces are not held in memory".into())) })
    }

    /// The search in the database, if the storage has one. Several relayers share such a storage.
    fn rows(&self) -> Option<&dyn RowSearch> {
        None
    }

    /// Bytes that all records occupy with their indexes, without space that the storage will use again; `None`
    /// for a storage with limits of its own.
    fn stored_bytes<'a>(&'a self) -> StorageFuture<'a, Option<u64>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether the storage can be read and written now.
    fn ready<'a>(&'a self) -> StorageFuture<'a, ()> {
        Box::pin(async { self.version(Pseudonym([0; 16])).await.map(drop) })
    }
}

/// The search of a database: it compares rows, so that a relayer opens only the records of the best ones.
pub trait RowSearch: Send + Sync {
    /// Compares all rows of an owner with a question. Rows under other keys are left out.
    fn scan<'a>(&'a self, owner: Pseudonym, query: RowQuery) -> StorageFuture<'a, RowScan>;

    /// The items from a number on that have signs of an embedder, ascending.
    fn embedded<'a>(&'a self, owner: Pseudonym, embedder: u64, from: u64) -> StorageFuture<'a, Vec<u64>>;

    /// The records of a space with these numbers, as far as there are any, ascending.
    fn read_some<'a>(
        &'a self,
        owner: Pseudonym,
        space: Space,
        numbers: Vec<u64>,
    ) -> StorageFuture<'a, Vec<(u64, Vec<u8>)>>;
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

/// Databases' integers have a sign. The order stays: zero becomes the smallest.
fn ordered(number: u64) -> i64 {
    (number ^ (1 << 63)).cast_signed()
}

/// The inverse of [`ordered`].
fn unordered(number: i64) -> u64 {
    number.cast_unsigned() ^ (1 << 63)
}

/// An owner's first version: random and far below the database's largest number.
fn first_version() -> u64 {
    (u64::from_le_bytes(random_bytes()) >> 18) + 1
}
